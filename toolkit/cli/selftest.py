"""`toolkit selftest`: say whether the bench's clock is right on this machine."""

import sys
from typing import TYPE_CHECKING

import click

from toolkit.cli.exit_codes import INTERRUPTED
from toolkit.cli.help_page import Command
from toolkit.cli.inputs import allow_open_files, occupy_standard_files
from toolkit.cli.options import DURATION, LEVELS
from toolkit.cli.output import print_json
from toolkit.cli.waiting import waiting_for
from toolkit.units import DASH, counted, latency, percent

if TYPE_CHECKING:
    from toolkit.bench.selftest import SelftestLevel

MOST_STREAMS = 10_000
LEGEND = (
    "TTFT +: the client's TTFT - the server's. token +: when the client read a token - when the server sent it. "
    "ITL error: |the client's gap between two tokens - the server's|. CPU/event: of the client, over the tokens; CPU: "
    "1 core is 100 %. server late: when a token left - when it was due; not in the client's figures. p99 only from "
    "100 values on."
)


@click.command("selftest", cls=Command, short_help="Check how exactly this machine measures times.")
@click.option(
    "--streams",
    type=LEVELS,
    default="1,10,100,500",
    show_default=True,
    metavar="1,10,...",
    help="Concurrent streams, one level after the other.",
)
@click.option(
    "--tokens",
    type=click.IntRange(2, 100_000),
    default=100,
    show_default=True,
    help="Tokens per answer.",
)
@click.option(
    "--interval", type=DURATION, default="10ms", show_default=True, help="Time between two tokens."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per level, and a summary."
)
def command(streams: tuple[int, ...], tokens: int, interval: float, as_json: bool) -> None:
    """Measure what the bench's own client adds to the times it reports. A local server writes into each token when it
    was sent; the client reads up to 500 streams of a token every 10 ms; both use one clock, so the difference is the
    client's. No other machine is contacted.

    \b
      toolkit selftest
      toolkit selftest --streams 1,10,100 --json

    Exits with 1 when the clock is not fit at one of the levels: up to 100 streams, more than 2 ms added to TTFT at p50
    or 10 ms at p99; beyond, more than 20 ms on average.
    """
    if not streams or not all(0 < each <= MOST_STREAMS for each in streams):
        raise click.UsageError(f"--streams takes numbers from 1 to {MOST_STREAMS:,}")
    from toolkit.bench.selftest import fault, fit_up_to, measured, stamped_server, unpaced
    from toolkit.bench.stamped import TokenPace

    allow_open_files()
    occupy_standard_files()
    levels: list[SelftestLevel] = []
    rate = None
    try:
        with stamped_server(TokenPace(interval_ms=interval * 1000, tokens=tokens)) as server:
            for count in streams:
                with waiting_for(f"Measuring {counted(count, 'stream')}"):
                    levels.append(measured(server, count, tokens=tokens))
                if as_json:
                    print_json({"part": "level"} | levels[-1].figures)
        with waiting_for("Measuring a server that does not pause"):
            rate = unpaced()
        if as_json:
            keys = ("streams", "tokens", "events_per_cpu_s", "cpu_us_per_event")
            print_json({"part": "rate"} | {key: getattr(rate, key) for key in keys})
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:  # a Ctrl-C costs nothing of what came before
        wrong = list(filter(None, map(fault, levels)))
        if levels and as_json:
            fit = {"fit": not wrong, "fit_up_to_streams": fit_up_to(levels), "faults": wrong}
            print_json({"part": "verdict"} | fit)
        elif levels:
            _print_table(levels, rate)
    if wrong:
        sys.exit(1)


def _print_table(levels: "list[SelftestLevel]", rate: "SelftestLevel | None") -> None:
    from toolkit.bench.selftest import conclusion
    from toolkit.report.tables import Column, screen

    columns = [
        Column("streams", lambda one: str(one.streams), right=True),
        Column(
            "answers",
            lambda one: f"{one.requests - one.errors:,}/{one.requests:,}",
            right=True,
            spare=5,
        ),
        Column("TTFT +p50", lambda one: latency(one.ttft_delay.p50_ms), right=True),
        Column("TTFT +p99", lambda one: latency(one.ttft_delay.p99_ms), right=True),
        Column("TTFT +mean", lambda one: latency(one.ttft_delay.mean_ms), right=True),
        Column("token +p50", lambda one: latency(one.token_delay.p50_ms), right=True, spare=4),
        Column("token +p99", lambda one: latency(one.token_delay.p99_ms), right=True, spare=3),
        Column("ITL error p50", lambda one: latency(one.itl_error.p50_ms), right=True),
        Column("ITL error p99", lambda one: latency(one.itl_error.p99_ms), right=True),
        Column(
            "CPU/event",
            lambda one: f"{one.cpu_us_per_event:,.1f} us" if one.cpu_us_per_event else DASH,
            right=True,
        ),
        Column("CPU", lambda one: percent(one.cpu_share), right=True, spare=2),
        Column("server late p99", lambda one: latency(one.server_late.p99_ms), right=True, spare=1),
    ]
    console = screen()
    console.records(columns, levels)
    console.print()
    if rate:
        console.print(
            f"Without pauses, with {rate.streams} streams, one core reads "
            f"{rate.events_per_cpu_s or 0:,.0f} events a second."
        )
    console.print(LEGEND)
    console.print(conclusion(levels))
