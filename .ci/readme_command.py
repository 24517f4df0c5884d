"""Print the README's set-up command number N: the N-th sh block under its heading "Set up", byte for byte."""

import re
import sys
from pathlib import Path

BLOCKS = 2
"""One runs the main job, one the tests; a third would be one too many for a first screen."""


def main() -> None:
    """Refuse a README whose set-up changed its shape, rather than run less than it says."""
    readme = Path(__file__).parents[1] / "README.md"
    section = re.search(
        r"^## Set up\n(.*?)(?=^## |\Z)", readme.read_text(), re.MULTILINE | re.DOTALL
    )
    blocks = (
        re.findall(r"^```sh\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL) if section else []
    )
    if len(blocks) != BLOCKS:
        sys.exit(
            f"Error: `README.md` has {len(blocks)} sh blocks under `## Set up`, expected {BLOCKS}"
        )
    sys.stdout.write(blocks[int(sys.argv[1]) - 1])


if __name__ == "__main__":
    main()
