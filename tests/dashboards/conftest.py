"""`streamlit run dashboards/leaderboard.py` puts that folder on the import path; so do these tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "dashboards"))
