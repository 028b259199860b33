"""The verbs: a file for one with a single function, else a folder with its command and its function."""
