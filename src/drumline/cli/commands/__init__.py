"""The commands and their help, by noun; each imports what does the work when it is called."""
