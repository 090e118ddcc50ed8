"""The four labs: run, written up, started by students, checked. No torch."""
