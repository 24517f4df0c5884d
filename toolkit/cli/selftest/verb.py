"""`toolkit selftest`: say whether the bench's clock is right on this machine."""

import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.inputs import allow_open_files, occupy_standard_files
from toolkit.cli.output import print_json
from toolkit.cli.units import DURATION, Levels
from toolkit.units import DASH, latency, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from toolkit.bench.peers import Peer, PeerLevel
    from toolkit.bench.selftest import Rate, SelftestLevel
    from toolkit.report.tables import Column

MOST_STREAMS = 10_000
LEGEND = (
    "TTFT +: the client's TTFT - the server's. token +: when the client read a token - when the server sent it. "
    "ITL error: |the client's gap between two tokens - the server's|. CPU/event: of the client, over the tokens; CPU: "
    "1 core is 100 %. server late: when a token left - when it was due; not in the client's figures. p99 only from "
    "100 values on."
)

EXAMPLES = """
Measure what the bench's own client adds to the times it tells. A local server writes into each
token when it was sent; the client reads up to 500 streams of a token every 10 ms; both use one
clock, so the difference is the client's. Nothing but this machine is contacted.

\b
  toolkit selftest
  toolkit selftest --streams 1,10,100 --json
  toolkit selftest --against guidellm --against vllm=/opt/vllm/bin/vllm

Exits with 1 when the clock is not fit at one of the levels: up to 100 streams, more than 2 ms
added to TTFT at p50 or 10 ms at p99; beyond, more than 20 ms on average.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestOptions:
    """The command line of one self-test, fields named as its options."""

    streams: tuple[int, ...]
    tokens: int
    interval: float
    against: tuple[str, ...]
    against_streams: int
    as_json: bool


@click.command("selftest", help=EXAMPLES, short_help="Prove that the bench's clock is right here.")
@click.option(
    "--streams",
    type=Levels(),
    default="1,10,100,500",
    show_default=True,
    metavar="1,10,...",
    help="So many at once, one level after the other.",
)
@click.option(
    "--tokens", type=click.IntRange(2, 100_000), default=100, show_default=True, help="Per answer."
)
@click.option(
    "--interval", type=DURATION, default="10ms", show_default=True, help="Between two tokens."
)
@click.option(
    "--against",
    multiple=True,
    metavar="NAME[=PATH]",
    help="Let guidellm, aiperf or vllm (its `bench serve`) time the same server; may be repeated.",
)
@click.option(
    "--against-streams",
    type=click.IntRange(1, MOST_STREAMS),
    default=100,
    show_default=True,
    help="How many, with --against.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a level, and one of all."
)
def command(**options: Any) -> None:
    """Test the clock (the help text is EXAMPLES)."""
    chosen = SelftestOptions(**options)
    if not chosen.streams or not all(0 < each <= MOST_STREAMS for each in chosen.streams):
        raise click.UsageError(f"--streams takes numbers from 1 to {MOST_STREAMS:,}")
    _selftest(chosen)


@dataclass(slots=True)
class Results:
    """What was measured so far."""

    levels: "list[SelftestLevel]" = field(default_factory=list)
    peers: "list[PeerLevel]" = field(default_factory=list)
    rate: "Rate | None" = None


def _selftest(options: SelftestOptions) -> None:
    from toolkit.bench.peers import peer
    from toolkit.bench.selftest import faults

    peers = [peer(word) for word in options.against]  # one that is missing is told at once
    allow_open_files()
    occupy_standard_files()
    results = Results()
    try:
        for part, record in _measured(options, peers, results):
            if options.as_json:
                print_json({"part": part} | asdict(record))
    except KeyboardInterrupt:
        sys.exit(130)  # what a shell calls an interrupted command
    finally:  # a tool that fails, or a Ctrl-C, costs nothing of what came before
        if results.levels and options.as_json:
            _print_conclusion(results.levels)
        elif results.levels:
            _print_tables(results)
    if faults(results.levels):
        sys.exit(1)


def _measured(
    options: SelftestOptions, peers: "list[Peer]", results: Results
) -> "Iterator[tuple[str, SelftestLevel | PeerLevel | Rate]]":
    """Measure one thing after the other; each is told once it is there."""
    from toolkit.bench.peers import compared, ourselves
    from toolkit.bench.selftest import measured, rate, stamped_server
    from toolkit.bench.stamps import TokenPace

    pace = TokenPace(interval_ms=options.interval * 1000, tokens=options.tokens)
    crowd, tokens = options.against_streams, options.tokens
    with stamped_server(pace) as server:
        for streams in options.streams:
            _announce(f"{streams} streams")
            results.levels.append(measured(server, streams, tokens=tokens))
            yield "level", results.levels[-1]
        for number, one in enumerate(peers):
            _announce(f"{one.tool.name} with {crowd} streams")
            if number == 0:
                results.peers.append(ourselves(server, crowd, tokens=tokens))
                yield "peer", results.peers[-1]
            results.peers.append(compared(one, server, crowd, tokens=tokens))
            yield "peer", results.peers[-1]
    _announce("a server that does not pause")
    results.rate = rate()
    yield "rate", results.rate


def _announce(what: str) -> None:
    """Say on a terminal what takes its seconds now."""
    if sys.stderr is not None and sys.stderr.isatty():
        click.echo(f"measuring: {what} ...", err=True)


def _print_conclusion(levels: "list[SelftestLevel]") -> None:
    from toolkit.bench.selftest import faults, fit_up_to

    wrong, upto = faults(levels), fit_up_to(levels)
    print_json({"part": "verdict", "fit": not wrong, "fit_up_to_streams": upto, "faults": wrong})


def _print_tables(results: Results) -> None:
    from toolkit.bench.selftest import conclusion
    from toolkit.report.tables import screen

    console = screen()
    for columns, rows in (_level_rows(results.levels), _peer_rows(results.peers)):
        if rows:
            console.table(columns, rows)
            console.print()
    if rate := results.rate:
        console.print(
            f"Without pauses, with {rate.streams} streams, one core reads "
            f"{rate.events_per_cpu_s or 0:,.0f} events a second."
        )
    console.print(LEGEND)
    console.print(conclusion(results.levels))


def _level_rows(levels: "list[SelftestLevel]") -> "tuple[list[Column], list[list[str]]]":
    from toolkit.report.tables import Column

    columns = [
        Column(title="streams", right=True),
        Column(title="answers", right=True, spare=5),
        Column(title="TTFT +p50", right=True),
        Column(title="+p99", right=True),
        Column(title="+mean", right=True),
        Column(title="token +p50", right=True, spare=4),
        Column(title="+p99", right=True, spare=3),
        Column(title="ITL error p50", right=True),
        Column(title="p99", right=True),
        Column(title="CPU/event", right=True),
        Column(title="CPU", right=True, spare=2),
        Column(title="server late p99", right=True, spare=1),
    ]
    rows = [
        [
            str(one.streams),
            f"{one.requests - one.errors:,}/{one.requests:,}",
            latency(one.ttft_delay_p50_ms),
            latency(one.ttft_delay_p99_ms),
            latency(one.ttft_delay_mean_ms),
            latency(one.token_delay_p50_ms),
            latency(one.token_delay_p99_ms),
            latency(one.itl_error_p50_ms),
            latency(one.itl_error_p99_ms),
            _microseconds(one.cpu_us_per_event),
            percent(one.cpu_share),
            latency(one.server_late_p99_ms),
        ]
        for one in levels
    ]
    return columns, rows


def _peer_rows(peers: "list[PeerLevel]") -> "tuple[list[Column], list[list[str]]]":
    from toolkit.report.tables import Column

    columns = [
        Column(title="tool"),
        Column(title="streams", right=True),
        Column(title="answers", right=True, spare=1),
        Column(title="its TTFT p50", right=True, spare=2),
        Column(title="TTFT +p50", right=True),
        Column(title="+p99", right=True),
        Column(title="+mean", right=True),
        Column(title="CPU/event", right=True),
    ]
    rows = [
        [
            one.tool,
            str(one.streams),
            f"{one.requests:,}",
            latency(one.ttft_p50_ms),
            latency(one.ttft_delay_p50_ms),
            latency(one.ttft_delay_p99_ms),
            latency(one.ttft_delay_mean_ms),
            _microseconds(one.cpu_us_per_event),
        ]
        for one in peers
    ]
    return columns, rows


def _microseconds(value: float | None) -> str:
    return DASH if value is None else f"{value:,.1f} us"
