"""Locust's other ways: a web page, an open loop, phases; and what it refuses before anything is sent."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from contract.harness.programs import free_port, until
from support import sim_fleet
from support.locusts import (
    CAST,
    DATABASE,
    HOSTS,
    LOCUSTFILE,
    all_sums,
    command,
    counted_everywhere,
    errors,
    headless,
    newest,
    requests_kept,
    run,
    start,
    stored,
    urls_in,
    wait_for,
)

from toolkit.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hosts() -> Iterator[str]:
    with sim_fleet.running(CAST) as text:
        yield text


def before_and_after(hosts: str) -> Any:
    """Call it twice: what the servers counted in between."""
    urls, earlier = urls_in(hosts), counted_everywhere(urls_in(hosts))

    def since() -> dict[str, Any]:
        now = counted_everywhere(urls)
        return {name: now[name].since(earlier[name]) for name in urls}

    return since


# --- the web page ---------------------------------------------------------------------------------------


def post(port: int, path: str, **form: object) -> dict[str, Any]:
    data = urllib.parse.urlencode(form).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=60) as page:
        return dict(json.loads(page.read()))


@contextmanager
def web(folder: Path, *words: str) -> Iterator[int]:
    port = free_port()
    asked = command("--web-host", "127.0.0.1", "--web-port", str(port), *words)
    with start(folder, asked) as running:
        wait_for(running, "Starting web interface")
        until(lambda: answers(port))
        yield port
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=60)
        assert running.returncode == 0, said


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5):
            return True
    except OSError:
        return False


def test_a_form_that_cannot_be_meant_is_refused_and_each_start_on_the_page_is_a_run_of_its_own(
    tmp_path: Path, hosts: str
) -> None:
    (tmp_path / HOSTS).write_text(hosts)
    since = before_and_after(hosts)
    with web(tmp_path, "--max-tokens", "4") as port:
        elsewhere = post(port, "/swarm", user_count=2, spawn_rate=9, host="http://127.0.0.1:1")
        no_share = post(port, "/swarm", user_count=2, spawn_rate=9, mix=200)
        no_profile = post(port, "/swarm", user_count=2, spawn_rate=9, profile="no-such")
        assert "leave `Host` empty" in elsewhere["message"]
        assert "`--mix 200`" in no_share["message"]
        assert "`no-such`" in no_profile["message"]
        assert {told["success"] for told in (elsewhere, no_share, no_profile)} == {False}
        assert {counted.requests for counted in since().values()} == {0}
        with Store.open_readonly(tmp_path / DATABASE) as store:
            assert store.runs() == []

        assert post(port, "/swarm", user_count=3, spawn_rate=100, host="")["success"]
        until(lambda: requests_kept(tmp_path) > 5)
        assert post(port, "/stop")["success"]
        first = newest(tmp_path)
        assert first.ended_at is not None
        until(lambda: post(port, "/swarm", user_count=2, spawn_rate=100, mix=100)["success"])
        until(lambda: requests_kept(tmp_path, besides=first.id) > 5)
    second = newest(tmp_path)
    assert second.ended_at is not None
    of_both = [stored(tmp_path, each.id) for each in (first, second)]
    for name, truth in since().items():
        assert sum(part[name].requests for part in of_both) == truth.requests
    # 3 users are 2 for each of 2 hosts; the form's own words count
    assert json.loads(first.settings)["users"] == 4
    assert {sums.ok - sums.streamed for sums in all_sums(tmp_path, second.id).values()} == {0}


# --- an open loop ---------------------------------------------------------------------------------------


def test_an_open_loop_asks_every_host_at_the_same_rate_and_charges_a_slow_one(
    tmp_path: Path,
) -> None:
    # the slow one takes a second for its 64 tokens, so 2 users make 2 requests a second of the 20
    cast = {"quick": ("fp8", {"time_scale": 0.01}), "slow": ("fp8", {"time_scale": 1.0})}
    with sim_fleet.running(cast) as text:
        (tmp_path / HOSTS).write_text(text)
        words = ("--rate", "20", "--max-tokens", "64", "--request-timeout", "4", "--canaries", "0")
        run(tmp_path, headless("-u", "4", "-t", "4s", *words))
        truth = counted_everywhere(urls_in(text))
    of_kinds = all_sums(tmp_path)
    assert {kind for _, _, kind in of_kinds} == {"ranked"}, "no canary was wanted"
    sums = {name: each for (name, _, _), each in of_kinds.items()}
    assert sums["quick"].ok == truth["quick"].requests
    # on a busy machine the load generator itself may be late
    assert set(errors(tmp_path).get("quick", {})) <= {"not_sent"}
    # 20 a second for 4 s were planned for both, give or take the start and the end, and each one counts as what became of it
    for name in ("quick", "slow"):
        assert 50 <= sums[name].ok + sums[name].errors <= 84
    assert sums["slow"].ok < sums["quick"].ok
    assert set(errors(tmp_path)["slow"]) <= {"not_sent", "timeout"}
    assert errors(tmp_path)["slow"]["not_sent"] > 5
    assert json.loads(newest(tmp_path).settings)["rate"] == 20


# --- phases ---------------------------------------------------------------------------------------------

PHASES = """
max_tokens = 4
[[prompts]]
text = "What is the capital of Singapore?"
[[phases]]
name = "warm"
for = "2s"
users = 1
[[phases]]
name = "busy"
for = "2s"
users = 3
[[phases]]
name = "calm"
for = "1s"
users = 1
"""


def test_phases_set_the_users_and_are_told_as_events(tmp_path: Path, hosts: str) -> None:
    (tmp_path / HOSTS).write_text(hosts)
    (tmp_path / "phases.toml").write_text(PHASES)
    since = before_and_after(hosts)
    run(tmp_path, headless("--profile", "phases.toml"))
    assert stored(tmp_path) == since()
    with Store.open_readonly(tmp_path / DATABASE) as store:
        found = newest(tmp_path)
        events = [(event.kind, event.text) for _, event in store.events(found.id)]
        users = [second.users for _, second in store.loader_seconds(found.id)]
    assert [text for kind, text in events if kind == "phase"] == ["warm", "busy", "calm"]
    assert (events[0][0], events[-1][0]) == ("start", "stop")
    # 2 hosts: 2 users, then 6, then 2; the seconds in which they change may show either
    assert {2, 6} <= set(users) <= {0, 2, 4, 6}
    assert users.index(2) < users.index(6)
    assert found.ended_at is not None


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "variables", "expected"),
    [
        ([], {"LOCUST_HOST": "http://127.0.0.1:1"}, "`--host http://127.0.0.1:1` stands beside"),
        ([], {"TOOLKIT_HOSTS": "no-such.txt"}, "`no-such.txt` cannot be read"),
        (["--canaries", "101"], {}, "`--canaries 101.0` is no number from 0 to 100"),
        (["--run", "no-id"], {}, "`--run no-id` is no run's id"),
        (["--resume", "0123456789ab"], {}, "has no run `0123456789ab`"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_error(
    tmp_path: Path, words: list[str], variables: dict[str, str], expected: str
) -> None:
    (tmp_path / HOSTS).write_text("alice http://127.0.0.1:9\n")
    said = run(tmp_path, headless("-u", "1", "-t", "1s", *words), code=1, **variables)
    assert f"Error: {expected}" in said or f"Error: `{DATABASE}` {expected}" in said
    assert "Hint: " in said
    assert "Traceback" not in said


@pytest.mark.parametrize("words", [(), ("--processes", "2")])
def test_a_host_on_the_load_generators_machine_marks_the_run_as_not_valid_for_ranking(
    tmp_path: Path, hosts: str, words: tuple[str, ...]
) -> None:
    (tmp_path / HOSTS).write_text(hosts)
    said = run(tmp_path, headless("-u", "2", "-t", "1s", "--max-tokens", "4", *words))
    here = "`fp8` (127.0.0.1) and `gptq-int4` (127.0.0.1) are on this machine"
    assert f"Not valid for ranking: {here}; the run is marked as such" in said
    with Store.open_readonly(tmp_path / DATABASE) as store:
        found = newest(tmp_path)
        marks = [event.text for _, event in store.events(found.id) if event.kind == "mark"]
    assert marks == [f"not valid for ranking: {here}"]
    assert found.plan["non_neutral"] == here
    assert found.plan["load_generator"] == [socket.gethostname()]


def test_what_greets_from_another_machine_says_which_hosts_are_there(
    tmp_path: Path, hosts: str
) -> None:
    """A worker that is started by itself looks for its own machine's hosts, and the master believes it."""
    (tmp_path / HOSTS).write_text(hosts)
    port = free_port()
    master = ("--master", "--expect-workers", "1", "--master-bind-port", str(port))
    with start(tmp_path, headless("-u", "2", "-t", "1s", *master)) as running:
        run(tmp_path, command("--worker", "--master-port", str(port)))
        said, _ = running.communicate(timeout=60)
    assert "Not valid for ranking: `fp8` (127.0.0.1) and" in said
    assert newest(tmp_path).plan["non_neutral"].endswith("are on this machine")


def test_two_machines_of_one_name_lose_no_mark_and_a_repeated_greeting_adds_none() -> None:
    # in a process of its own: the import patches Python's sockets
    program = """if True:
        from types import SimpleNamespace
        from blast_run import Blast
        blast = Blast(None, [])
        blast._master = SimpleNamespace(note=lambda *mark: print(*mark))
        a, b = ("a", "10.0.0.1"), ("b", "10.0.0.2")
        for found in ([a], [], [b], [a], [a, b]):
            blast._note_local_hosts("gpu", found)
        print(blast._local_hosts)
        """
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=os.environ | {"PYTHONPATH": str(LOCUSTFILE.parent)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert said.stdout.splitlines() == [
        "mark not valid for ranking: `a` (10.0.0.1) is on this machine",
        "mark not valid for ranking: `b` (10.0.0.2) is on this machine",
        "{'gpu': [('a', '10.0.0.1'), ('b', '10.0.0.2')]}",
    ]


def test_without_a_list_the_one_host_is_loaded_and_without_any_it_says_so(
    tmp_path: Path, hosts: str
) -> None:
    since = before_and_after(hosts)
    url = urls_in(hosts)["fp8"]
    run(tmp_path, headless("-u", "2", "-t", "1s", "--max-tokens", "4", "--host", url))
    assert list(stored(tmp_path).values()) == [since()["fp8"]]
    said = run(tmp_path, headless("-u", "2", "-t", "1s"), code=1)
    assert "Error: no hosts to load were given" in said
