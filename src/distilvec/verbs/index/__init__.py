"""`distilvec index`: a local query encoder for an index."""
