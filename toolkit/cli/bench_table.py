"""How `toolkit bench` shows results to a person: a table, what explains it, a sweep's levels, the client's health."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from toolkit.bench.fitness import Fitness
from toolkit.bench.ladder import Rung
from toolkit.bench.result import Result
from toolkit.bench.summary import Summary
from toolkit.cli.bench_show import Show, client_warning
from toolkit.cli.tables import UNKNOWN, Column, fit_table, milliseconds, screen
from toolkit.records import Verdict

WIDEST_NAME = 40
WIDEST_VERDICTS = 44
PLAIN = ("clean", "not_judged")
"""Verdicts that accuse nobody."""
LEGEND = (
    "TTFT: send to the first chunk with a token. E2E: send to the last one. TPOT: (E2E - TTFT) / tokens "
    "after the first chunk. ITL: gap between chunks / tokens in it. ok: complete answers; errors are in no "
    "latency. req/s, tok/s: of ok answers, over the time from first send to last end. p50, p95: nearest rank, "
    "within 1 %."
)

Cell = Callable[[Summary], str | Text]


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _whole(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def _ok(figures: Summary) -> Text:
    style = "" if not figures.errors else "red" if not figures.ok else "yellow"
    return Text(f"{figures.ok:,}/{figures.requests:,}", style=style)


def _tokens_per_s(figures: Summary) -> str:
    """An estimate is marked: its tokens are counted chunks."""
    mark = "~" if figures.output_tokens_estimated and figures.output_tokens_per_s else ""
    return mark + _whole(figures.output_tokens_per_s)


def _verdicts(figures: Summary) -> Text:
    accusing = [verdict.code for verdict in figures.verdicts if verdict.code not in PLAIN]
    codes = accusing or [verdict.code for verdict in figures.verdicts]
    text = ", ".join(code.replace("_", " ") for code in codes) or UNKNOWN
    return Text(text, style="yellow" if accusing else "green" if "clean" in codes else "")


COLUMNS: Sequence[tuple[Column, Cell]] = (
    (Column(title="host", widest=WIDEST_NAME), lambda seen: seen.name),
    (Column(title="ok", right=True), _ok),
    (Column(title="req/s", right=True), lambda seen: _rate(seen.rps)),
    (Column(title="tok/s", right=True), _tokens_per_s),
    (Column(title="TTFT p50", right=True), lambda seen: milliseconds(seen.ttft_p50_ms)),
    (Column(title="p95", right=True, spare=4), lambda seen: milliseconds(seen.ttft_p95_ms)),
    (Column(title="TPOT p50", right=True, spare=3), lambda seen: milliseconds(seen.tpot_p50_ms)),
    (Column(title="ITL p95", right=True, spare=5), lambda seen: milliseconds(seen.itl_p95_ms)),
    (Column(title="E2E p50", right=True), lambda seen: milliseconds(seen.e2e_p50_ms)),
    (Column(title="p95", right=True, spare=2), lambda seen: milliseconds(seen.e2e_p95_ms)),
    (Column(title="twins", right=True, spare=1), lambda seen: milliseconds(seen.twin_e2e_p50_ms)),
    (Column(title="RTT", right=True, spare=6), lambda seen: milliseconds(seen.rtt_ms)),
)
GOOD: Sequence[tuple[Column, Cell]] = (
    (Column(title="good", right=True), lambda seen: _share(seen.good_share)),
    (Column(title="good/s", right=True), lambda seen: _rate(seen.goodput)),
)
VERDICTS = (Column(title="verdict", widest=WIDEST_VERDICTS), _verdicts)


class TableShow(Show):
    """Prints one table, and below it what a person should know."""

    def results(self, told: Sequence[Result], fitness: Fitness) -> None:
        """Print everything at the end of a run."""
        console = screen()
        for part in _page(told, fitness, console):
            # a sentence is the terminal's to break, and nobody's in a pipe
            console.print(part, soft_wrap=isinstance(part, Text))


def _page(told: Sequence[Result], fitness: Fitness, console: Console) -> Iterator[RenderableType]:
    figures = [each.summary for each in told]
    columns = [*COLUMNS, *(GOOD if _has_limits(figures) else ()), VERDICTS]
    rows = [[cell(one) for _, cell in columns] for one in figures]
    yield fit_table([column for column, _ in columns], rows, console)
    yield Text()
    yield from _notes(figures)
    for each in told:
        if each.rungs:
            yield Text()
            yield from _sweep(each, console)
    yield Text()
    yield from _fastest(figures)
    yield _client(fitness)
    yield Text(LEGEND, style="dim")


def _has_limits(figures: Sequence[Summary]) -> bool:
    return any(one.good_share is not None for one in figures)


def _notes(figures: Sequence[Summary]) -> Iterator[Text]:
    """Why nothing was answered, then the verdicts' evidence; hosts of one sentence share a line."""
    names: dict[tuple[str, str], list[str]] = {}
    for one in figures:
        verdicts = [(_title(v), v.evidence) for v in one.verdicts if v.code != "clean"]
        for code, sentence in (*_errors(one), *verdicts):
            names.setdefault((code, sentence), []).append(one.name)
    for (code, sentence), hosts in names.items():
        yield Text.assemble((code, "bold"), f"  {', '.join(hosts)}: {sentence}")


def _title(verdict: Verdict) -> str:
    title = verdict.code.replace("_", " ")
    return title if verdict.code in PLAIN else f"{title} ({verdict.confidence})"


def _errors(figures: Summary) -> Iterator[tuple[str, str]]:
    if figures.error:
        yield "no answer", figures.error
    elif figures.errors:
        kinds = ", ".join(f"{count} {kind}" for kind, count in figures.error_kinds.items())
        yield "errors", kinds


def _fastest(figures: Sequence[Summary]) -> Iterator[Text]:
    """Name the host with the shortest unique answers among those that nothing else explains."""
    plain = [
        one for one in figures if one.ok and one.e2e_p50_ms is not None and _is_plain(one.verdicts)
    ]
    if len(plain) < 2:
        return
    first = min(plain, key=_typical_ms)
    others = {one.name for one in plain} - {first.name}
    tied = [name for name in first.tied_with if name in others]
    answers = f"answers of {milliseconds(_typical_ms(first))} in the median"
    rest = f"; not told from it: {', '.join(tied)}" if tied else "; told from all other plain hosts"
    yield Text.assemble(("fastest", "bold"), f"  {first.name}: {answers}{rest}")


def _typical_ms(figures: Summary) -> float:
    return figures.unique_e2e_p50_ms or figures.e2e_p50_ms or 0.0


def _is_plain(verdicts: Sequence[Verdict]) -> bool:
    return all(verdict.code in PLAIN for verdict in verdicts)


def _client(fitness: Fitness) -> Text:
    """Say how late this machine itself was."""
    if not fitness.ok:
        return Text(client_warning(fitness), style="bold red")
    cpu = UNKNOWN if fitness.cpu_share is None else f"{fitness.cpu_share:.0%} of a core"
    return Text.assemble(
        ("this machine", "bold"),
        f"  was not the limit: its event loop {milliseconds(fitness.loop_lag_p99_ms)} late (p99), "
        f"sends {milliseconds(fitness.send_lag_p99_ms)} (p99), {cpu}",
    )


# --- a sweep --------------------------------------------------------------------------------------

Step = Callable[[Rung], str | Text]

LEVELS: Sequence[tuple[Column, Step]] = (
    (Column(title="at once", right=True), lambda step: f"{step.concurrency:,}"),
    (Column(title="ok", right=True), lambda step: f"{step.ok:,}/{step.requests:,}"),
    (Column(title="req/s", right=True), lambda step: _rate(step.rps)),
    (Column(title="tok/s", right=True), lambda step: _whole(step.output_tokens_per_s)),
    (Column(title="TTFT p50", right=True), lambda step: milliseconds(step.ttft_p50_ms)),
    (Column(title="TPOT p50", right=True), lambda step: milliseconds(step.tpot_p50_ms)),
    (Column(title="E2E p50", right=True), lambda step: milliseconds(step.e2e_p50_ms)),
    (Column(title="p95", right=True), lambda step: milliseconds(step.e2e_p95_ms)),
    (Column(title="good", right=True), lambda step: _share(step.good_share)),
)


def _sweep(told: Result, console: Console) -> Iterator[RenderableType]:
    columns = [
        (column, cell)
        for column, cell in LEVELS
        if column.title != "good" or any(step.good_share is not None for step in told.rungs)
    ]
    rows = [[cell(step) for _, cell in columns] for step in told.rungs]
    yield Text(told.summary.name, style="bold")
    yield fit_table([column for column, _ in columns], rows, console)
    yield Text(_best(told))


def _best(told: Result) -> str:
    parts = []
    if told.summary.good_share is not None:
        best = told.best_concurrency
        parts.append(
            f"{best} at once is the most that keeps the limits"
            if best
            else "no level keeps the limits"
        )
    knee = told.knee_concurrency
    parts.append(
        f"beyond {knee} at once it gains nothing"
        if knee
        else "its throughput still grew at the last level, or the levels lie too close to tell"
    )
    return "; ".join(parts)
