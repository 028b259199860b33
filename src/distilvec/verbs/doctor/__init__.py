"""`distilvec doctor`: whether this machine can do the work, and how fast."""
