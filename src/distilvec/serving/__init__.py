"""A model behind HTTP: requests are gathered into batches, answers have OpenAI's shape."""
