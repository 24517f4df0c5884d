"""The parts of the leaderboard page; dashboards/leaderboard.py puts them together."""
