"""dashboards/leaderboard.py from end to end, without a browser: what a link and each control show.

The blast is support/feeder.py's, which anybody can reckon: hN answers N requests a second in N x 100 ms, the first token
after N x 10 ms, N x (9 - N) x 10 tokens a second; h3 fails once a second; h8 is silent in the first minute.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from leaderboard_page.address import USUAL, Address
from leaderboard_page.page import as_csv, source_of
from leaderboard_page.scene import TURN_S
from support import feeder
from support.feeder import BEGAN, SECONDS
from support.page_app import (
    again,
    board,
    charts,
    fact,
    figure,
    hosts,
    html,
    opened,
    page,
    ranking,
)

from toolkit.board.feed import Feed
from toolkit.board.reveal import Terms, hashed, new_secret
from toolkit.errors import ToolkitError
from toolkit.records import Event, Host, Run, Tally
from toolkit.store import Store
from toolkit.units import time_of_day

DOWN = [f"h{n}" for n in range(8, 0, -1)]
UP = DOWN[::-1]
AT_LAST = ["h7", "h6", "h5", "h4", "h8", "h3", "h2", "h1"]
"""By requests a second; h4 and h8 are tied."""


def note(path: Path, at: float, kind: str, text: str = "") -> None:
    with Store.open(path) as store:
        store.add_event(Event(run=feeder.RUN, at=at, kind=kind, text=text))  # type: ignore[arg-type]


def go_on(path: Path, from_s: int, to_s: int) -> None:
    with Store.open(path) as store:
        feeder.extend(store, feeder.RUN, BEGAN + from_s, BEGAN + to_s, started_s=BEGAN)


# --- nothing, little, much ------------------------------------------------------------------------


def test_a_blast_appears_by_itself_on_a_page_that_waited(database: Path) -> None:
    app = opened()
    feeder.begin(database, feeder.RUN, started_s=BEGAN, seconds=10)
    assert len(hosts(again(app))) == 8


def test_one_host_and_one_second_are_a_board(database: Path) -> None:
    host = Host(name="only", url="http://10.0.0.1:8000")
    with Store.open(database) as store:
        store.add_run(Run(id="abc", verb="blast", started_at=float(BEGAN)))
        store.plan_hosts("abc", [host])
        tally = Tally(
            run="abc",
            name="only",
            url=host.url,
            at_s=BEGAN,
            worker="w",
            kind="ranked",
            ok=3,
            e2e=feeder.blob(50.0, 3),
        )
        store.add_second([tally], [feeder.second_of("abc", BEGAN)])
    app = opened(host="only", cmp="only")
    assert ranking(app) == [("1", "only")]
    assert figure(app, "only", "rps") == "3.00"


# --- the ranking ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank_by", "expected"),
    [
        # h8 answered in 60 of 120 s: 4 a second, as h4 in all of them, and both are counts: tied
        ("rps", ["h7", "h6", "h5", {"h4", "h8"}, "h3", "h2", "h1"]),
        ("p50", UP),
        ("p95", UP),
        ("ttft_p50", UP),
        ("ttft_p95", UP),
        # h3 fails in 1 of 4; all others never do
        ("error_rate", [{"h1", "h2", "h4", "h5", "h6", "h7", "h8"}, "h3"]),
        # N x (9 - N) x 10: 200 of h4 and h5, 180 of h3 and h6, 140 of h2 and h7, 80 of h1; h8 half of its 80. Of 120 N answers
        # each: 200 and 180 differ by 20, less than 2.58 standard errors of the closest, 2.58 x hypot(200/24.5, 180/26.8) = 27
        (
            "output_tokens_per_s",
            [{"h3", "h4", "h5", "h6"}, {"h2", "h7"}, "h1", "h8"],
        ),
    ],
)
@pytest.mark.usefixtures("blast")
def test_hosts_stand_in_the_order_of_each_ranking_and_ties_share_a_rank(
    rank_by: str, expected: list[str | set[str]]
) -> None:
    app = opened(rank=rank_by)
    wanted, place = {}, 1
    for group in expected:
        names = group if isinstance(group, set) else {group}
        wanted |= dict.fromkeys(names, str(place))
        place += len(names)
    found = ranking(app)
    assert {name: rank for rank, name in found} == wanted
    assert [int(rank or 0) for rank, _ in found] == sorted(int(rank) for rank in wanted.values())
    assert board(app)["data-rank-by"] == rank_by


@pytest.mark.usefixtures("blast")
def test_the_figures_are_what_was_counted() -> None:
    app = opened()
    assert figure(app, "h7", "rps") == "7.00"
    assert figure(app, "h7", "tokens") == "140"
    # 700 ms and 70 ms, within the sketch's 1 %
    assert float(figure(app, "h7", "p95").split()[0]) == pytest.approx(700, rel=0.01)
    assert float(figure(app, "h7", "ttft50").split()[0]) == pytest.approx(70, rel=0.01)
    assert figure(app, "h3", "errors") == "25.0 %"


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("blast")
def test_a_deep_link_sets_every_control() -> None:
    app = opened(
        rank="p95", window="5m", top="5", honest="1", cmp="h1,h2", host="h3", theme="light"
    )
    assert app.selectbox(key="rank").value == "p95"
    assert app.selectbox(key="window").value == 300
    assert app.selectbox(key="top").value == 5
    assert app.toggle(key="honest").value is True
    assert app.multiselect(key="cmp").value == ["h1", "h2"]
    assert page(app).one("aside", class_="panel")["aria-label"] == "h3"
    assert app.selectbox(key="theme").value == "light"
    assert app.query_params == {
        "rank": "p95",
        "window": "5m",
        "top": "5",
        "honest": "1",
        "cmp": "h1,h2",
        "host": "h3",
        "theme": "light",
    }


@pytest.mark.usefixtures("blast")
def test_a_link_that_is_followed_wins_over_every_control_and_so_does_the_way_back() -> None:
    app = opened()
    app.selectbox(key="rank").set_value("p95")
    app.multiselect(key="cmp").set_value(["h1", "h2"])
    again(app)
    assert app.query_params == {"rank": "p95", "cmp": "h1,h2"}
    # as the browser says it after a click on a row, and on a column's head
    row = board(app).one("tr", data_host="h3").one("a")
    assert row["href"] == "?rank=p95&cmp=h1%2Ch2&host=h3"
    app.query_params["host"] = "h3"
    assert page(again(app)).one("aside", class_="panel")["aria-label"] == "h3"
    assert board(app).one("a", aria_current="true")["href"] == "?rank=p95&cmp=h1%2Ch2&host="
    app.query_params["rank"] = "ttft_p95"
    assert board(again(app))["data-rank-by"] == "ttft_p95"
    assert app.selectbox(key="rank").value == "ttft_p95"
    del app.query_params["host"], app.query_params["cmp"]
    assert page(again(app)).all("aside") == []
    assert app.multiselect(key="cmp").value == []
    assert board(app)["data-rank-by"] == "ttft_p95"


@pytest.mark.usefixtures("blast")
def test_each_ranking_has_the_head_of_its_column_as_a_link() -> None:
    heads = board(opened()).one("thead").all("a")
    assert {head.text: head["href"] for head in heads} == {
        "requests/s": "?rank=",
        "score": "?rank=score",
        "tok/s": "?rank=output_tokens_per_s",
        "TTFT p50": "?rank=ttft_p50",
        "TTFT p95": "?rank=ttft_p95",
        "p50": "?rank=p50",
        "p95": "?rank=p95",
        "errors": "?rank=error_rate",
    }


def test_a_mark_in_the_chart_leads_to_its_story(blast: Path) -> None:
    note(blast, BEGAN + 60.5, "mark", "larger batches")
    app = opened()
    chart = page(app).one("figure", data_chart="ranks")
    of_list, on_chart = chart.one("ol").one("a"), chart.one("span", class_="mark").one("a")
    assert of_list["href"] == on_chart["href"] == f"?event={BEGAN + 60}"
    app.query_params["event"] = str(BEGAN + 60)
    told = page(again(app)).one("aside", class_="panel")
    assert "larger batches" in told.text
    # 360 answers of h6 are level with 420 of h7, and 720 with 840 no longer
    assert "First: h6 and h7 before it, h7 now." in told.text
    # nothing happened then
    app.query_params["event"] = str(BEGAN + 61)
    assert page(again(app)).all("aside") == []


@pytest.mark.usefixtures("blast")
def test_a_hosts_kinds_of_errors_are_read_once_for_all_who_have_it_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, kinds_of = list[str](), Feed.error_kinds

    def counting(feed: Feed, name: str, **view: Any) -> dict[str, int]:
        read.append(name)
        return kinds_of(feed, name, **view)

    monkeypatch.setattr(Feed, "error_kinds", counting)
    for compared in ("h1", "h2"):
        panel = page(opened(host="h3", cmp=compared)).one("aside", class_="panel")
        assert "120" in panel.text
    assert read == ["h3"]


def test_seconds_in_which_the_load_generator_was_the_limit_are_left_out_on_demand(
    blast: Path,
) -> None:
    with Store.open(blast) as store:
        late = [feeder.second_of(feeder.RUN, BEGAN + at) for at in range(30)]
        store.add_second([], [replace(one, worker="w2", limited=True) for one in late])
    app = opened(host="h3")
    # 60 x 8 answers in 120 s, or in 90 of them
    assert figure(app, "h8", "rps") == "4.00"
    assert "120 of 480 requests" in page(app).one("aside").text
    switch = page(app).one("a", role="switch")
    assert switch["href"] == "?host=h3&skip_limited=1"
    app.query_params["skip_limited"] = "1"
    assert figure(again(app), "h8", "rps") == "5.33"
    assert "90 of 360 requests" in page(app).one("aside").text
    assert "http 503 90" in page(app).one("aside").text
    assert as_csv(source_of(blast), Address(skip_limited=True)).count(b",480,") == 1


@pytest.mark.usefixtures("blast")
def test_hosts_of_a_link_that_are_not_in_this_run_are_no_fault() -> None:
    app = opened(cmp="h1,gone", host="gone")
    assert len(hosts(app)) == 8
    assert [
        head.text for head in page(app).one("table", class_="differences").all("th", scope="col")
    ] == ["", "h1"]
    assert page(app).all(class_="facts-of-host") == []


@pytest.mark.usefixtures("blast")
def test_a_moment_of_the_link_shows_the_board_of_then() -> None:
    # h8 was silent in the first minute
    app = opened(t=str(BEGAN + 59))
    assert hosts(app)[-1] == "h8"
    assert fact(app, "phase") == "replay"
    assert app.toggle(key="live").value is False
    app.toggle(key="live").set_value(True)
    again(app)
    assert hosts(app)[-1] == "h1"
    assert app.query_params == {}


# --- beside a capture -----------------------------------------------------------------------------


def test_the_newest_capture_that_had_begun_is_shown_and_none_from_behind_a_freeze(
    blast: Path,
) -> None:
    for run, from_s, to_s, requests in (("c1", 10, 20, 1111), ("c2", 30, 90, 2222)):
        with Store.open(blast) as store:
            store.add_run(Run(id=run, verb="capture", started_at=BEGAN + from_s))
            span = {"from_ts": BEGAN + from_s, "to_ts": BEGAN + to_s}
            store.set_capture(run, {"requests": requests, "top": [], **span})
    assert "requests captured 2,222" in page(opened()).text
    assert "requests captured 1,111" in page(opened(t=str(BEGAN + 25))).text
    note(blast, BEGAN + 60.5, "freeze")
    shown = page(opened()).text
    assert "requests captured 1,111" in shown
    assert "2,222" not in shown


# --- freeze and reveal ----------------------------------------------------------------------------


def test_a_frozen_board_shows_nothing_later_in_any_part(blast: Path) -> None:
    note(blast, BEGAN + 60.5, "freeze")
    everything = {"host": "h8", "cmp": "h7,h8"}
    before = opened(**everything)
    assert fact(before, "frozen") == f"frozen at {time_of_day(BEGAN + 60)}"
    # h8's single second before the freeze: 8 answers in 61 s
    assert figure(before, "h8", "rps") == "0.13"
    assert fact(before, "window").endswith(time_of_day(BEGAN + 61))
    told = html(before)
    assert fact(before, "clock") == "2:00"
    go_on(blast, SECONDS, SECONDS + 30)
    assert without(html(again(before)), "viewers", "clock") == without(told, "viewers", "clock")
    # the event's clock alone runs on, as the load does
    assert fact(before, "clock") == "2:30"


def without(told: str, *facts: str) -> str:
    """Each page that a test opens is one viewer more."""
    for name in facts:
        begin, _, rest = told.partition(f'<li class="{name}">')
        told = begin + rest.partition("</li>")[2]
    return told


def test_a_frozen_board_is_frozen_as_csv(blast: Path) -> None:
    note(blast, BEGAN + 60.5, "freeze")
    head, *lines = as_csv(source_of(blast), USUAL).decode().splitlines()
    assert head.startswith("rank,name,url,score,rps,")
    assert {line.rsplit(",", 1)[1] for line in lines} == {str(BEGAN + 60)}


def reveal(blast: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Freeze the board after a minute and reveal it at the end; the page's clock, which stands at that moment."""
    note(blast, BEGAN + 60.5, "freeze")
    note(blast, BEGAN + 119.0, "reveal")
    now = [BEGAN + 119.0]
    monkeypatch.setattr("leaderboard_page.page.time.time", lambda: now[0])
    return now


def test_a_reveal_uncovers_place_by_place_and_ends_with_all(
    blast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = reveal(blast, monkeypatch)
    app = opened()
    # seven of eight are covered, and no part but the last row knows the end
    assert hosts(app) == [None] * 7 + ["h1"]
    assert fact(app, "reveal") == "reveal 7 left"
    assert fact(app, "window").endswith(time_of_day(BEGAN + 61))
    assert charts(app) == {"ranks", "tradeoff"}
    now[0] += 8.0
    assert hosts(again(app)) == [None] * 5 + ["h3", "h2", "h1"]
    now[0] += 1000.0
    assert len([name for name in hosts(again(app)) if name]) == 8
    assert fact(app, "window").endswith(time_of_day(BEGAN + SECONDS))


def test_a_viewers_own_ranking_uncovers_nothing_that_others_do_not_see(
    blast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = reveal(blast, monkeypatch)
    # by latency the winner of the run would be uncovered first, with its requests/s
    app = opened(rank="p95", window="1m")
    assert hosts(app) == [None] * 7 + ["h1"]
    assert board(app)["data-rank-by"] == "rps"
    now[0] += 1000.0
    assert hosts(again(app)) == UP
    assert board(app)["data-rank-by"] == "p95"


def test_the_key_and_the_organizers_ranking_uncover_step_by_step(blast: Path) -> None:
    note(blast, BEGAN + 60.5, "freeze")
    note(blast, BEGAN + 119.0, "reveal", Terms(every_s=None, rank_by="p95").written())
    app = opened()
    assert hosts(app) == [None] * 8
    for number in range(8, 0, -1):
        note(blast, BEGAN + 120.0, "uncover")
        shown = hosts(again(app))
        # by latency h8 is the last and h1 the first; in the end the viewer's own ranking is back
        by_latency = [None] * (number - 1) + [f"h{n}" for n in range(number, 9)]
        assert shown == (by_latency if number > 1 else AT_LAST)
    # h1 is quicker, but has 120 answers, less than the 130 that a sure p95 takes
    podium = page(app).one("ol", class_="podium").all("li")
    assert [step.text[:15] for step in podium] == [
        "first so far h2",
        "second so far h",
        "third so far h5",
    ]


def test_a_reveal_ends_with_the_podium_and_the_best_of_each_category(
    blast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = reveal(blast, monkeypatch)
    with Store.open(blast) as store:
        store.end_run(feeder.RUN, ended_at=BEGAN + 120.0, client_ok=True)
    app = opened()
    assert page(app).all(class_="finale") == []
    now[0] += 1000.0
    end = page(again(app)).one("section", class_="finale")
    first, second, third = (step.text for step in end.one("ol", class_="podium").all("li"))
    assert first.startswith("winner h7")
    assert "7.00 requests/s" in first
    assert "16.7 % ahead of h6" in first
    assert (second.split()[:2], third.split()[:2]) == (["second", "h6"], ["third", "h5"])
    cards = {card.one(class_="what").text: card for card in end.all("li", class_="category")}
    told = {name: card.one(class_="value").text for name, card in cards.items()}
    # who has too few answers for a sure figure (h1) or fails (h3) wins nothing; in this blast nobody was judged
    assert told == {
        "fastest": "h2",
        "most tokens": "h4 and 2 more",
        "fewest errors": "h1 and 6 more",
        "best honest": "nobody",
    }
    # a look back is no end of anything
    assert page(opened(t=str(BEGAN + 100))).all(class_="finale") == []


def test_a_reveal_of_more_hosts_than_rows_shows_the_page_it_has_come_to(
    blast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = reveal(blast, monkeypatch)
    app = opened(top="3", kiosk="1")
    seen = []
    for _ in range(8):
        seen.append(hosts(app))
        now[0] += 4.0
        again(app)
    assert seen[:7] == [
        # places 7 and 8
        [None, "h1"],
        ["h2", "h1"],
        # 4 to 6
        [None, None, "h3"],
        [None, "h8", "h3"],
        ["h4", "h8", "h3"],
        # 1 to 3
        [None, None, "h5"],
        [None, "h6", "h5"],
    ]


# --- a television ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("blast")
def test_a_television_turns_its_pages_and_says_how_many_more_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("leaderboard_page.page.time.time", lambda: now[0])
    app = opened(kiosk="1", top="3")
    seen = []
    for _ in range(4):
        seen.append((hosts(app), page(app).one("p", class_="turning").text))
        now[0] += TURN_S
        again(app)
    everybody = [name for names, _ in seen[:3] for name in names]
    assert sorted(str(name) for name in everybody) == UP
    assert [text for _, text in seen[:3]] == [
        "5 more · page 1 of 3",
        "5 more · page 2 of 3",
        "6 more · page 3 of 3",
    ]
    assert seen[3] == seen[0]
    # the chart beside has the lines of the same hosts
    lines = page(app).one("figure", data_chart="ranks").all("g", class_="line")
    assert {line["data-host"] for line in lines} == set(hosts(app))
    # all on one page: nothing turns, and nothing says so
    assert page(opened(kiosk="1")).all("p", class_="turning") == []


def test_no_link_looks_behind_a_reveal_under_way(
    blast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = reveal(blast, monkeypatch)
    app = opened(t=str(BEGAN + 110))
    assert fact(app, "window").endswith(time_of_day(BEGAN + 61))
    assert figure(app, "h8", "rps") == "0.13"
    now[0] += 1000.0
    assert fact(again(app), "window").endswith(time_of_day(BEGAN + 111))


# --- trouble --------------------------------------------------------------------------------------


def test_a_failure_before_anything_was_drawn_is_a_sentence(
    blast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ToolkitError(f"`{blast}` is locked by another process", "Wait")

    with monkeypatch.context() as fault:
        fault.setattr(Store, "parts", fail)
        app = opened(host="h3", cmp="h1,h2")
        assert "is locked by another process. Wait." in page(app).one("p", class_="trouble").text
    assert len(hosts(again(app))) == 8


@pytest.mark.usefixtures("blast")
def test_two_steps_back_at_once_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    app = opened(rank="p95")
    widgets = [*app.selectbox, *app.multiselect, *app.toggle]
    for widget in widgets:
        # what the browser goes on to show
        widget.set_value(widget.value)
    with monkeypatch.context() as fault:
        # the second step ends what the first began: the link was read, and no widget was made from it
        fault.setattr("leaderboard_page.controls.ranking", lambda *_: st.stop())
        app.query_params["rank"] = "rps"
        again(app)
    app = widgets[-1].run()
    assert not app.exception, app.exception[0].value
    assert board(app)["data-rank-by"] == "rps"


def test_a_failure_on_the_presenters_page_is_a_sentence(
    blast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = new_secret()
    note(blast, BEGAN + 60.5, "freeze")
    terms = Terms(every_s=None, presenter=hashed(secret))
    note(blast, BEGAN + 119.0, "reveal", terms.written())

    def fail(*_: object, **__: object) -> None:
        raise ToolkitError(f"`{blast}` is locked by another process", "Wait")

    with monkeypatch.context() as fault:
        fault.setattr(Store, "parts", fail)
        app = opened(kiosk="1", presenter=secret)
        assert "is locked by another process. Wait." in html(app)
    assert hosts(again(app)) == [None] * 8
