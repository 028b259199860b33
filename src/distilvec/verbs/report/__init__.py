"""`distilvec report`: the page of a finished run."""
