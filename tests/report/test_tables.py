"""Tables of any width: what stays is whole, what goes is said, and the least important goes first."""

import io
import re

import pytest
from rich.console import Console
from support.shots import no_books, twin, uniques
from support.standings import board, standing

from toolkit.bench.health import Fitness
from toolkit.bench.plan import BenchPlan
from toolkit.bench.results import results
from toolkit.cli.bench.table import page as bench_page
from toolkit.cli.board.table import board_table
from toolkit.cli.scout import page as scout_page
from toolkit.records import Host, Sighting
from toolkit.report.tables import Column, table_of

COLUMNS = (
    Column("host", lambda row: row[0], narrowest=5),
    Column("TTFT p50", lambda row: row[1], right=True, spare=1),
    Column("queue", lambda row: row[2], right=True, spare=2),
)
ROWS = [("alice", "12 ms", "3 ms"), ("bob", "9 ms", "-")]


def lines(*parts: object, width: int, is_terminal: bool = True) -> list[str]:
    """As a screen of this width shows them, without blanks at the ends of lines."""
    console = Console(
        width=width, file=io.StringIO(), force_terminal=is_terminal, color_system=None, highlight=False
    )  # fmt: skip
    for part in parts:
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return [
        re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()
        for line in console.file.getvalue().splitlines()
    ]


def three(width: int, *, is_terminal: bool = True) -> list[str]:
    console = Console(width=width, force_terminal=is_terminal)
    return lines(table_of(COLUMNS, ROWS, console), width=width, is_terminal=is_terminal)


def test_titles_stand_in_one_line_where_they_fit() -> None:
    # 5 + 2 + 8 + 2 + 5 characters
    assert three(22)[0] == "host   TTFT p50  queue"


def test_a_title_folds_between_words_before_a_column_goes() -> None:
    # 5 + 2 + 5 + 2 + 5: no word of a title is cut
    assert three(19)[:2] == ["        TTFT", "host     p50  queue"]


def test_the_largest_spare_goes_first_and_one_line_says_where_it_is_seen() -> None:
    seen = three(18)
    assert seen[0] == "host   TTFT p50"
    assert " ".join(seen[4:]) == (
        "Not shown: queue; a terminal of 19 columns shows all, and so does `--json`"
    )


def test_in_a_pipe_a_wider_terminal_is_no_way_out() -> None:
    assert " ".join(three(18, is_terminal=False)[4:]) == "Not shown: queue; `--json` has all"


def test_a_column_that_says_nothing_goes_before_one_that_counts_less() -> None:
    rows = [("alice", "-", "3 ms"), ("bob", "", "1 ms")]
    table = table_of(COLUMNS, rows, Console(width=13, force_terminal=True))
    assert lines(table, width=13)[0] == "host   queue"


def test_long_cells_fold_to_their_least_and_take_what_room_is_left() -> None:
    columns = (
        Column("host", lambda row: row[0]),
        Column("verdict", lambda row: row[1], narrowest=10),
    )
    rows = [("alice", "response cache, truncated output")]
    # 5 + 2 and 21 are left of 28
    seen = lines(table_of(columns, rows, Console(width=28)), width=28)
    assert seen[2:] == ["alice  response cache,", "       truncated output"]


# --- the verbs' own --------------------------------------------------------------------------------------


def scout(console: Console) -> object:
    seen = Sighting(
        name="alice", url="http://h:1", at=1.0, status="ok", engine="vllm", version="0.10.2",
        model="Qwen/Qwen2.5-7B-Instruct", max_model_len=32_768, gpu_memory_utilization=0.9,
        cache_dtype="auto", kv_cache_tokens=416_432, prefix_caching=True, running=12.0, waiting=3.0,
        kv_cache_usage=0.4, prefix_hit_ratio=0.2, ttft_p50_ms=219.0, ttft_p95_ms=2_370.0,
        queue_mean_ms=567.0, requests_total=1_022.0, latency_ms=0.8,
    )  # fmt: skip
    return scout_page([seen], console)


def standings(console: Console) -> object:
    one = standing(
        "alice", rps=12.3, output_tokens_per_s=1_234.0, ttft_p95_ms=2_370.0, p50_ms=3_379.0, p95_ms=5_000.0
    )  # fmt: skip
    return board_table(board(one), console)


def bench(console: Console) -> object:
    shots = uniques(12)
    judged = results(
        [(Host(name="alice", url="http://h:1"), [*shots, twin(shots[0], 12)], no_books())],
        plan=BenchPlan(), run="r", client_ok=True, limits=None,
    )  # fmt: skip
    idle = Fitness(loop_lag_p99_ms=1.5, send_lag_p99_ms=None, cpu_share=0.04)
    return next(bench_page(judged, idle, console))


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize(
    ("shown", "stay"),
    [
        (scout, "host status engine model max length KV tokens GPU mem cache dtype"),
        (standings, "# host req/s TTFT p50 E2E p95 errors verdict"),
        (bench, "host ok req/s TTFT p50 E2E p50 verdict"),
    ],
)
def test_at_every_width_the_right_columns_stay_with_their_whole_names(
    shown: object, stay: str, width: int
) -> None:
    assert callable(shown)
    seen = lines(shown(Console(width=width, force_terminal=True)), width=width)
    assert max(map(len, seen)) <= width
    rule = next(at for at, line in enumerate(seen) if line.startswith("─"))
    words = " ".join(seen[:rule]).split()
    assert sorted(set(stay.split()) - set(words)) == []
    # a quantile always says of what
    assert sum(word in ("p50", "p95", "mean") for word in words) == sum(
        word in ("TTFT", "E2E", "TPOT", "ITL") for word in words
    )
    assert (width < 200) or not any(line.startswith("Not shown") for line in seen)
