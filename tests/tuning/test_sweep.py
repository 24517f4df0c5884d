"""A sweep from its first configuration to its last, with a stand-in for the commands that it runs: order, failures, resumption."""

import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import stand_in_toolkit

from toolkit.errors import ToolkitError
from toolkit.records import Event, Host, LoaderSecond, Run
from toolkit.serving.stack import read
from toolkit.store import Store
from toolkit.tuning import servers
from toolkit.tuning.children import started_ticks
from toolkit.tuning.figures import Figures
from toolkit.tuning.sweep import Sweep, SweepCell, Tools, begin, estimate_s, state_of
from toolkit.tuning.sweep_file import foreseen, read_sweep
from toolkit.tuning.sweep_table import SweepRow

pytestmark = pytest.mark.slow

RUN = "0123456789ab"
TEXT = """
look_at = ["output_tokens_per_s", "rps"]
blocks = 2
warm = false
[load]
duration = "4s"
settle = "1s"
users = 2
mix = 50
[[configurations]]
name = "slow"
sim = "slow"
[[configurations]]
name = "fast"
sim = "fast"
settings = {time_scale = 0.1}
"""
ONCE = TEXT.replace("blocks = 2", "blocks = 1")
LEVERS = """
[[levers]]
name = "seqs"
values = [{name = "16", settings = {max_num_seqs = 16}}]
"""
STAND_IN = (sys.executable, str(Path(stand_in_toolkit.__file__)))


@pytest.fixture(autouse=True)
def calls_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in has no counters."""
    monkeypatch.setenv("STAND_IN_CALLS", str(tmp_path / "calls.txt"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr(servers, "counters_of", lambda *_: {})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "t.db") as opened:
        yield opened


def lines(folder: Path) -> list[str]:
    """The commands that were run, each with its process's number before it."""
    return (folder / "calls.txt").read_text().splitlines()


def calls(folder: Path) -> list[str]:
    """Each by its first word and who it was about."""
    found = []
    for line in lines(folder):
        _, *words = line.split()
        if words[0] in ("blast", "warmup"):
            found.append(f"{words[0]} {Path(words[1]).read_text().split()[0]}")
        else:
            found.append(" ".join(words[:4]).replace("sim serve --personality", "serve"))
    return found


def begun(store: Store, folder: Path, text: str, **changes: Any) -> Sweep:
    """A sweep; one that the store knows goes on."""
    if store.run(RUN) is None:
        begin(store, Run(id=RUN, verb="sweep", started_at=50.0))
    tools = Tools(
        command=STAND_IN,
        folder=folder,
        database=folder / "t.db",
        impossible=lambda _: None,
        say=lambda _: None,
    )
    return Sweep(read_sweep(text, "f"), store, RUN, replace(tools, **changes))


def swept(store: Store, folder: Path, text: str, **changes: Any) -> dict[str, SweepRow]:
    return {row.name: row for row in begun(store, folder, text, **changes).run()}


def test_a_database_that_refuses_an_event_costs_no_measurement(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(event: Event) -> None:
        raise ToolkitError(f"{event.kind} is refused")

    with monkeypatch.context() as refusing:
        refusing.setattr(store, "add_event", refuse)
        with pytest.raises(ToolkitError, match="config is refused"):
            begun(store, tmp_path, ONCE).run()
    rows = swept(store, tmp_path, ONCE)
    assert {name: row.status for name, row in rows.items()} == dict.fromkeys(rows, "measured")
    assert calls(tmp_path) == ["serve slow", "blast slow", "serve fast", "blast fast"]


def test_each_is_served_and_loaded_in_interleaved_blocks_and_every_run_is_labelled(
    store: Store, tmp_path: Path
) -> None:
    rows = swept(store, tmp_path, TEXT)
    assert calls(tmp_path) == ["serve slow", "blast slow", "serve fast", "blast fast"] * 2
    # 10 and 30 requests a second
    assert rows["slow"].figure("rps") == pytest.approx(10, rel=0.02)
    assert rows["fast"].figure("rps") == pytest.approx(30, rel=0.02)
    _, second = rows["slow"].runs
    labels = [event.text for _, event in store.events(second) if event.kind == "config"]
    assert labels == [f"sweep {RUN}: slow, block 2 of 2"]
    marks = [event.text for _, event in store.events(RUN)]
    assert f"slow, block 2: run {second}" in marks
    over = store.run(RUN)
    assert over is not None
    assert over.ended_at is not None
    # the words of a load: two users come evenly over the second that does not count
    _, load, serve, *_ = lines(tmp_path)
    assert load.partition(" ")[2] == (
        f"blast {tmp_path / 'slow-1-1-hosts.txt'} --profile contest --users 2 --spawn-rate 2 --canaries 0 --timeout 60s "
        f"--processes 1 --mix 50 --duration 4s --db {tmp_path / 't.db'} --non-neutral --json"
    )
    assert serve.endswith("--set time_scale=0.1")


def test_what_fails_or_cannot_fit_is_a_row_with_its_cause_and_the_sweep_goes_on(
    store: Store, tmp_path: Path
) -> None:
    more = "".join(
        f'\n[[configurations]]\nname = "{name}"\nsim = "{name}"'
        for name in ("broken", "refuses", "large")
    )
    rows = swept(
        store,
        tmp_path,
        TEXT + more,
        impossible=lambda one: "too large" if one.name == "large" else None,
    )
    assert {name: (row.status, row.cause, len(row.blocks)) for name, row in rows.items()} == {
        "slow": ("measured", None, 2),
        "fast": ("measured", None, 2),
        "broken": ("failed", "the disk is full", 0),
        "refuses": ("failed", "it answered no request of the load", 0),
        "large": ("skipped", "too large", 0),
    }
    # a model's start takes minutes: what never worked is not tried again in the second block
    assert calls(tmp_path).count("serve broken") == calls(tmp_path).count("serve refuses") == 1
    assert "serve large" not in calls(tmp_path)


def test_levers_move_from_the_best_model_and_without_one_nowhere(
    store: Store, tmp_path: Path
) -> None:
    known = begun(store, tmp_path, ONCE + LEVERS).run()
    assert [(row.stage, row.name) for row in known] == [
        (1, "slow"),
        (1, "fast"),
        (2, "fast"),
        (2, "seqs 16"),
    ]
    last = [line for line in lines(tmp_path) if " sim serve " in line][-1]
    assert last.split()[4] == "fast"
    assert last.endswith("--set time_scale=0.1 --set max_num_seqs=16")
    broken = ONCE.replace('sim = "slow"', 'sim = "broken"').replace(
        'sim = "fast"', 'sim = "broken"'
    )
    store.set_capture(RUN, {"form": 1})
    assert [row.status for row in begun(store, tmp_path, broken + LEVERS).run()] == ["failed"] * 2


@pytest.mark.parametrize("line", [None, "", "no JSON", "[1]"])
def test_what_does_not_warm_itself_is_warmed_before_the_load(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str | None
) -> None:
    if line is not None:
        monkeypatch.setenv("STAND_IN_WARMED", line)
    text = ONCE.replace("warm = false", "").replace("users = 2", "users = 5")
    slow = swept(store, tmp_path, text.partition('[[configurations]]\nname = "fast"')[0])["slow"]
    assert calls(tmp_path) == ["serve slow", "warmup slow", "blast slow"]
    # as far as the load goes, which has five users
    assert lines(tmp_path)[1].endswith("--profile contest --concurrency 1,2,4,5 --json")
    # a warm-up without figures has none
    told = 890.0 if line is None else None
    assert (slow.status, slow.notes, slow.blocks[1].get("cold_ttft_ms")) == ("measured", (), told)


def test_somebody_elses_server_is_warmed_with_its_key_and_neither_started_nor_ended(
    store: Store, tmp_path: Path
) -> None:
    text = ONCE.replace('sim = "slow"', 'url = "10.0.0.4:8000/"\nkey_env = "MINE"')
    text = text.replace('sim = "fast"', 'url = "http://10.0.0.9:8000"')
    rows = swept(store, tmp_path, text.replace("warm = false", ""))
    assert calls(tmp_path) == ["warmup slow", "blast slow", "warmup fast", "blast fast"]
    hosts = [Path(line.split()[2]).read_text() for line in lines(tmp_path) if " warmup " in line]
    assert hosts == [
        "slow http://10.0.0.4:8000 api_key_env=MINE\n",
        "fast http://10.0.0.9:8000\n",
    ]
    # a warm-up that fails says why, and is no reason not to load
    assert rows["fast"].notes == ("not warmed: status 401: no key",)
    assert (rows["slow"].notes, rows["slow"].starts_s, rows["fast"].status) == ((), (), "measured")
    urls = {host.url for run in rows["slow"].runs for host in store.hosts_of(run).values()}
    assert urls == {"http://10.0.0.4:8000"}


def test_a_model_is_served_by_a_stack_of_the_engine_alone_which_warms_itself(
    store: Store, tmp_path: Path
) -> None:
    model = """model = "org/m"
gpus = "0"
key_env = "KEY"
flags = {max-model-len = 512, enable-prefix-caching = false}
env = {A = "b"}"""
    text = ONCE.replace('sim = "slow"', model).replace('"slow"', '"fp8 a, é#"')
    text = text.replace("warm = false", 'profile = "mine"').replace("users = 2", "users = 6")
    text += '\n[profiles.mine]\nprompts = [{text = "Hi"}]'
    swept(store, tmp_path, text)
    # a name becomes one word of a hosts file
    file = tmp_path / "fp8-a-é-1-1-stack.toml"
    assert calls(tmp_path)[:2] == [f"serve {file}", "blast fp8-a-é"]
    stack = read(file.read_text(), "stack.toml", lambda _: {})
    (engine,) = stack.engines
    # and one that an engine may have
    known = (engine.name, engine.model, engine.gpus, engine.key_env, dict(engine.env))
    assert known == ("fp8-a", "org/m", "0", "KEY", {"A": "b"})
    assert dict(engine.flags) == {"max-model-len": "512", "enable-prefix-caching": False}
    # warmed as far as the load goes, with the sweep's own prompts
    assert stack.warm.concurrency == (1, 2, 4, 6)
    assert stack.warm.profile == str(tmp_path / "mine.profile.toml")
    assert "Hi" in Path(stack.warm.profile).read_text()
    # a response cache before it would answer for all configurations alike
    assert (stack.proxy, stack.database) == (None, str(tmp_path / "t.db"))


def test_counters_and_requests_for_json_become_figures(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"preemptions": 1.0, "spec_drafts": 7.0, "spec_drafted": 21.0, "spec_accepted": 5.0}
    # `slow` drafts nothing; of the 30 that `fast` drafts none is accepted
    more = counts | {"preemptions": 5.0, "spec_drafts": 17.0, "spec_drafted": 51.0}
    looks = iter([counts, counts, counts, more])
    asking = '[asking]\nrequests = 2\nprompts = ["x"]\nschema = "{}"\n[base]\nasked = "json"\n'

    def ask(_: object, url: str, __: object) -> tuple[Figures, list[str]]:
        ratio = 0.25 if url.startswith("http://127.0.0.1") else None
        return {"invalid_json_ratio": ratio}, ["one of 4 was cut off"]

    monkeypatch.setattr(servers, "counters_of", lambda *_: next(looks))
    monkeypatch.setattr(servers, "invalid_json", ask)
    rows = swept(store, tmp_path, ONCE.replace("[load]", f"{asking}[load]"))
    slow, fast = rows["slow"].blocks[1], rows["fast"].blocks[1]
    assert (fast["preemptions"], fast["invalid_json_ratio"]) == (4.0, 0.25)
    assert (slow["spec_acceptance_ratio"], fast["spec_acceptance_ratio"]) == (None, 0)
    assert rows["fast"].notes == ("one of 4 was cut off",)
    assert rows["slow"].notes[1].startswith("nothing was drafted under this load")


def test_the_time_is_foreseen_where_starts_are_known_and_not_where_they_are_not() -> None:
    plan = read_sweep(TEXT, "f")
    # the simulator: 2 blocks x 2 configurations x (1 s start + 4 s load + 4 s around it)
    assert estimate_s(plan, foreseen(plan)[0], sim=True) == pytest.approx(36)
    text = TEXT.replace('sim = "slow"', 'model = "org/slow"')
    plan = read_sweep(text, "f")
    assert estimate_s(plan, foreseen(plan)[0], sim=False) is None
    plan = read_sweep(text.replace("mix = 50", 'start = "3m"'), "f")
    assert estimate_s(plan, foreseen(plan)[0], sim=False) == pytest.approx(4 * (180 + 4 + 4))


# --- a sweep that is cut off --------------------------------------------------------------------------


def all_gone(folder: Path) -> bool:
    return all(started_ticks(int(line.split()[0])) is None for line in lines(folder))


def test_an_interrupt_ends_the_children_and_keeps_what_was_measured(
    store: Store, tmp_path: Path
) -> None:
    def interrupt_at_fast(sentence: str) -> None:
        if sentence.startswith("fast, block 1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept(store, tmp_path, TEXT, say=interrupt_at_fast)
    assert all_gone(tmp_path)
    sweep = begun(store, tmp_path, TEXT)
    assert [row.status for row in sweep.known()] == ["measured", "not begun"]
    assert [len(row.blocks) for row in sweep.run()] == [2, 2]
    assert calls(tmp_path).count("blast slow") == 2


def cut_off(store: Store, run: str, name: str, url: str, *, at: int, seconds: int) -> None:
    """A blast of so many seconds at one host, and no end."""
    store.add_run(Run(id=run, verb="blast", started_at=float(at)))
    store.plan_hosts(run, [Host(name=name, url=url)])
    store.add_event(Event(run=run, at=float(at), kind="start"))
    loader = [LoaderSecond(run=run, at_s=at + n, worker="w", users=1) for n in range(seconds)]
    store.add_second(seconds=loader)


def test_a_blast_that_was_cut_off_goes_on_and_one_that_was_over_is_not_repeated(
    store: Store, tmp_path: Path
) -> None:
    """A killed sweep's blast is found by its host, its address and its time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    cut_off(store, "a" * 12, "slow", url, at=1000, seconds=2)
    cut_off(store, "c" * 12, "fast", url, at=1100, seconds=4)
    said: list[str] = []
    sweep = begun(store, tmp_path, TEXT, say=said.append)
    sweep.state.ports["server"] = port
    for name in ("slow", "fast"):
        sweep.state.cells[f"1/{name}/1"] = SweepCell(url=url, begun_at=999.0)
    assert [row.runs for row in sweep.known()] == [("a" * 12,), ("c" * 12,)]
    slow, fast = sweep.run()
    assert (slow.runs[0], fast.runs[0]) == ("a" * 12, "c" * 12)
    assert "fast, block 1 of 2: was measured in full before the sweep was cut off" in said
    assert calls(tmp_path).count("blast fast") == 1  # of two blocks
    resumed = next(line for line in lines(tmp_path) if " blast " in line)
    assert (f"--resume {'a' * 12}" in resumed, "--duration" in resumed) == (True, False)
    # 2 s before it was cut off and 2 s after it; of each the first, in which users come, does not count, and of those
    # before the last neither, in which they waited for their last answers
    assert (slow.blocks[1]["seconds"], slow.blocks[1]["rps"]) == (1, pytest.approx(10, rel=0.1))


@pytest.mark.parametrize(
    ("address", "at"), [("http://127.0.0.1:9", 1000), ("http://127.0.0.1:10", 900)]
)
def test_a_blast_of_another_address_or_an_earlier_time_is_somebody_elses(
    store: Store, tmp_path: Path, address: str, at: int
) -> None:
    """The port of then may be taken, and the server stands at another one."""
    cut_off(store, "c" * 12, "slow", "http://127.0.0.1:10", at=at, seconds=2)
    sweep = begun(store, tmp_path, ONCE)
    sweep.state.cells["1/slow/1"] = SweepCell(url=address, begun_at=999.0)
    assert "c" * 12 not in sweep.run()[0].runs
    assert not any("--resume" in line for line in lines(tmp_path))


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"form": 99}, "another version"),
        ({"form": 1, "cells": {"1/slow/1": 7}}, "not as the toolkit writes it"),
    ],
)
def test_a_state_of_another_version_is_refused(
    store: Store, state: dict[str, object], why: str
) -> None:
    store.add_run(Run(id=RUN, verb="sweep", started_at=1.0))
    store.set_capture(RUN, state)
    with pytest.raises(ToolkitError, match=why):
        state_of(store, RUN)


def test_a_block_that_failed_and_a_load_generator_at_its_limit_are_noted(
    store: Store, tmp_path: Path
) -> None:
    sweep = begun(store, tmp_path, TEXT)
    store.add_run(Run(id="b" * 12, verb="blast", started_at=1.0))
    loader = [
        LoaderSecond(run="b" * 12, at_s=place, worker=worker, limited=place < 3)
        for place in range(5)
        for worker in ("w1", "w2")
    ]
    store.add_second(seconds=loader)
    sweep.state.cells["1/slow/1"] = SweepCell(status="measured", run="b" * 12)
    sweep.state.cells["1/slow/2"] = SweepCell(status="failed", cause="the disk is full")
    slow = sweep.known()[0]
    assert (slow.status, slow.notes) == (
        "measured",
        (
            "block 2 failed: the disk is full",
            "the load generator was the limit in 3 s of 1 block",
        ),
    )
