"""`RunSpec`: its parts, reading it from YAML and `key=value` options, and explaining what is off.

Import from the modules themselves: pydantic takes its time, and not everything needs it.
"""
