"""How `toolkit warmup` shows what it found: a row for each host, of one host a row for each load; or JSON lines."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from toolkit.cli.output import print_json
from toolkit.cli.tables import UNKNOWN, Column, fit_table, milliseconds, screen
from toolkit.serving.warm.warm_rounds import Level, Round, Warmed

LEGEND = (
    "cold: median of the first round at that load; warm: of the last one. TTFT: send to the first chunk with a token. The row of a host"
    " is the lowest load, which was asked first: the same at every start."
)
KINDS = {"structured": " structured", "long": " long"}


def show(told: Sequence[Warmed], *, as_json: bool) -> None:
    """Print all hosts."""
    if as_json:
        for each in told:
            print_json(_as_object(each))
        return
    console = screen()
    console.print(fit_table(_columns("host"), [_row(each) for each in told], console))
    if len(told) == 1 and told[0].levels:
        rows = [_level_row(each) for each in told[0].levels]
        columns = [Column(title="at once"), *_figures(told[0].measure)]
        console.print(fit_table(columns, rows, console))
    console.print(LEGEND, style="dim")
    for each in told:
        for line in notes(each):
            click.echo(line, err=True)


def _as_object(told: Warmed) -> dict[str, object]:
    """Keys as in the record; errors by kind as bench and blast tell them."""
    found = asdict(told)
    for each, one in zip(found["rounds"], told.rounds, strict=True):
        each["error_kinds"] = {error.kind: error.count for error in one.error_kinds}
    return found


def notes(told: Warmed) -> Iterator[str]:
    """What a person should know beside the figures."""
    for each in told.rounds:
        if each.ok < each.requests:
            yield f"{told.name}: {_failed(each)}"
    if told.late_compilations:
        many = len(told.late_compilations)
        yield f"{told.name}: {many} compiled as late as in the probe: {told.late_compilations[0]}"


def _failed(one: Round) -> str:
    where = f"{one.concurrency} at once{KINDS.get(one.kind, '')} ({one.phase})"
    return f"{where}: {one.requests - one.ok} of {one.requests} failed: {one.error}"


def _columns(first: str) -> list[Column]:
    return [
        Column(title=first, widest=40),
        Column(title="at once", right=True),
        *_figures(None),
        Column(title="requests", right=True, spare=2),
        Column(title="errors", right=True, spare=1),
        Column(title="seeded", right=True, spare=3),
        Column(title="state", widest=60),
    ]


def _figures(measure: str | None) -> list[Column]:
    word = {"ttft": " TTFT", "e2e": " E2E", None: ""}[measure]
    return [
        Column(title=f"cold{word}", right=True),
        Column(title=f"warm{word}", right=True),
        Column(title="ratio", right=True),
    ]


def _row(told: Warmed) -> list[str]:
    cold = told.cold_ttft_ms if told.measure == "ttft" else told.cold_e2e_ms
    warm = told.warm_ttft_ms if told.measure == "ttft" else told.warm_e2e_ms
    return [
        told.name,
        UNKNOWN if told.concurrency is None else str(told.concurrency),
        milliseconds(cold),
        milliseconds(warm),
        ratio(told.ratio),
        f"{told.requests:,}",
        f"{told.errors:,}",
        f"{told.seeded:,}",
        told.error or _state(told),
    ]


def _state(told: Warmed) -> str:
    settled = sum(each.phase == "settle" for each in told.rounds)
    how = "" if told.measure == "ttft" else " (E2E)"
    return f"warm after {settled} round{'s' * (settled != 1)} at the top{how}"


def _level_row(level: Level) -> list[str]:
    name = f"{level.concurrency}{KINDS.get(level.kind, '')}"
    return [name, milliseconds(level.cold_ms), milliseconds(level.warm_ms), ratio(level.ratio)]


def ratio(value: float | None) -> str:
    """`407x`, `2.7x`."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}x" if value >= 10 else f"{value:.2g}x"
