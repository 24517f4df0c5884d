from typing import Any

import pytest
from leaderboard_page.sections import (
    bench_results,
    difference_from,
    differences,
    feeding,
    host_panel,
    panel,
    story,
    workload,
)
from support import shots
from support.page_html import Node, tree
from support.standings import board, standing, verdict

from toolkit.bench.summary import summary
from toolkit.board.history import Ranks
from toolkit.board.outages import RunSeconds, outages
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
    usual: dict[str, Any] = {"kinds": {}, "sightings": (), "events": (), "styles": {}, "charts": ()}
    one = changes.pop("one", standing("a", ok=90, errors=10))
    return tree(host_panel(one, **usual | {"compared": (), "event_story": None} | changes))


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
    hrefs = [one["href"] for one in found.one("ul", class_="history").all("a")]
    assert hrefs == [f"?event={AT + 25:.0f}&host=a", f"?event={AT + 5:.0f}&host=a"]


def test_evidence_comes_first_and_says_when_nothing_was_found() -> None:
    accused = facts(one=standing("a", verdicts=(verdict("truncated_output", "1 token of 128"),)))
    first = accused.all("section")[0]
    assert first.one("h3").text == "Evidence"
    assert "truncated 1 token of 128 confidence: high" in first.text
    gaps = "foreign_traffic and hidden_backend: no `inflated_usage`; response_cache: too few"
    unjudged = facts(one=standing("a", verdicts=(verdict("not_judged", gaps),)))
    # the codes in words, and the reasons as they are
    words = "foreign traffic and hidden backend: no `inflated_usage`; response cache: too few"
    assert f"not judged {words}" in unjudged.text
    assert "confidence" not in unjudged.text
    cleared = facts(one=standing("a", verdicts=(verdict("clean", "twins differ"),)))
    assert "No anomaly found: twins differ" in cleared.text
    assert "Not judged yet." in facts().text


@pytest.mark.parametrize(
    ("compared", "words", "href"),
    [
        ((), "Compare with others", "?cmp=a"),
        (("b", "c"), "Compare with others", "?cmp=b%2Cc%2Ca"),
        (("b", "a"), "Compare no longer", "?cmp=b"),
        (("a",), "Compare no longer", "?cmp="),
        # four stand side by side
        (("b", "c", "d", "e"), "Compare with others", "?cmp=c%2Cd%2Ce%2Ca"),
    ],
)
def test_a_host_joins_and_leaves_the_comparison(
    compared: tuple[str, ...], words: str, href: str
) -> None:
    found = facts(compared=compared).one("a", class_="compare")
    assert (found.text, found["href"]) == (words, href)


def test_a_panel_is_named_can_have_the_focus_and_closes() -> None:
    found = tree(panel("a", "inside")).one("aside")
    assert (found["aria-label"], found["tabindex"]) == ("a", "-1")
    assert found.one("a", class_="close")["href"] == "?host="


# --- what happened --------------------------------------------------------------------------------

# a host of 10 answers a second that was down from second 600 to 630, and of 20 a second afterwards
SECONDS = RunSeconds(
    first_s=int(AT),
    ok=(10,) * 600 + (0,) * 30 + (20,) * 570,
    errors=(0,) * 600 + (5,) * 30 + (0,) * 570,
)
MINUTES = tuple(int(AT) + 60 * n - 1 for n in range(1, 21))
RANKS = Ranks(
    times=MINUTES,
    ranks={"a": (1,) * 10 + (3, 2) + (1,) * 8, "b": (2,) * 10 + (1, 1) + (2,) * 8},
)


def told(*events: Event, name: str | None = "a", **changes: Any) -> list[str]:
    seconds = SECONDS if name else None
    down = outages(SECONDS, restarts=[AT + 625])
    usual: dict[str, Any] = {"seconds": seconds, "down": down, "window_s": 900, "name": name}
    found = tree(story(events, RANKS, **usual | changes))
    assert found.one("h3").text == f"What happened at {time_of_day(events[0].at)}"
    return [line.text for line in found.all("p")]


def test_the_story_of_a_restart_is_its_downtime_what_it_cost_and_the_ranks_around_it() -> None:
    restart = Event(run="r", name="a", url="u", at=AT + 625, kind="restart", text="vLLM 0.11.2")
    happened, down, *cost, ranks = told(restart)
    assert happened == f"{time_of_day(AT + 625)} a vLLM 0.11.2"
    times = f"from {time_of_day(AT + 600)} until {time_of_day(AT + 630)}"
    assert down == f"Down {times}: 30 s, 150 requests failed."
    # twice the rate of before: 30 s more than it was down
    assert any(line.startswith("Pays back: after 1 min;") for line in cost)
    assert ranks == "Rank: 1 before it, 3 a minute later, 1 five minutes later, 1 now."


def test_an_event_without_an_outage_tells_the_rates_around_it() -> None:
    mark = Event(run="r", name="a", url="u", at=AT + 900, kind="mark", text="larger batches")
    happened, rates, _ = told(mark)
    assert happened.endswith("a larger batches")
    assert rates == (
        "No outage beside it: 20.0 requests/s in the minute before, 20.0 in the minute after."
    )


def test_an_event_of_all_tells_who_led_before_and_after() -> None:
    phase = Event(run="r", at=AT + 601, kind="phase", text="full load")
    assert told(phase, name=None) == [
        f"{time_of_day(AT + 601)} phase: full load",
        "First: a before it, b a minute later, a five minutes later, a now.",
    ]
    # of what came later nothing is known yet
    late = Event(run="r", at=AT + 1190, kind="phase", text="end")
    assert told(late, name=None)[-1] == "First: a before it, a now."


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
        "unique prompts 2",
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
