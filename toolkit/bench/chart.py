"""A sweep as a picture: throughput against latency, one line a host. It writes one PNG file and opens no window."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from toolkit.bench.ladder import Rung

INCHES = (10, 6.5)
DOTS_PER_INCH = 120
MARKERS = "osD^vPX*<>"
"""With ten colours and ten markers of different cycles (10 and 9), 90 hosts differ."""


def draw(ladders: Mapping[str, Sequence[Rung]], path: Path) -> None:
    """Draw every host's levels, each point with its concurrency. Raises OSError when the file cannot be written."""
    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (name, rungs) in enumerate(ladders.items()):
        steps = [step for step in rungs if step.e2e_p50_ms and step.output_tokens_per_s is not None]
        waits_s = [(step.e2e_p50_ms or 0.0) / 1000 for step in steps]
        speeds = [step.output_tokens_per_s or 0.0 for step in steps]
        # `$` would begin a formula, and a leading `_` hides a line from the legend
        label = "\u200b" + name.replace("$", r"\$")
        axes.plot(
            waits_s,
            speeds,
            marker=MARKERS[number % 9],
            color=f"C{number % 10}",
            markersize=5,
            label=label if steps else f"{label} (no answer)",
        )
        for step, wait_s, speed in zip(steps, waits_s, speeds, strict=True):
            axes.annotate(
                str(step.concurrency), (wait_s, speed), xytext=(4, 4), textcoords="offset points",
                fontsize=8,
            )  # fmt: skip
    axes.set(
        title="Throughput against latency; numbers are requests at once",
        xlabel="E2E p50, seconds (log)",
        ylabel="output tokens a second",
        xscale="log",
    )
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params(which="minor", labelsize=8)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, format="png")
