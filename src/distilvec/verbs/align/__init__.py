"""`distilvec align`: how well two tokenizers line up."""
