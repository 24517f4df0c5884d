"""A sweep from its first configuration to its last, with a stand-in for the commands that it runs: order, failures, resumption."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contract.harness.programs import until
from support import stand_in_toolkit

from toolkit.errors import ToolkitError
from toolkit.records import Host, LoaderSecond, Run
from toolkit.store import Store
from toolkit.tuning import servers
from toolkit.tuning.children import started_ticks
from toolkit.tuning.figures import Figures
from toolkit.tuning.sweep import Sweep, SweepCell, Tools, begin, state_of
from toolkit.tuning.sweep_file import SweepPlan, read_sweep
from toolkit.tuning.sweep_table import MeasuredConfiguration, table

pytestmark = pytest.mark.slow

RUN = "0123456789ab"
WAIT_S = 60
TEXT = """
look_at = ["output_tokens_per_s", "rps"]
blocks = 2
warm = false
[load]
duration = "4s"
settle = "1s"
users = 2
[[configurations]]
name = "slow"
sim = "slow"
[[configurations]]
name = "fast"
sim = "fast"
"""
STAND_IN = (sys.executable, str(Path(stand_in_toolkit.__file__)))


@pytest.fixture(autouse=True)
def calls_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_CALLS", str(tmp_path / "calls.txt"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.fixture(autouse=True)
def no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in has none."""
    monkeypatch.setattr(servers, "counters_of", lambda *_: {})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "t.db") as opened:
        yield opened


def calls(folder: Path) -> list[str]:
    """The commands that were run, each by its first words and who it was about."""
    told = []
    for line in (folder / "calls.txt").read_text().splitlines():
        _, *words = line.split()
        if words[0] == "blast":
            told.append(f"blast {Path(words[1]).read_text().split()[0]}")
        else:
            told.append(" ".join(words[:4]).replace("sim serve --personality", "serve"))
    return told


def tools(folder: Path, **changes: Any) -> Tools:
    plain = Tools(
        command=STAND_IN,
        folder=folder,
        database=folder / "t.db",
        impossible=lambda _: None,
        say=lambda _: None,
    )
    return replace(plain, **changes)


def swept(
    store: Store, folder: Path, plan: SweepPlan, **changes: Any
) -> tuple[MeasuredConfiguration, ...]:
    return begun(store, folder, plan, **changes).run()


def begun(store: Store, folder: Path, plan: SweepPlan, **changes: Any) -> Sweep:
    """A sweep that a test may tell what it did before."""
    begin(store, Run(id=RUN, verb="sweep", started_at=50.0))
    return Sweep(plan, store, RUN, tools(folder, **changes))


def by_name(known: tuple[MeasuredConfiguration, ...]) -> dict[str, MeasuredConfiguration]:
    return {one.configuration.name: one for one in known}


def test_each_is_served_and_loaded_in_interleaved_blocks(store: Store, tmp_path: Path) -> None:
    known = swept(store, tmp_path, read_sweep(TEXT, "f"))
    once = ["serve slow", "blast slow", "serve fast", "blast fast"]
    assert calls(tmp_path) == once * 2
    rows = table(known, ["output_tokens_per_s"])
    # 10 and 30 requests a second of 100 tokens
    assert [row.figures["rps"] for row in rows] == [
        pytest.approx(10, rel=0.02),
        pytest.approx(30, rel=0.02),
    ]
    assert rows[1].compared[0].difference == pytest.approx(2.0, rel=0.02)


def test_every_run_is_labelled_and_the_sweep_names_its_runs(store: Store, tmp_path: Path) -> None:
    known = by_name(swept(store, tmp_path, read_sweep(TEXT, "f")))
    first, second = known["slow"].runs
    told = [event.text for _, event in store.events(second) if event.kind == "config"]
    assert told == [f"sweep {RUN}: slow, block 2 of 2"]
    marks = [event.text for _, event in store.events(RUN)]
    assert f"slow, block 1: run {first}" in marks
    run = store.run(RUN)
    assert run is not None
    assert run.ended_at is not None


def test_a_failed_start_is_a_row_with_its_cause_and_the_sweep_goes_on(
    store: Store, tmp_path: Path
) -> None:
    text = TEXT.replace('name = "slow"\nsim = "slow"', 'name = "slow"\nsim = "broken"')
    known = by_name(swept(store, tmp_path, read_sweep(text, "f")))
    assert (known["slow"].status, known["slow"].cause) == ("failed", "the disk is full")
    assert known["fast"].status == "measured"
    assert len(known["fast"].blocks) == 2
    # a model's start takes minutes: it is not tried again in the second block
    assert calls(tmp_path).count("serve broken") == 1


def test_a_configuration_that_answers_nothing_is_a_failure(store: Store, tmp_path: Path) -> None:
    text = TEXT.replace('name = "slow"', 'name = "refuses"')
    known = by_name(swept(store, tmp_path, replace(read_sweep(text, "f"), blocks=1)))
    assert known["refuses"].cause == "it answered no request of the load"


def test_what_the_planner_shows_impossible_is_skipped_with_its_reason(
    store: Store, tmp_path: Path
) -> None:
    known = by_name(
        swept(
            store,
            tmp_path,
            replace(read_sweep(TEXT, "f"), blocks=1),
            impossible=lambda one: "too large" if one.name == "slow" else None,
        )
    )
    assert (known["slow"].status, known["slow"].cause) == ("skipped", "too large")
    assert set(calls(tmp_path)) == {"serve fast", "blast fast"}


def test_levers_move_from_the_best_model(store: Store, tmp_path: Path) -> None:
    levers = '\n[[levers]]\nname = "seqs"\nvalues = [{name = "16", settings = {max_num_seqs = 16}}]'
    # one that never starts is not waited for
    broken = '\n[[configurations]]\nname = "broken"\nsim = "broken"'
    known = swept(store, tmp_path, read_sweep(TEXT + broken + levers, "f"))
    assert [(one.configuration.stage, one.configuration.name) for one in known] == [
        (1, "slow"),
        (1, "fast"),
        (1, "broken"),
        (2, "fast"),
        (2, "seqs 16"),
    ]
    assert known[4].configuration.serving.sim == "fast"


def test_without_a_working_model_no_lever_is_tried(store: Store, tmp_path: Path) -> None:
    text = TEXT.replace('sim = "slow"', 'sim = "broken"').replace('sim = "fast"', 'sim = "broken"')
    levers = '\n[[levers]]\nname = "seqs"\nvalues = [{name = "16", settings = {max_num_seqs = 16}}]'
    known = swept(store, tmp_path, read_sweep(text + levers, "f"))
    assert [one.status for one in known] == ["failed", "failed"]


def test_what_does_not_warm_itself_is_warmed_before_the_load(store: Store, tmp_path: Path) -> None:
    plan = replace(read_sweep(TEXT, "f"), warm=True, blocks=1)
    known = by_name(swept(store, tmp_path, plan))
    slow = calls(tmp_path)[:3]
    assert [each.split()[0] for each in slow] == ["serve", "warmup", "blast"]
    assert known["slow"].blocks[1]["cold_ttft_ms"] == 890.0
    warmup = next(x for x in (tmp_path / "calls.txt").read_text().splitlines() if " warmup " in x)
    # the sweep has two users
    assert warmup.endswith("--profile contest --concurrency 1,2 --json")


def test_a_stack_that_serve_runs_warms_itself(store: Store, tmp_path: Path) -> None:
    text = TEXT.replace('sim = "slow"', 'model = "org/slow"')
    plan = replace(read_sweep(text, "f"), warm=True, blocks=1)
    known = by_name(swept(store, tmp_path, plan))
    stack = tmp_path / "slow-1-1-stack.toml"
    assert calls(tmp_path)[:2] == [f"serve {stack}", "blast slow"]
    assert 'model = "org/slow"' in stack.read_text()
    assert known["slow"].status == "measured"


def test_the_simulator_gets_its_settings(store: Store, tmp_path: Path) -> None:
    text = TEXT.replace('sim = "fast"', 'sim = "fast"\nsettings = {time_scale = 0.1}')
    swept(store, tmp_path, replace(read_sweep(text, "f"), blocks=1))
    served = [x for x in (tmp_path / "calls.txt").read_text().splitlines() if " sim serve " in x]
    assert [x.endswith("--set time_scale=0.1") for x in served] == [False, True]


@pytest.mark.parametrize("line", ["", "no JSON", "[1]"])
def test_a_warm_up_without_figures_tells_none(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("STAND_IN_WARMED", line)
    plan = replace(read_sweep(TEXT, "f"), warm=True, blocks=1)
    slow = by_name(swept(store, tmp_path, plan))["slow"]
    assert (slow.status, slow.notes, slow.blocks[1].get("cold_ttft_ms")) == ("measured", (), None)


def test_who_needs_a_key_is_warmed_with_it_and_a_warm_up_that_fails_says_why(
    store: Store, tmp_path: Path
) -> None:
    text = TEXT.replace('sim = "slow"', 'url = "http://10.0.0.4:8000"\nkey_env = "MINE"')
    text = text.replace('sim = "fast"', 'url = "http://10.0.0.9:8000"')
    plan = replace(read_sweep(text, "f"), warm=True, blocks=1)
    known = by_name(swept(store, tmp_path, plan))
    lines = (tmp_path / "calls.txt").read_text().splitlines()
    warmups = [line.split()[2] for line in lines if line.split()[1] == "warmup"]
    told = [Path(hosts).read_text() for hosts in warmups]
    assert told == [
        "slow http://10.0.0.4:8000 api_key_env=MINE\n",
        "fast http://10.0.0.9:8000\n",
    ]
    assert known["fast"].notes == ("not warmed: status 401: no key",)
    assert (known["slow"].notes, known["fast"].status) == ((), "measured")


def test_somebody_elses_server_is_neither_started_nor_ended(store: Store, tmp_path: Path) -> None:
    text = TEXT.replace('sim = "slow"', 'url = "http://10.0.0.4:8000/"')
    text = text.replace('sim = "fast"', 'url = "http://10.0.0.5:8000"')
    known = by_name(swept(store, tmp_path, replace(read_sweep(text, "f"), blocks=1)))
    assert calls(tmp_path) == ["blast slow", "blast fast"]
    assert known["slow"].start_s == ()
    with Store.open_readonly(tmp_path / "t.db") as read:
        urls = {host.url for run in known["slow"].runs for host in read.hosts_of(run).values()}
    assert urls == {"http://10.0.0.4:8000"}


def test_counters_and_requests_for_json_become_figures(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([{"preemptions": 1.0}, {"preemptions": 5.0}] * 4)
    asking = '[asking]\nrequests = 2\nprompts = ["x"]\nschema = "{}"\n[base]\nasked = "json"\n'
    plan = replace(read_sweep(TEXT.replace("[load]", f"{asking}[load]"), "f"), blocks=1)

    def ask(_: object, url: str, __: object) -> tuple[Figures, list[str]]:
        ratio = 0.25 if url.startswith("http://127.0.0.1") else None
        return {"invalid_json_ratio": ratio}, ["one of 4 was cut off"]

    monkeypatch.setattr(servers, "counters_of", lambda *_: next(looks))
    monkeypatch.setattr(servers, "invalid_json", ask)
    known = by_name(swept(store, tmp_path, plan))
    assert known["fast"].blocks[1]["preemptions"] == 4.0
    assert known["fast"].blocks[1]["invalid_json_ratio"] == 0.25
    assert "one of 4 was cut off" in known["fast"].notes


def test_an_engine_that_had_nothing_to_draft_is_told_from_one_whose_drafts_were_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"spec_drafts": 7.0, "spec_drafted": 21.0, "spec_accepted": 5.0}
    # `slow` drafts nothing in either block; of the 30 that `fast` drafts none is accepted
    more = counts | {"spec_drafts": 17.0, "spec_drafted": 51.0}
    looks = iter([counts, counts, counts, more] * 2)
    monkeypatch.setattr(servers, "counters_of", lambda *_: next(looks))
    known = by_name(swept(store, tmp_path, read_sweep(TEXT, "f")))
    note = "nothing was drafted under this load, so that no acceptance is known"
    assert (note in known["slow"].notes, note in known["fast"].notes) == (True, False)
    assert known["slow"].blocks[1]["spec_acceptance_ratio"] is None
    assert known["fast"].blocks[1]["spec_acceptance_ratio"] == 0


def test_a_profile_of_the_sweeps_own_is_given_as_a_file(store: Store, tmp_path: Path) -> None:
    text = TEXT.replace("[load]", '[profiles.mine]\nprompts = [{text = "Hi"}]\n[load]').replace(
        "blocks = 2", 'blocks = 1\nprofile = "mine"'
    )
    swept(store, tmp_path, read_sweep(text, "f"))
    told = (tmp_path / "calls.txt").read_text()
    assert f"--profile {tmp_path / 'mine.profile.toml'}" in told
    assert "Hi" in (tmp_path / "mine.profile.toml").read_text()


# --- a sweep that is cut off --------------------------------------------------------------------------


def go(folder: str) -> None:
    """Run the sweep in a process of its own, which a test kills."""
    path = Path(folder)
    with Store.open(path / "t.db") as store:
        swept(store, path, read_sweep(TEXT, "f"))


def start_half(folder: Path) -> "subprocess.Popen[bytes]":
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('half', {__file__!r})\n"
        "half = importlib.util.module_from_spec(spec); sys.modules['half'] = half\n"
        "spec.loader.exec_module(half)\n"
        f"half.go({str(folder)!r})\n"
    )
    return subprocess.Popen([sys.executable, "-c", code])


def blast_seconds(database: Path) -> int:
    """Seconds that the newest blast has told of."""
    if not database.exists():
        return 0
    try:
        with Store.open_readonly(database) as store:
            runs = store.runs(verb="blast", limit=1)
            return len(store.loader_seconds(runs[0].id)) if runs else 0
    except ToolkitError:
        return 0


def under_way(database: Path) -> bool:
    """Whether the sweep has written down which run it waits for."""
    with Store.open_readonly(database) as store:
        cells = state_of(store, RUN).cells.values()
        return any(cell.run and cell.status == "under way" for cell in cells)


def pids(folder: Path) -> list[int]:
    return [int(line.split()[0]) for line in (folder / "calls.txt").read_text().splitlines()]


def test_killed_in_the_midst_of_a_load_it_goes_on_with_that_very_run(tmp_path: Path) -> None:
    (tmp_path / "pause").touch()
    sweep = start_half(tmp_path)
    until(lambda: blast_seconds(tmp_path / "t.db") == 2)
    until(lambda: under_way(tmp_path / "t.db"))
    sweep.kill()
    sweep.wait()
    left = pids(tmp_path)
    (tmp_path / "pause").unlink()
    with Store.open(tmp_path / "t.db") as store:
        (begun,) = store.runs(verb="blast")
        said: list[str] = []
        known = Sweep(read_sweep(TEXT, "f"), store, RUN, tools(tmp_path, say=said.append)).run()
        (first, *_) = by_name(known)["slow"].runs
        assert first == begun.id
        kinds = [event.kind for _, event in store.events(first)]
        assert kinds.count("resume") == 1
        # 2 s before the kill and 2 s after it; of each the first, in which users come, does not count, and of those
        # before the kill the last neither, in which they waited for their last answers
        assert by_name(known)["slow"].blocks[1]["seconds"] == 1
        assert by_name(known)["slow"].blocks[1]["rps"] == pytest.approx(10, rel=0.1)
        assert len(store.runs(verb="blast")) == 4
    assert said[0].startswith("Ended 2 processes")
    assert all(started_ticks(pid) is None for pid in left)


def test_killed_between_two_configurations_it_repeats_nothing(tmp_path: Path) -> None:
    sweep = start_half(tmp_path)
    until(lambda: (tmp_path / "calls.txt").exists() and "serve fast" in calls(tmp_path))
    sweep.kill()
    sweep.wait()
    with Store.open(tmp_path / "t.db") as store:
        before = [run.id for run in store.runs(verb="blast")]
        known = Sweep(read_sweep(TEXT, "f"), store, RUN, tools(tmp_path)).run()
        assert set(before) <= {run for one in known for run in one.runs}
    assert calls(tmp_path).count("blast slow") == 2
    assert all(started_ticks(pid) is None for pid in pids(tmp_path))


def test_an_interrupt_ends_the_children_and_keeps_what_was_measured(
    store: Store, tmp_path: Path
) -> None:
    def interrupt_at_fast(sentence: str) -> None:
        if sentence.startswith("fast, block 1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept(store, tmp_path, read_sweep(TEXT, "f"), say=interrupt_at_fast)
    assert all(started_ticks(pid) is None for pid in pids(tmp_path))
    sweep = Sweep(read_sweep(TEXT, "f"), store, RUN, tools(tmp_path))
    before = by_name(sweep.known())
    assert (before["slow"].status, before["fast"].status) == ("measured", "not begun")
    assert len(by_name(sweep.run())["fast"].blocks) == 2
    assert calls(tmp_path).count("blast slow") == 2


def test_a_blast_that_told_its_name_and_was_killed_before_it_was_stored_is_begun_anew(
    store: Store, tmp_path: Path
) -> None:
    sweep = begun(store, tmp_path, replace(read_sweep(TEXT, "f"), blocks=1))
    sweep.state.cells["1/slow/1"] = SweepCell(run="f" * 12, url="http://127.0.0.1:9", begun_at=1.0)
    slow = by_name(sweep.run())["slow"]
    assert len(slow.blocks) == 1
    assert "f" * 12 not in slow.runs


def test_a_blast_whose_name_was_not_written_down_is_found_by_its_host_and_its_time(
    store: Store, tmp_path: Path
) -> None:
    url = "http://127.0.0.1:9"
    for run, started_at, name in (("c" * 12, 100.0, "slow"), ("d" * 12, 10.0, "fast")):
        store.add_run(Run(id=run, verb="blast", started_at=started_at))
        store.plan_hosts(run, [Host(name=name, url=url)])
        store.add_second(
            seconds=[LoaderSecond(run=run, at_s=place, worker="w", users=1) for place in range(4)]
        )
    said: list[str] = []
    sweep = begun(store, tmp_path, read_sweep(TEXT, "f"), say=said.append)
    for name in ("slow", "fast"):
        sweep.state.cells[f"1/{name}/1"] = SweepCell(url=url, begun_at=50.0)
    known = sweep.run()
    assert by_name(known)["slow"].runs[0] == "c" * 12
    # the older one was somebody else's
    assert "d" * 12 not in by_name(known)["fast"].runs
    assert "slow, block 1 of 2: was measured in full before the sweep was cut off" in said


def test_a_blast_of_another_address_is_not_gone_on_with(store: Store, tmp_path: Path) -> None:
    store.add_run(Run(id="c" * 12, verb="blast", started_at=100.0))
    sweep = begun(store, tmp_path, replace(read_sweep(TEXT, "f"), blocks=1))
    # the port of then is taken, and the server stands at another one
    sweep.state.cells["1/slow/1"] = SweepCell(run="c" * 12, url="http://127.0.0.1:9", begun_at=50.0)
    assert "c" * 12 not in by_name(sweep.run())["slow"].runs
    assert "--resume" not in (tmp_path / "calls.txt").read_text()


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"form": 99}, "another version"),
        ({"form": 1, "cells": {"1/slow/1": 7}}, "not as the toolkit writes it"),
    ],
)
def test_a_state_of_another_version_is_refused(
    store: Store, told: dict[str, object], why: str
) -> None:
    store.add_run(Run(id=RUN, verb="sweep", started_at=1.0))
    store.set_capture(RUN, told)
    with pytest.raises(ToolkitError, match=why):
        state_of(store, RUN)


def test_a_block_that_failed_is_noted_beside_those_that_did_not(
    store: Store, tmp_path: Path
) -> None:
    sweep = begun(store, tmp_path, read_sweep(TEXT, "f"))
    store.add_run(Run(id="b" * 12, verb="blast", started_at=1.0))
    sweep.state.cells["1/slow/1"] = SweepCell(status="measured", run="b" * 12)
    sweep.state.cells["1/slow/2"] = SweepCell(status="failed", cause="the disk is full")
    found = sweep.known()[0]
    assert (found.status, found.notes) == ("measured", ("block 2 failed: the disk is full",))


def test_seconds_in_which_the_load_generator_was_the_limit_are_noted(
    store: Store, tmp_path: Path
) -> None:
    sweep = begun(store, tmp_path, read_sweep(TEXT, "f"))
    store.add_run(Run(id="b" * 12, verb="blast", started_at=1.0))
    store.add_second(
        seconds=[
            LoaderSecond(run="b" * 12, at_s=place, worker=worker, limited=place < 3)
            for place in range(5)
            for worker in ("w1", "w2")
        ]
    )
    sweep.state.cells["1/slow/1"] = SweepCell(status="measured", run="b" * 12)
    found = sweep.known()[0]
    assert found.notes == ("the load generator was the limit in 3 s of 1 block",)
