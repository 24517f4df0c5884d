"""How `toolkit bench` shows results to a person: a table, what explains it, a sweep's levels, the client's health."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from toolkit.bench.health import Fitness
from toolkit.bench.results import Result
from toolkit.bench.summary import HostSummary
from toolkit.report.tables import Column, notes, table_of
from toolkit.units import DASH, latency, per_second, percent, whole

WIDEST_NAME = 40
WIDEST_VERDICTS = 44
PLAIN = ("clean", "not_judged", "same_engine")
"""Verdicts that accuse nobody."""
LEGEND = (
    "TTFT: send to the first chunk with a token. E2E: send to the last one. TPOT: (E2E - TTFT) / tokens "
    "after the first chunk. ITL: gap between chunks / tokens in it. ok: complete answers; latencies are "
    "of these only. req/s, tok/s: of ok answers, over the time from first send to last end. p50, p95: nearest rank, "
    "within 1 %."
)


def _ok(figures: HostSummary) -> Text:
    style = "" if not figures.errors else "red" if figures.is_failing else "yellow"
    return Text(f"{figures.ok:,}/{figures.requests:,}", style=style)


def _tokens_per_s(figures: HostSummary) -> str:
    """An estimate is marked: its tokens are counted chunks."""
    mark = "~" if figures.output_tokens_estimated and figures.output_tokens_per_s else ""
    return mark + whole(figures.output_tokens_per_s)


def _verdicts(figures: HostSummary) -> Text:
    accusing = [verdict.code for verdict in figures.verdicts if verdict.code not in PLAIN]
    codes = accusing or [verdict.code for verdict in figures.verdicts]
    style = "yellow" if accusing or "not_judged" in codes else "green" if "clean" in codes else ""
    if figures.is_failing:
        codes, style = ["failing", *codes], "red"
    return Text(", ".join(codes).replace("_", " ") or DASH, style=style)


FIGURES: Mapping[str, Column] = {
    "ok": Column("ok", _ok, right=True),
    "rps": Column("req/s", lambda one: per_second(one.rps), right=True, spare=2),
    "output_tokens_per_s": Column("tok/s", _tokens_per_s, right=True, spare=3),
    "ttft_p50_ms": Column("TTFT p50", lambda one: latency(one.ttft_p50_ms), right=True, spare=1),
    "ttft_mean_ms": Column(
        "TTFT mean", lambda one: latency(one.ttft_mean_ms), right=True, spare=11
    ),
    "ttft_p95_ms": Column("TTFT p95", lambda one: latency(one.ttft_p95_ms), right=True, spare=8),
    "tpot_p50_ms": Column("TPOT p50", lambda one: latency(one.tpot_p50_ms), right=True, spare=7),
    "tpot_mean_ms": Column(
        "TPOT mean", lambda one: latency(one.tpot_mean_ms), right=True, spare=12
    ),
    "itl_p95_ms": Column("ITL p95", lambda one: latency(one.itl_p95_ms), right=True, spare=9),
    "e2e_p50_ms": Column("E2E p50", lambda one: latency(one.e2e_p50_ms), right=True),
    "e2e_mean_ms": Column("E2E mean", lambda one: latency(one.e2e_mean_ms), right=True, spare=11),
    "e2e_p95_ms": Column("E2E p95", lambda one: latency(one.e2e_p95_ms), right=True, spare=6),
    "twin_e2e_p50_ms": Column(
        "repeat E2E p50", lambda one: latency(one.twin_e2e_p50_ms), right=True, spare=5
    ),
    "rtt_ms": Column("RTT", lambda one: latency(one.rtt_ms), right=True, spare=10),
}
OF_A_LEVEL = "ok rps output_tokens_per_s ttft_p50_ms tpot_p50_ms e2e_p50_ms e2e_p95_ms".split()
HOST = Column("host", lambda one: one.name, widest=WIDEST_NAME, narrowest=16)
AT_ONCE = Column("at once", lambda one: whole(one.concurrency), right=True)
"""Of a sweep: the level whose figures stand in the row."""
GOOD = Column("good", lambda one: percent(one.good_share), right=True)
GOODPUT = Column("good/s", lambda one: per_second(one.goodput), right=True, spare=4)
VERDICTS = Column("verdict", _verdicts, widest=WIDEST_VERDICTS, narrowest=16)


def page(judged: Sequence[Result], fitness: Fitness, console: Console) -> Iterator[RenderableType]:
    """The table and the sentences below it, for a screen of the console's width."""
    figures = [each.summary for each in judged]
    sweeps = [each for each in judged if each.levels]
    level = [AT_ONCE] if sweeps else []
    good = [GOOD, GOODPUT] if any(one.good_share is not None for one in figures) else []
    yield table_of([HOST, *level, *FIGURES.values(), *good, VERDICTS], figures, console)
    below = list(notes(why_sentences(figures)))
    if below:
        yield Text()
        yield from below
    of_a_level = [AT_ONCE, *(FIGURES[key] for key in OF_A_LEVEL), *good[:1]]
    for each in sweeps:
        yield Text()
        yield Text(each.summary.name, style="bold")
        yield table_of(of_a_level, each.levels, console)
        yield Text(sweep_sentence(each))
    yield Text()
    if first := fastest(figures):
        yield Text.assemble(("fastest", "bold"), f"  {first}")
    if fitness.warning:
        yield Text(fitness.warning, style="bold red")
    elif measured := machine_sentence(fitness):
        yield Text.assemble(("this machine", "bold"), f" {measured.removeprefix('this machine')}")
    yield Text(LEGEND, style="dim")


def machine_sentence(fitness: Fitness) -> str | None:
    """Whether this machine was the limit, and by what it is known; None where nothing was measured."""
    known = {
        f"its event loop {latency(fitness.loop_lag_p99_ms)} late (p99)": fitness.loop_lag_p99_ms,
        f"sends {latency(fitness.send_lag_p99_ms)} late (p99)": fitness.send_lag_p99_ms,
        f"{percent(fitness.cpu_share)} of a core": fitness.cpu_share,
    }
    measured = ", ".join(words for words, figure in known.items() if figure is not None)
    return fitness.warning or (f"this machine was not the limit: {measured}" if measured else None)


def why_sentences(figures: Sequence[HostSummary]) -> Iterator[tuple[str, str, str]]:
    """Why nothing was answered, then the verdicts' evidence: host, title, sentence."""
    for one in figures:
        kind = next(iter(one.error_kinds), "")
        if one.error:
            # the host's own words do not tell that they came with a status
            why = f"{kind}: {one.error}" if kind.startswith("http") else one.error
            yield one.name, "no answer", why
        elif one.errors:
            kinds = ", ".join(f"{count} {kind}" for kind, count in one.error_kinds.items())
            yield one.name, "errors", kinds
        for verdict in one.verdicts:
            if verdict.code != "clean":
                yield one.name, verdict.title, verdict.because


def fastest(figures: Sequence[HostSummary]) -> str | None:
    """Name the host with the shortest unique answers among those that were judged and that nothing else explains."""

    def typical_ms(one: HostSummary) -> float:
        return one.unique_e2e_p50_ms or one.e2e_p50_ms or 0.0

    clean = [
        one
        for one in figures
        if one.ok
        and one.e2e_p50_ms is not None
        and any(verdict.code == "clean" for verdict in one.verdicts)
    ]
    if len(clean) < 2:
        return None
    first = min(clean, key=typical_ms)
    tied = ", ".join(name for name in first.tied_with if any(one.name == name for one in clean))
    answers = f"answers of {latency(typical_ms(first))} in the median"
    rest = f"shows no difference to {tied}" if tied else "shows it ahead of every other clean host"
    return f"{first.name}: {answers}; this run {rest}"


def sweep_sentence(sweep: Result) -> str:
    """Which level keeps the limits, and where more requests at once stop to gain anything, or why nobody can tell."""
    parts = []
    if sweep.summary.good_share is not None:
        best = sweep.best_concurrency
        kept = f"{best} at once is the most within the limits"
        parts.append(kept if best else "no level is within the limits")
    answered = [level for level in sweep.levels if level.rps]
    fastest = max(answered, key=lambda level: level.rps or 0.0, default=None)
    if fastest is None:
        parts.append("nothing was answered at any level")
    elif sweep.knee_concurrency:
        at = sweep.knee_concurrency
        parts.append(f"beyond {at} at once it answers no more requests per second, only later")
    elif len(answered) == 1:
        parts.append(
            "answered at one level only, which does not show where throughput stops growing"
        )
    elif fastest is answered[-1]:
        parts.append("its throughput still grew at the last level")
    else:
        parts.append(
            f"highest throughput at {fastest.concurrency} at once, and answers took little longer above it"
        )
    return "; ".join(parts)
