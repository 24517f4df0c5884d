"""What a person reads of a bench: its table, the sentences below it, the line that moves meanwhile."""

import csv
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest
from rich.console import Console
from support.screens import on_a_terminal
from support.shots import AT, books, failed, no_books, shot, twin, uniques

from toolkit.bench.health import Fitness
from toolkit.bench.plan import BenchPlan
from toolkit.bench.results import Result, results
from toolkit.bench.summary import GoodputLimits
from toolkit.cli.bench.files import csv_text
from toolkit.cli.bench.progress import BenchProgress
from toolkit.cli.bench.table import page
from toolkit.cli.waiting import Waiting
from toolkit.records import Host, RequestRecord
from toolkit.sim.app import SimThread, serve_in_thread

IDLE = Fitness(loop_lag_p99_ms=1.5, send_lag_p99_ms=None, cpu_share=0.04)
PROGRAM = [sys.executable, "-c", "from toolkit.cli import main; main()", "bench"]


def told(
    limits: GoodputLimits | None = None,
    plan: BenchPlan | None = None,
    **hosts: Sequence[RequestRecord],
) -> list[Result]:
    runners = [
        (Host(name=name, url=f"http://{name}:1"), shots, no_books())
        for name, shots in hosts.items()
    ]
    return results(runners, plan=plan or BenchPlan(), run="r", client_ok=True, limits=limits)


def screen(those: Sequence[Result], width: int = 200, machine: Fitness = IDLE) -> list[str]:
    """The lines that a screen of this width shows."""
    console = Console(width=width, file=io.StringIO(), highlight=False, color_system=None)
    for part in page(those, machine, console):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def row(lines: Sequence[str], name: str) -> list[str]:
    """The cells of a host's row, split at spaces; `12 ms` becomes two."""
    cells = [line.split() for line in lines if line.split()[:1] == [name]]
    (found,) = [each for each in cells if len(each) > 1]  # not the title of its sweep
    return found


def named(result: Result, name: str) -> Result:
    return replace(result, summary=replace(result.summary, name=name))


# --- the table -------------------------------------------------------------------------------------------


def test_a_row_holds_the_hosts_figures() -> None:
    # 8 at once, 1 s each: first token after 0.1 s, 90 more of 10 ms
    shots = uniques(8, tokens=91, token_ms=10.0)
    lines = screen(told(alice=shots))
    head = (
        "host ok req/s tok/s TTFT p50 TTFT mean TTFT p95 TPOT p50 TPOT mean ITL p95 E2E p50 E2E mean E2E p95"
        " repeat E2E p50 RTT verdict"
    )
    assert lines[0].split() == head.split()
    # 8 requests and 728 tokens in 1 s; a histogram's value may be 1 % off
    assert row(lines, "alice")[:4] == ["alice", "8/8", "8.0", "728"]
    assert float(row(lines, "alice")[4]) == pytest.approx(100, rel=0.01)
    assert row(lines, "alice")[-1] == "judged"


def test_counted_chunks_are_marked_as_an_estimate() -> None:
    lines = screen(told(alice=uniques(8, output_tokens_estimated=True), bob=uniques(8)))
    assert row(lines, "alice")[3].startswith("~")
    assert not row(lines, "bob")[3].startswith("~")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 150])
def test_a_narrow_screen_keeps_who_how_many_how_long_and_why(width: int) -> None:
    lines = screen(told(alice=uniques(16), bob=[failed(0)]), width)
    table = lines[: 4 + next(at for at, line in enumerate(lines) if line.startswith("─"))]
    assert max(map(len, lines)) <= width
    rule = next(at for at, line in enumerate(lines) if line.startswith("─"))
    head = " ".join(lines[:rule]).split()
    for words in ("host", "ok", "E2E p50", "verdict"):
        assert set(words.split()) <= set(head)
    assert row(table, "alice")[:2] == ["alice", "16/16"]
    assert row(table, "bob")[:2] == ["bob", "0/1"]


@pytest.mark.parametrize("name", ["[red]bold[/red]", "a$x$", "日本語のホスト", "[/]"])
def test_a_name_is_a_name_and_no_markup(name: str) -> None:
    (alice,) = told(alice=[failed(0, kind="http_503")])
    lines = screen([named(alice, name)])
    assert row(lines, name)[:2] == [name, "0/1"]
    assert any(line.startswith(f"no answer  {name}: ") for line in lines)


def test_a_name_that_begins_a_formula_is_text_in_the_csv() -> None:
    (alice,) = told(alice=uniques(8))
    (line,) = csv.DictReader(io.StringIO(csv_text([named(alice, "=1+1")])))
    assert (line["name"], line["ok"]) == ("'=1+1", "8")


def test_a_name_of_sixty_characters_is_folded_and_costs_no_column() -> None:
    (alice,) = told(alice=uniques(8))
    lines = screen([named(alice, "a" * 30 + "b" * 30)])
    assert lines[2].startswith("a" * 30 + "b" * 10 + " ")
    assert lines[3].split() == ["b" * 20]
    assert lines[0].split()[-2:] == ["RTT", "verdict"]


def test_limits_add_who_kept_them() -> None:
    shots = [*uniques(6), *uniques(2, start=6, token_ms=40.0)]
    (alice,) = told(limits=GoodputLimits(tpot_ms=30), alice=shots)
    lines = screen([alice])
    assert lines[0].split()[-3:] == ["good", "good/s", "verdict"]
    assert "75%" in row(lines, "alice")  # 6 of 8


# --- the sentences ---------------------------------------------------------------------------------------


def test_hosts_of_one_sentence_share_a_line() -> None:
    dead = [failed(slot, kind="connect", error="connection refused") for slot in range(4)]
    lines = screen(told(a=dead, b=dead))
    assert "no answer  a, b: connection refused (4 of 4 requests)" in lines


def test_a_refusal_in_the_hosts_own_words_comes_with_its_status() -> None:
    lines = screen(told(alice=[failed(0, kind="http_500", error="boom")]))
    assert "no answer  alice: http_500: boom (1 of 1 requests)" in lines


def test_errors_beside_answers_are_counted_by_kind() -> None:
    lines = screen(told(alice=[*uniques(4), failed(4), failed(5), failed(6, kind="timeout")]))
    assert "errors  alice: 2 http_500, 1 timeout" in lines


@pytest.mark.parametrize(
    ("slow_ms", "sentence"),
    [
        (20.0, "this run shows no difference to b"),
        (40.0, "this run shows it ahead of every other clean host"),
    ],
)
def test_the_fastest_host_is_named_with_those_that_may_be_as_fast(
    slow_ms: float, sentence: str
) -> None:
    hosts = {"a": uniques(64), "b": uniques(64, token_ms=slow_ms)}
    for first in hosts.values():
        first += [twin(first[n], 64 + n) for n in range(8)]
    runners = [(Host(name=n, url=f"http://{n}:1"), s, books(s, name=n)) for n, s in hosts.items()]
    lines = screen(results(runners, plan=BenchPlan(), run="r", client_ok=True, limits=None))
    (line,) = [line for line in lines if line.startswith("fastest")]
    # 100 ms, and 99 tokens of 20 ms
    assert line.startswith("fastest  a: answers of 2,0")
    assert line.endswith(sentence)


def test_who_was_not_judged_is_not_named_the_fastest() -> None:
    lines = screen(told(a=uniques(64), b=uniques(64)))
    assert not [line for line in lines if line.startswith("fastest")]


def test_where_one_host_answers_nobody_is_the_fastest() -> None:
    lines = screen(told(a=uniques(16), dead=[failed(0)]))
    assert not [line for line in lines if line.startswith("fastest")]


def test_a_machine_says_of_itself_only_what_was_measured() -> None:
    assert "this machine  was not the limit: its event loop 1.5 ms late (p99), 4% of a core" in (
        screen(told(a=uniques(8)))
    )
    unknown = Fitness(loop_lag_p99_ms=None, send_lag_p99_ms=None, cpu_share=None)
    assert not [line for line in screen(told(a=[]), machine=unknown) if "this machine" in line]
    late = Fitness(loop_lag_p99_ms=None, send_lag_p99_ms=60.0, cpu_share=None)
    assert any(
        line.startswith("Warning: this machine was the limit: requests left 60 ms late")
        for line in screen(told(a=uniques(8)), machine=late)
    )


# --- a sweep ---------------------------------------------------------------------------------------------


def level(concurrency: int, e2e_ms: float) -> list[RequestRecord]:
    """Four waves of so many at once."""
    return [
        shot(
            100 * concurrency + number,
            tokens=2,
            first_ms=e2e_ms / 2,
            token_ms=e2e_ms / 2,
            concurrency=concurrency,
            planned_at=AT + 10 * concurrency + number // concurrency * e2e_ms / 1000,
        )
        for number in range(4 * concurrency)
    ]


def sweep(*levels: Sequence[RequestRecord], limits: GoodputLimits | None = None) -> list[Result]:
    shots = [each for one in levels for each in one]
    return told(plan=BenchPlan(levels=(1, 2, 4)), limits=limits, alice=shots)


@pytest.mark.parametrize(
    ("levels", "sentence"),
    [
        # requests a second: 10, 20, 40
        (
            (level(1, 100), level(2, 100), level(4, 100)),
            "its throughput still grew at the last level",
        ),
        # 10, 20, 20
        (
            (level(1, 100), level(2, 100), level(4, 200)),
            "beyond 2 at once it answers no more requests per second, only later",
        ),
        # 40, and 5 / 0.137 = 36.5: fewer, and no half as long again
        (
            (level(4, 100), level(5, 137)),
            "highest throughput at 4 at once, and answers took little longer above it",
        ),
        (
            (level(4, 100),),
            "answered at one level only, which does not show where throughput stops growing",
        ),
        (([failed(n, concurrency=1) for n in range(4)],), "nothing was answered at any level"),
    ],
)
def test_a_sweep_says_where_more_at_once_stops_to_gain(
    levels: Sequence[Sequence[RequestRecord]], sentence: str
) -> None:
    assert sentence in screen(sweep(*levels))


def test_a_sweeps_row_says_of_which_level_it_is() -> None:
    lines = screen(sweep(level(1, 100), level(2, 100), level(4, 200)))
    assert lines[0].split()[:4] == ["host", "at", "once", "ok"]
    assert row(lines, "alice")[:3] == ["alice", "2", "8/8"]
    assert "at once" not in screen(told(alice=uniques(8)))[0]


def test_a_sweep_with_limits_names_the_most_that_keeps_them() -> None:
    levels = (level(1, 100), level(2, 100), level(4, 200))
    kept = screen(sweep(*levels, limits=GoodputLimits(e2e_ms=150)))
    assert any(line.startswith("2 at once is the most within the limits; ") for line in kept)
    none = screen(sweep(*levels, limits=GoodputLimits(e2e_ms=1)))
    assert any(line.startswith("no level is within the limits; ") for line in none)
    without = screen(sweep(*levels))
    assert not any("limits" in line for line in without)


# --- the line that moves -----------------------------------------------------------------------------------


def test_progress_is_the_share_of_requests_of_all_hosts_and_levels() -> None:
    progress = BenchProgress(BenchPlan(requests=4, levels=(1, 2)), hosts=["a", "b"])
    for _ in range(6):
        progress.add(shot(0))
    # four waves at least: (4 + 8) at 2 hosts
    assert progress.share(elapsed_s=1000.0) == 6 / 24


@pytest.mark.parametrize(
    ("plan", "share"),
    [
        (BenchPlan(requests=None, duration_s=20), 0.5),
        (BenchPlan(requests=None, duration_s=20, sequential=True), 0.25),  # one of two hosts
        (BenchPlan(requests=None, duration_s=5, levels=(1, 2, 4)), 10 / 15),
        (BenchPlan(requests=None, duration_s=5), 1.0),  # answers that come later
        (BenchPlan(requests=1, duration_s=100), 0.5),  # one of two requests goes before 10 of 100 s
        (BenchPlan(requests=1000, duration_s=20), 0.5),
    ],
)
def test_progress_is_the_share_of_what_will_end_the_run(plan: BenchPlan, share: float) -> None:
    progress = BenchProgress(plan, hosts=["a", "b"])
    progress.add(shot(0))
    assert progress.share(elapsed_s=10.0) == pytest.approx(share)


def test_the_line_tells_what_is_going_on() -> None:
    progress = BenchProgress(BenchPlan(), hosts=["a"])
    assert progress.line(0.0, 0) == "scraping every host"
    assert progress.line(0.0, 8) == "no answer yet, 8 under way"
    progress.add(shot(0, kind="warmup"))
    assert progress.line(0.0, 8) == "warm-up: 1 over, 8 under way"
    for each in (shot(0, tokens=100), shot(1, tokens=200), failed(2)):
        progress.add(each)
    # 2 answers of 300 tokens in 4 s
    assert progress.line(4.0, 5) == "0.5 requests/s, 75 tokens/s, 5 under way, 1 failed"


Start = Callable[..., SimThread]
"""Starts a simulated server; its arguments change what it is."""


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda **changes: stack.enter_context(serve_in_thread("gptq-int4", **changes))


@pytest.mark.slow
def test_on_a_terminal_a_line_moves_and_is_gone_at_the_end(start: Start) -> None:
    words = ["--no-store", "--num-prompts", "24", "--max-tokens", "64"]
    received = on_a_terminal([*PROGRAM, start(time_scale=0.5).url, *words], columns=150)
    moving, gone, table = received.rpartition("\x1b[2K\r")
    assert "Measuring: " in moving
    assert "requests/s" in moving
    assert "0 failed" in moving
    assert gone
    assert "24/24" in table
    assert "requests/s" not in table


def test_each_host_and_each_level_of_it_is_a_step() -> None:
    assert BenchProgress(BenchPlan(), hosts=["a", "b"]).steps() == ["a", "b"]
    progress = BenchProgress(BenchPlan(levels=(1, 8)), hosts=["a", "b"])
    steps = ["a (1 at once)", "b (1 at once)", "a (8 at once)", "b (8 at once)"]
    assert progress.steps() == steps
    progress.waiting = Waiting("Measuring", progress.steps())
    progress.over("b", 1, [shot(0), failed(1)])
    left = "a (1 at once), b (1 at once) and a (8 at once)"
    assert f"1 of 4 done, not yet {left} ..." in progress.waiting.line()


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_a_terminal_without_colours_gets_none(start: Start, environment: dict[str, str]) -> None:
    words = ["--no-store", "--num-prompts", "4", "--max-tokens", "4"]
    received = on_a_terminal([*PROGRAM, start(time_scale=0.01).url, *words], **environment)
    assert "4/4" in received
    assert "\x1b[3" not in received  # the foreground colours 30 to 37
    assert "\x1b[9" not in received  # and the bright ones
