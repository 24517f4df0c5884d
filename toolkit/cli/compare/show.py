"""How `toolkit compare` shows two sides: a table and a sentence, or JSON."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from toolkit.cli.output import print_json, say
from toolkit.tuning.compare import ComparedMetric, Comparison
from toolkit.units import milliseconds, rate, share

WORDS = {
    "rps": "RPS",
    "output_tokens_per_s": "output tokens/s",
    "ttft_p50_ms": "TTFT p50",
    "ttft_p95_ms": "TTFT p95",
    "e2e_p50_ms": "E2E p50",
    "e2e_p95_ms": "E2E p95",
    "tpot_p50_ms": "TPOT p50",
    "error_rate": "error rate",
}


def show(found: Sequence[Comparison], *, as_json: bool) -> None:
    """Show comparisons as the command line asks."""
    for index, each in enumerate(found):
        if as_json:
            _print_json(each)
        else:
            if index:
                click.echo()
            _print_table(each)


def _print_json(found: Comparison) -> None:
    about = {
        "run_a": found.a.run,
        "host_a": found.a.name,
        "run_b": found.b.run,
        "host_b": found.b.name,
        "comparable": found.comparable,
        "not_comparable": list(found.not_comparable),
        "paired": found.paired,
        "notes": list(found.notes),
    }
    for row in found.rows:
        print_json(asdict(row) | about)


def _print_table(found: Comparison) -> None:
    from toolkit.report.tables import Column, screen

    for letter, side in (("A", found.a), ("B", found.b)):
        click.echo(f"{letter}: {side.name} in run {side.run} ({side.verb})")
    for reason in found.not_comparable:
        say(f"Not comparable: {reason}")
    for note in found.notes:
        say(f"Note: {note}")
    click.echo()
    columns = [
        Column(title="metric"),
        Column(title="A", right=True),
        Column(title="B", right=True),
        Column(title="change", right=True),
        Column(title="95 % interval", right=True),
        Column(title="B is"),
    ]
    screen().table(columns, [_cells(row) for row in found.rows])
    say(sentence(found))


def _cells(row: ComparedMetric) -> list[str]:
    return [
        WORDS[row.metric],
        _value(row.metric, row.a),
        _value(row.metric, row.b),
        _change(row),
        _interval(row),
        row.why or row.verdict,
    ]


def _value(metric: str, value: float | None) -> str:
    if metric.endswith("_ms"):
        return milliseconds(value)
    return share(value) if metric == "error_rate" else rate(value)


def _change(row: ComparedMetric) -> str:
    if row.metric == "error_rate" or row.change is None:
        return _signed(row.metric, row.difference)
    return f"{row.change:+.1%}"


def _interval(row: ComparedMetric) -> str:
    """Of the change, in its own words."""
    if row.low is None or row.high is None:
        return "-"
    if row.metric == "error_rate" or not row.a:
        return f"{_signed(row.metric, row.low)} to {_signed(row.metric, row.high)}"
    ends = sorted((row.low / row.a, row.high / row.a))
    return f"{ends[0]:+.1%} to {ends[1]:+.1%}"


def _signed(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    if metric == "error_rate":
        return f"{100 * value:+.2f} points"
    return ("-" if value < 0 else "+") + _value(metric, abs(value))


def sentence(found: Comparison) -> str:
    """What to take home."""
    by_verdict = {
        word: [WORDS[row.metric] for row in found.rows if row.verdict == word]
        for word in ("better", "worse")
    }
    said = [f"{word} in {', '.join(names)}" for word, names in by_verdict.items() if names]
    told = "B is " + "; ".join(said) if said else "No difference shown"
    if not found.comparable:
        return f"{told}; but the two are not comparable"
    rests = max((row.blocks or 0 for row in found.rows), default=0)
    how = "paired blocks" if found.paired else "blocks, each side on its own"
    return (
        f"{told}; 95 % sure each, from up to {rests} {how}" if rests else f"{told}: too little data"
    )
