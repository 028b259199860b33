"""One file is one paper; the file's name is the method's name."""
