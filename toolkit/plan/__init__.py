"""What fits into a GPU's memory, and how many requests that is, before anything is started."""
