"""How much a benchmark measures: all of it, or in CI, where it need only run, so little that all of them take few minutes."""

import os


def at_length(full: int, in_ci: int) -> int:
    """`full`, or `in_ci` where the variable CI is set: no figure for RESULTS.md comes from there."""
    return in_ci if os.environ.get("CI") else full
