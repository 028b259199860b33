"""`distilvec recipes`: the built-in recipes."""
