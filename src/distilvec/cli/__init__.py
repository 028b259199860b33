"""The command line: its verbs, options, layout of help, output on a terminal, and the boundary where errors end."""
