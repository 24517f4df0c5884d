"""Write every option of every command into README.md, from what click knows of them: `python tests/docs/write_options.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.option_tables import with_tables
from support.readme import README


def main() -> None:
    """Replace what stands between the two marks."""
    README.write_text(with_tables(README.read_text()))


if __name__ == "__main__":
    main()
