"""What ranks run when a command looks at communication itself instead of training.

Each module with a `main` is started on every rank by `drumline.launcher.probe`, finds what is asked
of it in the run directory's `probe.json`, and leaves its answer beside it, one file per rank.
"""
