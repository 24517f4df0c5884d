"""Finds the packages; everything else stands in pyproject.toml. The load's own file, the page and the examples are mapped into the wheel there."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["toolkit", "toolkit.*"]),
        "toolkit.locustfiles",
        "toolkit.dashboards",
        "toolkit.dashboards.leaderboard_page",
        "toolkit.docs.examples",
    ]
)
