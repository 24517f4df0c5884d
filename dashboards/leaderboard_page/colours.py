"""One colour and stroke per host, kept for the whole run: by its place in the list, never by its rank.

The colours are in page.css (`--c0` to `--c7`, one set for each theme): eight that people with any of the common colour
blindnesses tell apart, after Okabe and Ito, darkened or lightened to at least 3:1 against the page. Hosts beyond the
eighth get the same colours with other strokes; names at the lines' ends make colour a help and never the only sign.
"""

from collections.abc import Iterable, Mapping

from toolkit.report.charts import LineStyle

COLOURS = 8
STROKES = ("", "9 5", "2 5", "12 4 2 4")
"""Dash patterns in pixels: the first lap is solid."""


NOBODY = LineStyle("var(--quiet)", "")


def looks(names: Iterable[str]) -> Mapping[str, LineStyle]:
    """Host name -> its look. Names are sorted, so that every viewer and every day sees the same."""
    return {
        name: LineStyle(f"var(--c{place % COLOURS})", STROKES[place // COLOURS % len(STROKES)])
        for place, name in enumerate(sorted(set(names)))
    }


def solid(looks: Mapping[str, LineStyle], names: Iterable[str]) -> Mapping[str, LineStyle]:
    """The looks of a few hosts: solid lines, but where two of them have one colour."""
    found: dict[str, LineStyle] = {}
    for name in names:
        look = looks.get(name, NOBODY)
        is_first = look.colour not in {other.colour for other in found.values()}
        found[name] = LineStyle(look.colour, "") if is_first else look
    return found
