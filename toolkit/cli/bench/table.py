"""How `toolkit bench` shows results to a person: a table, what explains it, a sweep's levels, the client's health."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from toolkit.bench.health import Fitness
from toolkit.bench.ladder import Rung
from toolkit.bench.result import Result
from toolkit.bench.summary import HostSummary
from toolkit.cli.bench.show import ResultShow, client_warning
from toolkit.records import MOST_ERRORS, Verdict
from toolkit.report.tables import Column, notes, screen, table_of
from toolkit.units import DASH, latency, per_second, percent, whole

WIDEST_NAME = 40
WIDEST_VERDICTS = 44
PLAIN = ("clean", "not_judged", "same_engine")
"""Verdicts that accuse nobody."""
LEGEND = (
    "TTFT: send to the first chunk with a token. E2E: send to the last one. TPOT: (E2E - TTFT) / tokens "
    "after the first chunk. ITL: gap between chunks / tokens in it. ok: complete answers; errors are in no "
    "latency. req/s, tok/s: of ok answers, over the time from first send to last end. p50, p95: nearest rank, "
    "within 1 %."
)

Cell = Callable[[HostSummary], str | Text]


def _ok(figures: HostSummary) -> Text:
    fails = figures.errors > MOST_ERRORS * figures.requests
    style = "" if not figures.errors else "red" if fails else "yellow"
    return Text(f"{figures.ok:,}/{figures.requests:,}", style=style)


def _tokens_per_s(figures: HostSummary) -> str:
    """An estimate is marked: its tokens are counted chunks."""
    mark = "~" if figures.output_tokens_estimated and figures.output_tokens_per_s else ""
    return mark + whole(figures.output_tokens_per_s)


def _verdicts(figures: HostSummary) -> Text:
    accusing = [verdict.code for verdict in figures.verdicts if verdict.code not in PLAIN]
    codes = accusing or [verdict.code for verdict in figures.verdicts]
    if figures.errors > MOST_ERRORS * figures.requests:
        codes.insert(0, "failing")
        return Text(", ".join(code.replace("_", " ") for code in codes), style="red")
    text = ", ".join(code.replace("_", " ") for code in codes) or DASH
    style = "yellow" if accusing or "not_judged" in codes else "green" if "clean" in codes else ""
    return Text(text, style=style)


COLUMNS: Sequence[tuple[Column, Cell]] = (
    (Column(title="ok", right=True), _ok),
    (Column(title="req/s", right=True, spare=1), lambda seen: per_second(seen.rps)),
    (Column(title="tok/s", right=True, spare=2), _tokens_per_s),
    (Column(title="TTFT p50", right=True, spare=3), lambda seen: latency(seen.ttft_p50_ms)),
    (Column(title="p95", right=True, spare=8), lambda seen: latency(seen.ttft_p95_ms)),
    (Column(title="TPOT p50", right=True, spare=7), lambda seen: latency(seen.tpot_p50_ms)),
    (Column(title="ITL p95", right=True, spare=9), lambda seen: latency(seen.itl_p95_ms)),
    (Column(title="E2E p50", right=True), lambda seen: latency(seen.e2e_p50_ms)),
    (Column(title="p95", right=True, spare=6), lambda seen: latency(seen.e2e_p95_ms)),
    (Column(title="twins", right=True, spare=5), lambda seen: latency(seen.twin_e2e_p50_ms)),
    (Column(title="RTT", right=True, spare=10), lambda seen: latency(seen.rtt_ms)),
)
HOST = (Column(title="host", widest=WIDEST_NAME), lambda seen: seen.name)
LEVEL = (Column(title="at once", right=True), lambda seen: whole(seen.concurrency))
"""Of a sweep: the level whose figures stand in the row."""
GOOD: Sequence[tuple[Column, Cell]] = (
    (Column(title="good", right=True), lambda seen: percent(seen.good_share)),
    (Column(title="good/s", right=True, spare=4), lambda seen: per_second(seen.goodput)),
)
VERDICTS = (Column(title="verdict", widest=WIDEST_VERDICTS), _verdicts)


class ResultTable(ResultShow):
    """Prints one table, and below it what a person should know."""

    def results(self, told: Sequence[Result], fitness: Fitness) -> None:
        """Print everything at the end of a run."""
        console = screen()
        for part in page(told, fitness, console):
            console.print(part)


def page(told: Sequence[Result], fitness: Fitness, console: Console) -> Iterator[RenderableType]:
    """The table and the sentences below it, for a screen of the console's width."""
    figures = [each.summary for each in told]
    sweeps = [each for each in told if each.rungs]
    columns = [HOST, *((LEVEL,) if sweeps else ()), *COLUMNS, *_good(figures), VERDICTS]
    yield table_of(columns, figures, console)
    below = list(notes(_notes(figures)))
    if below:
        yield Text()
        yield from below
    for each in sweeps:
        yield Text()
        yield from _sweep(each, console)
    yield Text()
    yield from _fastest(figures)
    yield from _client(fitness)
    yield Text(LEGEND, style="dim")


def _good(figures: Sequence[HostSummary]) -> Sequence[tuple[Column, Cell]]:
    """The columns of a run with limits."""
    return GOOD if any(one.good_share is not None for one in figures) else ()


def _notes(figures: Sequence[HostSummary]) -> Iterator[tuple[str, str, str]]:
    """Why nothing was answered, then the verdicts' evidence."""
    for one in figures:
        for title, sentence in _errors(one):
            yield one.name, title, sentence
        for verdict in one.verdicts:
            if verdict.code != "clean":
                yield one.name, _title(verdict), verdict.evidence


def _title(verdict: Verdict) -> str:
    title = verdict.code.replace("_", " ")
    return title if verdict.code in PLAIN else f"{title} ({verdict.confidence})"


def _errors(figures: HostSummary) -> Iterator[tuple[str, str]]:
    kind = next(iter(figures.error_kinds), "")
    if figures.error:
        # the host's own words do not tell that they came with a status
        yield "no answer", f"{kind}: {figures.error}" if kind.startswith("http") else figures.error
    elif figures.errors:
        kinds = ", ".join(f"{count} {kind}" for kind, count in figures.error_kinds.items())
        yield "errors", kinds


def _fastest(figures: Sequence[HostSummary]) -> Iterator[Text]:
    """Name the host with the shortest unique answers among those that were judged and that nothing else explains."""
    plain = [
        one for one in figures if one.ok and one.e2e_p50_ms is not None and _is_clean(one.verdicts)
    ]
    if len(plain) < 2:
        return
    first = min(plain, key=_typical_ms)
    others = {one.name for one in plain} - {first.name}
    tied = [name for name in first.tied_with if name in others]
    answers = f"answers of {latency(_typical_ms(first))} in the median"
    rest = (
        f"does not tell it from {', '.join(tied)}"
        if tied
        else "tells it from every other clean host"
    )
    yield Text.assemble(("fastest", "bold"), f"  {first.name}: {answers}; this run {rest}")


def _typical_ms(figures: HostSummary) -> float:
    return figures.unique_e2e_p50_ms or figures.e2e_p50_ms or 0.0


def _is_clean(verdicts: Sequence[Verdict]) -> bool:
    return any(verdict.code == "clean" for verdict in verdicts)


def _client(fitness: Fitness) -> Iterator[Text]:
    """Say how late this machine itself was, if anything was measured."""
    if not fitness.ok:
        yield Text(client_warning(fitness), style="bold red")
        return
    known = {
        f"its event loop {latency(fitness.loop_lag_p99_ms)} late (p99)": fitness.loop_lag_p99_ms,
        f"sends {latency(fitness.send_lag_p99_ms)} late (p99)": fitness.send_lag_p99_ms,
        f"{percent(fitness.cpu_share)} of a core": fitness.cpu_share,
    }
    told = ", ".join(words for words, figure in known.items() if figure is not None)
    if told:
        yield Text.assemble(("this machine", "bold"), f"  was not the limit: {told}")


# --- a sweep --------------------------------------------------------------------------------------

Step = Callable[[Rung], str | Text]

LEVELS: Sequence[tuple[Column, Step]] = (
    (Column(title="at once", right=True), lambda step: f"{step.concurrency:,}"),
    (Column(title="ok", right=True), lambda step: f"{step.ok:,}/{step.requests:,}"),
    (Column(title="req/s", right=True), lambda step: per_second(step.rps)),
    (Column(title="tok/s", right=True, spare=1), lambda step: whole(step.output_tokens_per_s)),
    (Column(title="TTFT p50", right=True, spare=3), lambda step: latency(step.ttft_p50_ms)),
    (Column(title="TPOT p50", right=True, spare=4), lambda step: latency(step.tpot_p50_ms)),
    (Column(title="E2E p50", right=True), lambda step: latency(step.e2e_p50_ms)),
    (Column(title="p95", right=True, spare=2), lambda step: latency(step.e2e_p95_ms)),
    (Column(title="good", right=True), lambda step: percent(step.good_share)),
)


def _sweep(told: Result, console: Console) -> Iterator[RenderableType]:
    has_limits = any(step.good_share is not None for step in told.rungs)
    columns = [pair for pair in LEVELS if pair[0].title != "good" or has_limits]
    yield Text(told.summary.name, style="bold")
    yield table_of(columns, told.rungs, console)
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
    return "; ".join([*parts, _growth(told)])


def _growth(told: Result) -> str:
    """Where more requests at once stop to gain anything, or why nobody can tell."""
    answered = [step for step in told.rungs if step.rps]
    if not answered:
        return "nothing was answered at any level"
    if told.knee_concurrency:
        return f"beyond {told.knee_concurrency} at once it answers no more a second, only later"
    if len(answered) == 1:
        return "answered at one level only, so nobody can tell where it stops to gain"
    fastest = max(answered, key=lambda step: step.rps or 0.0)
    if fastest is answered[-1]:
        return "its throughput still grew at the last level"
    return f"most a second at {fastest.concurrency} at once; answers took not much longer beyond it"
