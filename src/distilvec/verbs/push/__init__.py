"""`distilvec push`: a student on the Hugging Face hub."""
