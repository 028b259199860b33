"""Readers of existing indexes, one file for each client, and the local copy that everything else works from."""
