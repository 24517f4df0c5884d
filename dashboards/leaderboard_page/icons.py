"""The page's few signs, drawn as inline SVG: nothing is loaded, and no font is asked for a glyph it may lack."""

from toolkit.report.html import Markup, tag

_PATHS = {
    "up": "M8 3 L13.5 11 H2.5 Z",
    "down": "M8 13 L2.5 5 H13.5 Z",
    "same": "M3 8 H13",
    "warning": "M8 2 L15 14 H1 Z M8 6.5 V10 M8 11.6 V12.4",
    "scissors": "M4 3 L12 13 M12 3 L4 13 M3.2 13.5 h1.6 M11.2 13.5 h1.6",
    "bolt": "M9 1.5 L3.5 9 H7.5 L6.5 14.5 L12.5 6.5 H8.5 Z",
    "restart": "M13 8 A5 5 0 1 1 10.8 3.9 M11 1.2 V4.2 H8",
    "sliders": "M2 5 H14 M2 11 H14 M5.5 3 V7 M10.5 9 V13",
    "mask": "M2 5 Q8 2 14 5 Q14 12 8 14 Q2 12 2 5 Z M5.2 8 h1.6 M9.2 8 h1.6",
    "info": "M8 7 V12 M8 3.8 V4.6",
    "snow": "M8 1.5 V14.5 M2.4 4.8 L13.6 11.2 M13.6 4.8 L2.4 11.2",
    "check": "M2.5 8.5 L6.5 12.5 L13.5 4",
}
FILLED = frozenset({"up", "down", "bolt"})


def icon(name: str) -> Markup:
    """One sign, as high as the text beside it; the text says what it means, so readers skip it."""
    style = "fill" if name in FILLED else "stroke"
    return tag(
        "svg",
        tag("path", d=_PATHS[name]),
        class_=f"icon {style}",
        viewBox="0 0 16 16",
        aria_hidden="true",
    )
