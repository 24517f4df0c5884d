"""`toolkit impact`: what a restart costs, before somebody does it or after a run saw one."""

from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.impact.options import GAIN, RPS, ImpactOptions
from toolkit.cli.options import DURATION, MOMENT, database_option

LARGEST = 1e9
LONGEST_S = 86_400
"""Of a downtime or a window: the series has a row for each second."""

EXAMPLES = """
Say what a restart costs on a board with a rolling window: the error rate at its peak, how long
the window stays tainted, and when a faster server has paid the downtime back. Times count from
the first second down.

\b
  toolkit impact --downtime 5m --rps 10 --gain 1.3
  toolkit impact --downtime 90s --window 15m --rps 4 --gain 1.1 --left 40m \\
      --chart impact.png
  toolkit impact --host alice   the worst outage of the newest blast
  toolkit impact --run 4f0c9a2b7d1e --host alice --at 14:32 --json

Clients that are refused at once fail faster than answers come; clients that wait fail slower.
Five minutes down that a window of 15 minutes shows as 21% errors are an --error-rps of 0.53 times
--rps: 300 s x 0.53 of 300 s x 0.53 + 600 s x 1.
"""


@click.command(
    "impact", help=EXAMPLES, short_help="What a restart costs in the window, and when it pays."
)
@click.option("--downtime", type=DURATION, help="How long it answers nothing.")
@click.option(
    "--window", type=DURATION, default="15m", show_default=True, help="That the board looks back."
)
@click.option("--rps", type=float, help=f"Answered a second before it.  [default: {RPS:g}]")
@click.option(
    "--error-rps", type=float, help="Failing a second while it is down.  [default: as --rps]"
)
@click.option(
    "--gain", type=float, help=f"Answered a second after it / before it.  [default: {GAIN:g}]"
)
@click.option("--left", type=DURATION, help="From the first second down to the contest's end.")
@click.option(
    "--run",
    metavar="RUN",
    shell_complete=suggestions.run("blast"),
    help="Look at an outage of this run.  [default: the newest blast]",
)
@click.option(
    "--host", metavar="NAME", shell_complete=suggestions.host, help="Whose outage, in a run."
)
@click.option("--at", type=MOMENT, help="The outage then, or the nearest.  [default: the worst]")
@click.option(
    "--all", "everything", is_flag=True, help="See past a freeze of the board, too, as its owner."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--chart",
    "--png",
    "png",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw it into this file, a PNG.",
)
@database_option
def command(**options: Any) -> None:
    """Say what a restart costs (the help text is EXAMPLES)."""
    chosen = ImpactOptions(**options)
    contradiction = _contradiction(chosen)
    if contradiction:
        raise click.UsageError(contradiction)
    if chosen.is_recorded:
        from toolkit.cli.impact.recorded import show_recorded

        show_recorded(chosen)
    else:
        from toolkit.cli.impact.show import show_planned

        show_planned(chosen)


def _contradiction(options: ImpactOptions) -> str | None:
    """Say what is missing, or what cannot both be meant."""
    plan = (options.downtime, options.rps, options.error_rps, options.gain, options.left)
    is_planned = any(each is not None for each in plan)
    cases = (
        (
            options.is_recorded and is_planned,
            "--run and --host look at a run, whose figures are known; leave --downtime, --rps and the like out",
        ),
        (
            options.run is not None and options.host is None,
            "--run needs to know whose outage: add --host NAME",
        ),
        (
            options.everything and not options.is_recorded,
            "--all goes with --host, which looks at a run",
        ),
        (
            options.at is not None and not options.is_recorded,
            "--at picks an outage of a run: add --host NAME",
        ),
        (
            not options.is_recorded and options.downtime is None,
            "say how long it is down: --downtime 5m, or whose outage of a run: --host NAME",
        ),
        *(
            (
                number is not None and not _is_amount(number, least),
                f"{name} must be {words}, and at most {LARGEST:,.0f}",
            )
            for name, number, least, words in (
                ("--rps", options.rps, None, "above 0"),
                ("--error-rps", options.error_rps, 0.0, "0 or above"),
                ("--gain", options.gain, None, "above 0"),
            )
        ),
        *(
            (seconds is not None and seconds > LONGEST_S, f"{name} is a day at most")
            for name, seconds in (("--downtime", options.downtime), ("--window", options.window))
        ),
        (
            options.png is not None and options.png.suffix.lower() != ".png",
            "--chart writes a PNG; call it, e.g., `impact.png`",
        ),
    )
    return next((message for is_so, message in cases if is_so), None)


def _is_amount(number: float, least: float | None) -> bool:
    """Whether it is large enough (None: above 0) and such that arithmetic goes well: neither `nan` nor endless."""
    return number <= LARGEST and (number > 0 if least is None else number >= least)
