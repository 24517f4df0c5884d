"""The metrics pages under tests/data/metrics, and what is read in one."""

from pathlib import Path

from toolkit.metrics.dialects import EngineNumbers, read_numbers
from toolkit.metrics.parser import read_page

PAGES = Path(__file__).parents[1] / "data" / "metrics"


def text_of(name: str) -> str:
    """A page by its folder and name, e.g., `recorded/idle`."""
    return (PAGES / f"{name}.txt").read_text(encoding="utf-8")


def numbers(text: str, content_type: str = "") -> EngineNumbers:
    """What a page of a known engine says."""
    found = read_numbers(read_page(text), content_type)
    assert found is not None
    return found
