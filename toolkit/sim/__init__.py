"""A vLLM that is not one: for tests, demos and practice without a GPU. Imports nothing else of toolkit."""
