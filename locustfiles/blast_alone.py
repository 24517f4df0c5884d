"""Locust without a user's `locust.conf`, `~/.locust.conf` and `pyproject.toml`: what `toolkit blast` loads, its own words decide."""

from locust import argument_parser
from locust.main import main

argument_parser.get_empty_argument_parser.__defaults__ = (True, ())
argument_parser.get_parser.__defaults__ = ((),)

if __name__ == "__main__":
    main()
