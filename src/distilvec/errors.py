"""The one exception users meet: it says what was found, what was expected and what to do."""


class DistilvecError(Exception):
    """A problem in what the user gave us (recipe, files, vectors, machine), never a bug of ours.

    The command line prints its message without a traceback and exits with status 2.
    """
