"""Pictures as files, drawn by matplotlib: what all of them share. It opens no window."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DOTS_PER_INCH = 120


def save(draw: Callable[[], Figure], path: Path) -> None:
    """Draw a figure into an SVG file, if its name ends so, or a PNG file. Raises OSError when it cannot be written."""
    with mpl.rc_context():
        mpl.rcdefaults()  # a matplotlibrc in the folder or at home would dress it up or break it
        draw().savefig(path, format="svg" if path.suffix.lower() == ".svg" else "png")


def new_figure(inches: tuple[float, float]) -> Figure:
    """An empty figure of this width and height that needs no screen."""
    figure = Figure(figsize=inches, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def literal(text: str) -> str:
    """Text as it is: `$` would begin a formula."""
    return text.replace("$", r"\$")
