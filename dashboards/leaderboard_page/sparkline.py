"""A line as small as a word: one host's recent rate, stretched to its own highest value."""

from collections.abc import Sequence

from toolkit.report.html import Markup, tag

WIDTH = 100
HEIGHT = 24


def sparkline(values: Sequence[float]) -> Markup | None:
    """The curve with the ground below it; nothing for fewer than two values."""
    if len(values) < 2:
        return None
    most = max(values) or 1.0
    step = WIDTH / (len(values) - 1)
    points = [
        f"{place * step:.1f} {HEIGHT - 2 - (HEIGHT - 4) * max(0.0, value) / most:.1f}"
        for place, value in enumerate(values)
    ]
    line = "M" + " L".join(points)
    return tag(
        "svg",
        tag("path", d=f"{line} L{WIDTH} {HEIGHT} L0 {HEIGHT} Z", class_="ground"),
        tag("path", d=line, class_="line"),
        class_="spark",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
