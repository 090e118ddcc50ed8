"""Drumline from Python and notebooks: `drumline.launch` and `drumline.train`.

They start ranks as the commands do, and return when these have ended; errors are exceptions. The
names are exported by `drumline` itself.
"""
