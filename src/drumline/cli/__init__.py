"""The command line: parse, compose, turn errors into exit codes."""
