"""The recipe as typed values: its sections, the files that they are read from, and what is said about mistakes."""
