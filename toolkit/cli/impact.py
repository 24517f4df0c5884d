"""`toolkit impact`: what a restart costs, before somebody does it or after a run saw one."""

import os
from dataclasses import asdict
from pathlib import Path

import click

from toolkit.cli.help_page import Command, advanced
from toolkit.cli.named_run import chosen_run
from toolkit.cli.options import DURATION, HOST, MOMENT, UP_TO_A_DAY, database_option, run_word
from toolkit.cli.output import print_json, say, writing
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.units import DASH, percent, short, spoken, time_of_day

RPS, GAIN = 10.0, 1.0
LARGEST = 1e9


@click.command(
    "impact", cls=Command, short_help="What a restart costs on the board, and when it pays off."
)
@click.option("--downtime", type=UP_TO_A_DAY, help="How long the host is down.")
@click.option(
    "--window", type=UP_TO_A_DAY, default="15m", show_default=True, help="Window of the board."
)
@click.option(
    "--rps", type=float, help=f"Requests answered per second before it.  [default: {RPS:g}]"
)
@advanced(
    "--error-rps",
    type=float,
    help="Failed requests per second while it is down.  [default: as --rps]",
)
@click.option("--gain", type=float, help=f"Throughput after it / before it.  [default: {GAIN:g}]")
@click.option("--left", type=DURATION, help="Time from the downtime's start to the contest's end.")
@click.option(
    "--run",
    metavar="RUN",
    type=run_word("blast"),
    help="Look at an outage of this run.  [default: the newest blast]",
)
@click.option("--host", metavar="NAME", type=HOST, help="The host whose outage is meant.")
@advanced("--at", type=MOMENT, help="The outage then, or the nearest.  [default: the worst]")
@advanced("--all", "everything", is_flag=True, help="Ignore a freeze of the board, as its owner.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--chart",
    "--png",
    "chart",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a chart to this PNG file.",
)
@database_option
def command(
    downtime: float | None,
    window: float,
    rps: float | None,
    error_rps: float | None,
    gain: float | None,
    left: float | None,
    run: str | None,
    host: str | None,
    at: float | None,
    everything: bool,
    as_json: bool,
    chart: Path | None,
    database: Path,
) -> None:
    """Say what a restart costs on a board with a rolling window: the error rate at its peak, how long errors stay
    in the window, and when a faster server has paid the downtime back. Times count from the first second down.

    \b
      toolkit impact --downtime 5m --rps 10 --gain 1.3
      toolkit impact --downtime 90s --window 15m --rps 4 --gain 1.1 --left 40m \\
          --chart impact.png
      toolkit impact --host alice   the worst outage of the newest blast
      toolkit impact --run 4f0c9a2b7d1e --host alice --at 14:32 --json

    \f
    Clients that are refused at once fail faster than answers come; clients that wait fail slower. Five minutes down that
    a window of 15 minutes shows as 21% errors are an --error-rps of 0.53 times --rps: 300 s x 0.53 of 300 s x 0.53 + 600
    s x 1.
    """
    planned_by = (downtime, rps, error_rps, gain, left)
    if run is None and host is None:
        if everything:
            raise click.UsageError("--all goes with --host, which reads a run")
        if at is not None:
            raise click.UsageError("--at picks an outage of a run: add --host NAME")
        if downtime is None:
            raise click.UsageError(
                "say how long it is down: --downtime 5m, or whose outage of a run: --host NAME"
            )
    elif any(each is not None for each in planned_by):
        raise click.UsageError(
            "--run and --host read a run, whose figures are known; leave --downtime, --rps and the like out"
        )
    elif host is None:
        raise click.UsageError("--run needs to know whose outage: add --host NAME")
    for name, number, is_enough, words in (
        ("--rps", rps, rps is None or rps > 0, "above 0"),
        ("--error-rps", error_rps, error_rps is None or error_rps >= 0, "0 or above"),
        ("--gain", gain, gain is None or gain > 0, "above 0"),
    ):
        # `nan` is neither above nor below anything
        if not is_enough or (number or 0) > LARGEST:
            raise click.UsageError(f"{name} must be {words}, and at most {LARGEST:,.0f}")
    if chart is not None and chart.suffix.lower() != ".png":
        raise click.UsageError("--chart writes a PNG; call it, e.g., `impact.png`")

    from toolkit.board.impact import (
        ahead,
        decision,
        explained,
        outcome,
        planned,
        recorded,
        shown_at,
        turning_points,
    )
    from toolkit.report.tables import Column, screen

    title = ""
    about: dict[str, object] = {}
    if host is None:
        rps = RPS if rps is None else rps
        impact = planned(
            downtime_s=downtime or 0.0,
            window_s=window,
            rps=rps,
            error_rps=rps if error_rps is None else error_rps,
            gain=GAIN if gain is None else gain,
        )
        sentences = [*explained(impact), decision(impact, left)]
    else:
        from toolkit.board.feed import Feed
        from toolkit.board.outages import outage_at
        from toolkit.store import Store

        with waiting_for("Reading"), Store.open_readonly(database) as store:
            blast = chosen_run(store, run, database, "blast")
            feed = Feed(store, blast, everything=everything)
            answers, outages = feed.outages(host)
        outage = outage_at(outages, at)
        if outage is None:
            raise ToolkitError(
                f"`{host}` was never down in run `{blast.id}`",
                "`toolkit board` tells who has errors. An outage lacks 8 answers of the host's usual rate and has 3 "
                "errors, or lies at a known restart",
            )
        impact = recorded(answers, outage, window, outages)
        sentences = explained(impact)
        length = spoken(outage.to_s - outage.from_s)
        end = f"not back {length} later"
        if outage.is_over:
            end = f"back after {length}"
            sentences.append(outcome(impact, answers.end_s - outage.from_s))
        what = "restarted" if outage.restarted else "went down"
        title = f"{host} {what} at {time_of_day(outage.from_s)}, {end} (run {blast.id})"
        about = {
            "run": blast.id,
            "name": host,
            "from_s": outage.from_s,
            "to_s": outage.to_s,
            "restarted": outage.restarted,
            "is_over": outage.is_over,
        }

    if as_json:
        print_json(asdict(impact) | about)
    else:
        if title:
            say(title)
            click.echo()
        columns = [
            Column(title="after", right=True),
            Column(title="what happens"),
            Column(title="error rate", right=True),
            Column(title="RPS of the window", right=True),
            Column(title="requests ahead", right=True),
        ]
        rows = []
        for at_s, what in turning_points(impact):
            shown, won = shown_at(impact, at_s), ahead(impact, at_s)
            rows.append(
                [
                    spoken(at_s),
                    what,
                    percent(shown.error_rate if shown else None, 1),
                    DASH if shown is None else short(shown.rps),
                    DASH if won is None else f"{round(won):+,}" if round(won) else "0",
                ]
            )
        console = screen()
        console.table(columns, rows)
        console.print()
        for line in sentences:
            say(line)

    if chart:
        import logging

        # matplotlib warns of a home that it cannot write to and fails to load where MPLBACKEND names none that it
        # knows: nothing of that changes the picture
        logging.getLogger("matplotlib").setLevel(logging.CRITICAL)
        os.environ.pop("MPLBACKEND", None)
        with writing("Picture", chart, "--chart"), waiting_for("Drawing"):
            from toolkit.board.chart import draw

            draw(impact, chart, title=title)
