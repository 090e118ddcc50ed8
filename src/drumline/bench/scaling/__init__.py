"""`drumline bench scaling`: strong and weak scaling of data-parallel training."""
