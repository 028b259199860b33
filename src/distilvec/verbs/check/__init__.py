"""`distilvec check`: a model as the query encoder of an index, judged before a switch."""
