"""The page before the first blast, without a browser: all that scout, bench and capture left, in each combination, as it comes.

What is in the database is support/prepared.py's.
"""

import time
from itertools import product
from math import inf
from pathlib import Path

import pytest
from leaderboard_page.hosts_view import known
from leaderboard_page.source import DatabaseSource
from streamlit.testing.v1 import AppTest
from support import feeder, prepared
from support.page_app import again, hosts, opened, page
from support.page_html import Node
from support.prepared import AT, CUT, LOW, OPEN

from toolkit.board.reveal import Terms
from toolkit.records import Event, Run, Verdict
from toolkit.store import Store
from toolkit.units import time_of_day


@pytest.fixture(autouse=True)
def every_look_reads_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEEP_S", "BENCH_KEEP_S"):
        monkeypatch.setattr(f"leaderboard_page.hosts_view.{name}", 0.0)


def card(app: AppTest, key: str) -> list[str]:
    (found,) = page(app).one("ul", class_="kpis").all("li", class_=key)
    return [found.one(class_=part).text for part in ("value", "below")]


def row(app: AppTest, host: str) -> Node:
    return page(app).one("table", class_="settings").one("tr", data_key=f"host/{host}")


def cells(app: AppTest, host: str) -> dict[str | None, str]:
    return {cell["data-title"]: cell.text for cell in row(app, host).all("td")}


@pytest.mark.parametrize(
    ("has_scout", "has_bench", "has_capture"), list(product([False, True], repeat=3))
)
def test_whatever_is_there_is_shown_and_what_comes_next_is_said(
    database: Path, has_scout: bool, has_bench: bool, has_capture: bool
) -> None:
    Store.open(database).close()
    for is_there, fill in (
        (has_scout, prepared.scouted),
        (has_bench, prepared.benched),
        (has_capture, prepared.captured),
    ):
        if is_there:
            fill(database)
    app = opened()
    shown = page(app)
    assert "No blast yet" not in shown.text
    assert (
        "toolkit blast" in shown.text
        or "toolkit bench" in shown.text
        or "toolkit scout" in shown.text
    )
    if not (has_scout or has_bench or has_capture):
        assert "Nothing measured yet" in shown.one(id="feeding").text
        return
    assert shown.all(id="feeding") == []
    step = "blast" if has_bench else "bench" if has_scout else "scout"
    assert card(app, "leader")[0] == step
    for is_there, found, command in (
        (has_scout, shown.all("table", class_="settings"), "toolkit scout hosts.txt --watch"),
        (has_bench, shown.all("table", class_="bench-ranking"), "toolkit bench hosts.txt"),
        (has_capture, shown.all("dl", class_="pairs"), "toolkit capture --port 8000"),
    ):
        assert len(found) == int(is_there)
        assert (command in shown.one(id="before").text) is not is_there


def test_each_host_stands_with_its_settings_and_what_is_remarkable(database: Path) -> None:
    prepared.scouted(database)
    prepared.benched(database)
    app = opened()
    assert cells(app, "alice") == {
        "engine": "vllm 0.11.0",
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "max model length": "8,192",
        "GPU memory utilization": "0.9",
        "KV blocks": "4,096",
        "KV tokens": "65,536",
        "KV cache dtype": "auto",
        "prefix caching": "on",
        "running / waiting": "3 / 1",
        "KV cache full": "25.0 %",
    }
    # what three of four have is usual; who is down keeps the settings that it had told
    odd = {cell["data-title"]: cell["title"] for cell in row(app, "bob").all("td", class_="odd")}
    assert odd == {"GPU memory utilization": "Most hosts: 0.9", "KV blocks": "Most hosts: 4,096"}
    assert "connection refused" in row(app, "dora").text
    assert cells(app, "dora")["KV blocks"] == "4,096"
    assert cells(app, "dora")["running / waiting"] == "–"  # noqa: RUF001 (unknown, as everywhere on the page)
    badges = {
        name: [badge["data-code"] for badge in row(app, name).all(class_="badge")]
        for name in ("alice", "bob", "carol", "dora")
    }
    assert badges == {
        "alice": ["truncated_output"],
        "bob": ["low_gpu_memory_utilization"],
        "carol": [],
        "dora": ["down"],
    }
    findings = [line.text for line in page(app).one(id="findings").all("li")]
    assert findings == [
        # once, as it holds for all that answer
        f"all that answer metrics open {OPEN}",
        f"bob low GPU memory utilization {LOW}",
    ]
    assert card(app, "up") == ["3 of 4", "down: dora"]
    assert card(app, "found") == ["4", "at 3 hosts"]


def test_the_bench_is_ranked_with_its_verdicts_and_the_capture_counted(database: Path) -> None:
    prepared.benched(database)
    prepared.captured(database)
    app = opened()
    lines = page(app).one("table", class_="bench-ranking").one("tbody").all("tr")
    # 16 answers in two waves 2.5 s apart: the last of them ends 2.08 or 3.08 s after the second wave's start
    assert [(line.one("th").text, line.all("td")[0].text) for line in lines] == [
        ("1 alice truncated", f"{16 / 4.58:.2f}"),
        ("2 bob", f"{16 / 5.58:.2f}"),
    ]
    assert CUT in page(app).one(id="verdicts").text
    assert card(app, "best") == ["bob", f"{16 / 5.58:.2f} requests/s"]
    assert card(app, "captured") == ["245", "99.2 % repeats"]
    pairs = page(app).one("dl", class_="pairs")
    told = dict(
        zip((dt.text for dt in pairs.all("dt")), (dd.text for dd in pairs.all("dd")), strict=True)
    )
    assert told == {
        "requests captured": "245",
        "unique prompts": "2",
        "repeats": "99.2 %",
        "most frequent prompt": "50.2 %",
        "the 2 most frequent": "100 %",
        # 237 of 239: all but the first of each
        "a response cache would answer up to": "99.2 % with every answer held",
        "streams": "50.0 %",
        "lost or unreadable": "1",
    }


def test_hosts_that_a_bench_cannot_tell_apart_share_a_rank(database: Path) -> None:
    with Store.open(database) as store:
        store.add_run(prepared.Run(id="b1", verb="bench", started_at=AT))
        for name, first_ms in (("alice", 100.0), ("bob", 100.0), ("carol", 1100.0)):
            of_host = prepared.shots.uniques(16, first_ms=first_ms, run="b1", name=name)
            store.add_shots(of_host)
        store.end_run("b1", ended_at=AT + 30, client_ok=True)
    lines = page(opened()).one("table", class_="bench-ranking").one("tbody").all("tr")
    assert [line.one("th").text for line in lines] == ["1 = alice", "1 = bob", "3 carol"]


def test_of_many_prompts_a_small_cache_is_told_beside_a_boundless_one(database: Path) -> None:
    # ten prompts came 10 times each, 100 others once: 110 of 200 are first requests
    top = [{"share": 0.05} for _ in range(10)]
    with Store.open(database) as store:
        store.add_run(prepared.Run(id="c1", verb="capture", started_at=AT))
        store.set_capture(
            "c1", {"requests": 200, "prompts": 200, "unique": 110, "repeat_share": 0.45, "top": top}
        )
    told = page(opened()).one("dl", class_="pairs").text
    # of the ten 9 of 10 requests: 90 of 200
    assert "up to 45.0 % with every answer held , 45.0 % with the 10 most frequent answers" in told
    assert "the 10 most frequent 50.0 %" in told


def test_what_is_written_while_the_page_is_open_appears(database: Path) -> None:
    prepared.scouted(database)
    app = opened()
    with Store.open(database) as store:
        store.add_sightings([prepared.host("dora", 4, AT + 2, kv_cache_usage=0.5)])
    assert cells(again(app), "dora")["KV cache full"] == "50.0 %"
    assert card(app, "up") == ["4 of 4", "all answer"]
    prepared.benched(database, is_over=False)
    again(app)
    # begun in 2025 and never ended: by now it was cut off
    assert "32 requests: it was cut off, and judged nobody" in page(app).one(class_="bench").text
    assert card(app, "best")[0] == "alice"
    prepared.judged(database)
    assert card(again(app), "best")[0] == "bob"
    prepared.captured(database)
    assert card(again(app), "captured")[0] == "245"


def test_a_blast_turns_the_page_into_the_leaderboard_and_the_link_shows_the_hosts(
    database: Path,
) -> None:
    prepared.scouted(database)
    app, aside = opened(), opened(view="hosts")
    feeder.begin(database, feeder.RUN, started_s=feeder.BEGAN, seconds=10)
    assert len(hosts(again(app))) == 8
    assert cells(again(aside), "alice")["KV blocks"] == "4,096"
    leader = page(aside).one("li", class_="leader")
    assert (leader.one(class_="what").text, leader.one("a")["href"]) == ("blast is on", "?view=")


def test_behind_a_freeze_no_later_snapshot_is_shown(database: Path) -> None:
    prepared.scouted(database)
    began = int(time.time()) - 600
    feeder.begin(database, feeder.RUN, started_s=began, seconds=120)
    with Store.open(database) as store:
        store.add_event(Event(run=feeder.RUN, at=began + 60.5, kind="freeze"))
        later = prepared.host("alice", 1, began + 100.0, num_gpu_blocks=7)
        store.add_sightings([later])
    app = opened(view="hosts")
    assert cells(app, "alice")["KV blocks"] == "4,096"
    shown = page(app).one("li", class_="seen").text
    assert time_of_day(AT) in shown


def test_behind_a_freeze_a_bench_stands_as_it_was_then(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # shots.py's requests were sent in 2025
    monkeypatch.setattr("leaderboard_page.source.FREEZE_HOLDS_S", inf)
    feeder.begin(database, feeder.RUN, started_s=feeder.BEGAN, seconds=120)
    cut = Verdict(code="truncated_output", confidence="high", evidence=prepared.CUT)
    with Store.open(database) as store:
        store.add_run(Run(id="b1", verb="bench", started_at=AT))
        for host, first_ms in zip(feeder.HOSTS, (100.0, 1100.0), strict=False):
            about = {"run": "b1", "name": host.name, "url": host.url}
            store.add_shots(prepared.shots.uniques(16, first_ms=first_ms, **about))

    def shown() -> list[str]:
        aside, beside = page(opened(view="hosts")), page(opened())
        tables = (
            aside.one("table", class_="bench-ranking"),
            beside.one("table", class_="bench-table"),
        )
        lines = [line for table in tables for line in table.one("tbody").all("tr")]
        figures = [f"{line.one('th').text} {line.all('td')[0].text}" for line in lines]
        return [*figures, aside.one(class_="bench").text.partition(", ")[2].partition(".")[0]]

    # 8 answers in 2.08 or 3.08 s; the second wave of 8 began at 2.5 s and ended past the frozen second
    first_wave = [f"1 h1 {8 / 2.08:.2f}", f"2 h2 {8 / 3.08:.2f}"]
    first_wave += [line[2:] for line in first_wave]
    with Store.open(database) as store:
        store.add_event(Event(run=feeder.RUN, at=AT + 3.2, kind="freeze"))
    # it never ended: by now it was cut off
    assert shown() == [*first_wave, "16 requests: it was cut off, and judged nobody"]
    with Store.open(database) as store:
        store.add_verdicts("b1", {(feeder.HOSTS[0].name, feeder.HOSTS[0].url): (cut,)})
        store.end_run("b1", ended_at=AT + 30, client_ok=False)
    assert shown() == [*first_wave, "16 requests so far: it runs; verdicts come at its end"]
    assert prepared.CUT not in page(opened(view="hosts")).text
    with Store.open(database) as store:
        store.add_event(Event(run=feeder.RUN, at=AT + 200, kind="reveal"))
    both_waves = [f"1 h1 truncated {16 / 4.58:.2f}", f"2 h2 {16 / 5.58:.2f}"]
    both_waves += [f"h1 {16 / 4.58:.2f}", f"h2 {16 / 5.58:.2f}"]
    rule = "32 requests: by requests/s, each host under the same load"
    assert shown() == [*both_waves, rule]


def test_until_the_last_place_is_uncovered_no_link_shows_what_came_after_the_freeze_of_any_run(
    database: Path,
) -> None:
    prepared.scouted(database)
    began = int(time.time()) - 600
    feeder.begin(database, "older", started_s=began - 600, seconds=60)
    feeder.begin(database, feeder.RUN, started_s=began, seconds=120)
    frozen_at = began + 60.5
    with Store.open(database) as store:
        store.add_event(Event(run=feeder.RUN, at=frozen_at, kind="freeze"))
        store.add_sightings([prepared.host("alice", 1, frozen_at + 40, num_gpu_blocks=7)])
        for run, from_s, requests in (("c1", -30, 1111), ("c2", -20, 2222)):
            at = frozen_at + from_s
            store.add_run(Run(id=run, verb="capture", started_at=at))
            # the second one went on past the freeze
            span = {"from_ts": at, "to_ts": at + 10 * int(run[1]) ** 3}
            store.set_capture(run, {"requests": requests, "top": [], **span})

    def shown() -> list[tuple[str | None, str, bool]]:
        found = []
        for run in ("older", feeder.RUN):
            app = opened(view="hosts", run=run)
            beside = "requests captured 2,222" in page(opened(run=run)).text
            found.append((cells(app, "alice")["KV blocks"], card(app, "captured")[0], beside))
        return found

    hidden = [("4,096", "1,111", False)] * 2
    assert shown() == hidden
    terms = Terms(every_s=None, top=1)
    with Store.open(database) as store:
        store.add_event(
            Event(run=feeder.RUN, at=frozen_at + 100, kind="reveal", text=terms.written())
        )
    assert shown() == hidden
    with Store.open(database) as store:
        store.add_event(Event(run=feeder.RUN, at=frozen_at + 101, kind="uncover"))
    assert shown() == [("7", "2,222", True)] * 2


@pytest.mark.parametrize(("hours", "is_held_back"), [(23, True), (25, False)])
def test_a_freeze_that_nobody_lifted_hides_nothing_of_a_later_contest_but_stays_on_its_own_page(
    database: Path, hours: int, is_held_back: bool
) -> None:
    prepared.scouted(database)
    now = int(time.time())
    over = now - 3600 * hours
    # it was frozen two days earlier, and never said its end
    feeder.begin(database, "older", started_s=over - 2, seconds=2)
    feeder.begin(database, feeder.RUN, started_s=now - 60, seconds=30)
    with Store.open(database) as store:
        store.add_event(Event(run="older", at=over - 2 * 86_400, kind="freeze"))
        store.add_sightings([prepared.host("alice", 1, now - 90, num_gpu_blocks=7)])
        store.add_run(Run(id="c1", verb="capture", started_at=now - 80))
        store.set_capture("c1", {"requests": 2222, "top": [], "to_ts": now - 70})
    aside, newer, older = (opened(view="hosts"), opened(), opened(run="older"))
    assert cells(aside, "alice")["KV blocks"] == ("4,096" if is_held_back else "7")
    assert ("captured 2,222" in page(newer).text) is not is_held_back
    assert "captured 2,222" not in page(older).text


def test_a_long_bench_that_is_on_is_counted_the_less_often_the_more_requests_it_has(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # at 20,000 requests, as many as 10 s; here at 20
    monkeypatch.setattr("leaderboard_page.hosts_view.KEEP_PER_REQUEST_S", 0.5)
    now = [1000.0]
    source = DatabaseSource(database, clock=lambda: now[0])
    with Store.open(database) as store:
        store.add_run(Run(id="b1", verb="bench", started_at=AT))
        store.add_shots(prepared.shots.uniques(20, run="b1", name="alice"))

        def counted() -> list[str]:
            return [one.name for one in known(source, store, inf).ranking]

        assert counted() == ["alice"]
        store.add_shots(prepared.shots.uniques(1, run="b1", name="bob"))
        now[0] += 10.4
        assert counted() == ["alice"]
        now[0] += 0.2
        assert sorted(counted()) == ["alice", "bob"]
        # once it is over it is counted at once
        store.add_shots(prepared.shots.uniques(1, run="b1", name="carol"))
        store.end_run("b1", ended_at=AT + 30, client_ok=True)
        assert sorted(counted()) == ["alice", "bob", "carol"]
