"""Where the toolkit keeps its own files, unless the command line names another place."""

DATABASE = "data/toolkit.db"
SERVE_FOLDER = "data/serve"
"""Logs, orders, and what is to be known after a crash."""
