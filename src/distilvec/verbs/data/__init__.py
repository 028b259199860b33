"""`distilvec data`: public data sets."""
