"""What both columns share: the spec, the run directory, the event log, errors. No torch.

Import from the modules themselves: `--help` needs the errors alone, and pydantic takes its time.
"""
