"""The verb `help`: the help of a verb, as `VERB -h` prints it."""
