"""A backend over MPI by mpi4py: no rebuilt PyTorch. mpi4py is loaded when the backend is used."""
