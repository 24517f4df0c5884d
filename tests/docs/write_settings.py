"""Write docs/settings.md and docs/schemas/ from the declarations of all files of settings: `python tests/docs/write_settings.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.settings_page import written


def main() -> None:
    """Replace all of them."""
    for file, text in written().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
