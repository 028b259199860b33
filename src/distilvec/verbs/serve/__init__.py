"""`distilvec serve`: a student behind OpenAI's HTTP interface."""
