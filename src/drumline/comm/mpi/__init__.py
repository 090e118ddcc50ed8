"""A backend over MPI by mpi4py: no rebuilt PyTorch. mpi4py is loaded when the backend is used."""

from drumline.comm.mpi.group import register_mpi

__all__ = ["register_mpi"]
