from typing import Any

import pytest
from leaderboard_page.sections import (
    bench_results,
    difference_from,
    differences,
    feeding,
    host_facts,
    workload,
)
from support import shots
from support.page_html import Node, tree
from support.standings import board, standing

from toolkit.bench.summary import summary
from toolkit.records import Event, Run, Sighting
from toolkit.units import UNKNOWN, time_of_day

AT = 1_750_000_000.0


def cells(table: Node) -> dict[str, list[str]]:
    """First cell of each row -> the others."""
    body = table.one("tbody").all("tr")
    return {row.one("th").text: [cell.text for cell in row.all("td")] for row in body}


def test_hosts_are_held_against_the_first_chosen() -> None:
    two = [standing("a", rps=10.0), standing("b", rps=7.5)]
    found = cells(tree(differences(two, {})).one("table"))
    assert found["requests/s"] == ["10.0", "7.50 -25.0 %"]
    assert found["cache hits"] == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize(
    ("mine", "first", "text"),
    [
        (110.0, 100.0, "+10.0 %"),
        (90.0, 100.0, "-10.0 %"),
        (100.0, 100.0, "equal"),
        (299.0, 100.0, "+199.0 %"),
        (300.0, 100.0, "3.0 times"),
        (5.0, 0.0, None),
        (None, 100.0, None),
        (100.0, None, None),
    ],
)
def test_a_difference_is_a_share_and_a_large_one_a_factor(
    mine: float | None, first: float | None, text: str | None
) -> None:
    assert difference_from(mine, first) == text


# --- one host -------------------------------------------------------------------------------------


def sighting(after_s: float, **changes: Any) -> Sighting:
    usual: dict[str, Any] = {"name": "a", "url": "u", "at": AT + after_s, "status": "ok"}
    return Sighting(**usual | changes)


def facts(**changes: Any) -> Node:
    usual: dict[str, Any] = {"kinds": {}, "sightings": (), "events": ()}
    return tree(host_facts(standing("a", ok=90, errors=10), **usual | changes))


def test_errors_stand_by_kind_with_their_sum_and_what_is_missing_is_said() -> None:
    found = facts(kinds={"http_503": 7, "connect": 3})
    kinds = [line.text for line in found.one("ul", class_="kinds").all("li")]
    assert kinds == ["http 503 7", "connect 3"]
    assert "10 of 100 requests in the window" in found.text
    assert "None in this window." in facts().text
    assert "toolkit scout --watch" in facts().text


def test_the_configuration_is_that_of_the_last_sighting_that_has_one() -> None:
    found = facts(
        sightings=[
            sighting(0, config_hash="old", max_model_len=4096),
            sighting(30, config_hash="new", max_model_len=8192, prefix_caching=True),
            sighting(60, status="down", error="connection refused"),
        ]
    )
    pairs = found.all("dl", class_="pairs")[1]
    names = [name.text for name in pairs.all("dt")]
    values = [value.text for value in pairs.all("dd")]
    assert dict(zip(names, values, strict=True)) == {
        "max model length": "8,192",
        "prefix caching": "on",
        "settings' hash": "new",
    }
    assert f"As seen at {time_of_day(AT + 30)}" in found.text


def test_the_history_holds_what_changed_newest_first_and_only_this_hosts() -> None:
    found = facts(
        sightings=[
            sighting(0, config_hash="x"),
            sighting(10, config_hash="x"),
            sighting(20, status="down", error="connection refused"),
            sighting(30, status="down", error="connection refused"),
        ],
        events=[
            Event(run="r", at=AT + 5, kind="phase", text="full"),
            Event(run="r", name="b", url="v", at=AT + 6, kind="mark", text="not mine"),
            Event(run="r", name="a", url="u", at=AT + 25, kind="mark", text="swapped"),
        ],
    )
    assert [line.text for line in found.one("ul", class_="history").all("li")] == [
        f"{time_of_day(AT + 30)} down, connection refused",
        f"{time_of_day(AT + 25)} a swapped",
        f"{time_of_day(AT + 20)} down, connection refused",
        f"{time_of_day(AT + 5)} phase: full",
        f"{time_of_day(AT)} ok",
    ]


# --- bench and workload ---------------------------------------------------------------------------


def test_a_benchs_figures_stand_beside_the_blasts_of_the_same_host() -> None:
    # 16 answers of 2,080 ms in two waves, 2.5 s apart: 16 / 4.58 s
    timed = [shots.shot(slot) for slot in range(16)]
    own = summary(timed, name="alice", url="http://h:1", run="abc")
    stranger = summary(timed, name="stranger", url="v", run="abc")
    shown = board(standing("alice", rps=12.0, ttft_p50_ms=50.0, p95_ms=500.0))
    bench = Run(id="abc", verb="bench", started_at=AT)
    (row,) = cells(tree(bench_results(bench, [own, stranger], shown, {})).one("table")).items()
    host, (bench_rps, blast_rps, bench_ttft, blast_ttft, bench_p95, blast_p95) = row
    assert (host, blast_rps, blast_ttft, blast_p95) == ("alice", "12.0", "50.0 ms", "500 ms")
    assert float(bench_rps) == pytest.approx(16 / 4.58, rel=0.01)
    assert float(bench_ttft.split()[0]) == pytest.approx(100, rel=0.01)
    assert float(bench_p95.split()[0]) == pytest.approx(2.08, rel=0.01)
    assert "toolkit bench HOSTS" in tree(bench_results(None, [], shown, {})).text


def test_the_workload_counts_who_answers_from_memory_and_says_what_is_missing() -> None:
    shown = board(
        standing("a", hit_share=0.8), standing("b", 2, hit_share=0.1), standing("c", 3, errors=100)
    )
    text = tree(workload(shown, "contest", None)).text
    for expected in (
        "profile contest",
        "requests in the window 2,800",
        "cache hits 2 of 3",
        "mostly from memory 1",
        "toolkit capture",
    ):
        assert expected in text


def test_a_capture_shows_what_clients_sent_and_what_was_lost() -> None:
    captured = {
        "requests": 245,
        "unique": 2,
        "repeat_share": 237 / 239,
        "top": [{"prompt_key": "b4", "count": 120, "share": 120 / 239}],
        "from_ts": AT,
        "to_ts": AT + 22,
        "kernel_drops": 3,
        "gaps": 1,
        "app_drops": 0,
    }
    text = tree(workload(board(), "contest", captured)).text
    for expected in (
        "requests captured 245",
        "unlike prompts 2",
        # 237 / 239 and 120 / 239
        "repeats 99.2 %",
        "most frequent prompt 50.2 %",
        "lost or unreadable 4",
        f"Captured {time_of_day(AT)} to {time_of_day(AT + 22)}",
        "toolkit workload",
    ):
        assert expected in text
    little = tree(workload(board(), None, {"requests": 0, "top": [], "repeat_share": None})).text
    assert "requests captured 0" in little
    assert f"repeats {UNKNOWN}" in little


def test_trouble_on_an_empty_page_is_escaped() -> None:
    assert tree(feeding("<b>x</b>")).all("b") == []
