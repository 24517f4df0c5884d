"""A blast's master or one of its workers killed with SIGKILL, again and again, in the same run on the same database.

What must be there is told by the servers, which count the requests that ended. A request is on disk at the latest 1.35 s
after its end: its second must be over (1 s), the workers report 0.05 s later, and the master writes them down, once a
second, when all have reported or after 0.3 s more. So of what the master has heard at most one second can be lost, and
of what a worker has counted the second that is not over. Two rounds by default, twenty with TOOLKIT_LONG=full; a round
takes 5 to 15 s.
"""

import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from contract.harness.programs import free_port, until
from support import sim_fleet
from support.locusts import (
    BEGUN,
    CAST,
    DATABASE,
    HOSTS,
    Started,
    counted_everywhere,
    headless,
    newest,
    start,
    stored,
    urls_in,
    wait_for,
)

from toolkit.store import Store

ROUNDS = {"short": 2, "full": 20}[os.environ.get("TOOLKIT_LONG", "short")]
LOST_S = 1.35
DELIVERY_S = 0.15
"""From a server's counting an answer to the client's having read it, on a busy machine."""
RUN = "0123456789ab"
USERS, WORKERS = 8, 2

pytestmark = pytest.mark.timeout(120 + 60 * ROUNDS)


@contextmanager
def blast(folder: Path, *words: str) -> Iterator[list[Started]]:
    """A master and its workers, which are all gone afterwards."""
    port = str(free_port())
    asked = ("--expect-workers", str(WORKERS), "-u", str(USERS), "--max-tokens", "8")
    master = headless("--master", "--master-bind-port", port, *asked, *words)
    worker = headless("--worker", "--master-port", port)
    members = [start(folder, master), *(start(folder, worker) for _ in range(WORKERS))]
    try:
        yield members
    finally:
        for each in members:
            each.end()


def sleep_unstalled(seconds: float) -> None:
    """Sleep until the machine has run for so long: a step that took longer than 10 ms was not ours alone to lose."""
    for _ in range(round(seconds / 0.01)):
        time.sleep(0.01)


def requests(urls: dict[str, str]) -> dict[str, int]:
    return {name: counted.requests for name, counted in counted_everywhere(urls).items()}


def when_still(urls: dict[str, str]) -> dict[str, int]:
    """The same, once the requests of a killed client have ended."""
    now = requests(urls)
    while True:
        time.sleep(0.2)
        before, now = now, requests(urls)
        if before == now:
            return now


def kept(folder: Path) -> dict[str, int]:
    return {name: counted.requests for name, counted in stored(folder, RUN).items()}


def check_file(folder: Path) -> None:
    with closing(sqlite3.connect(folder / DATABASE)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def users_told(folder: Path) -> int:
    """How many users there were in the newest second."""
    with Store.open_readonly(folder / DATABASE) as store:
        seconds = [second for _, second in store.loader_seconds(RUN)]
    last = max(second.at_s for second in seconds)
    return sum(second.users or 0 for second in seconds if second.at_s == last)


def test_a_kill_loses_at_most_a_second_and_never_the_file(tmp_path: Path) -> None:
    chance = random.Random(20)
    with sim_fleet.running(CAST) as hosts:
        (tmp_path / HOSTS).write_text(hosts)
        urls = urls_in(hosts)
        for number in range(ROUNDS):
            counted, before = when_still(urls), kept(tmp_path) if number else {}
            word = ("--resume", RUN) if number else ("--run", RUN)
            with blast(tmp_path, *word) as members:
                said = wait_for(members[0], BEGUN)
                time.sleep(chance.uniform(0.5, 2.5))
                must = requests(urls)
                sleep_unstalled(LOST_S + DELIVERY_S)
                victim = members[number % 2]
                victim.kill()
                victim.wait()
                check_file(tmp_path)
                _check_kept(kept(tmp_path), before, must, counted)
                if victim is not members[0]:
                    _check_the_rest(tmp_path, members[0])
            # what a worker had not told when its master was killed is lost, so never more than the servers counted
            truth = when_still(urls)
            assert all(kept(tmp_path)[name] <= truth[name] for name in urls), said
        with blast(tmp_path, "--resume", RUN, "-t", "2s") as members:
            counted, before = when_still(urls), kept(tmp_path)
            said, _ = members[0].communicate(timeout=60)
            assert members[0].returncode == 0, said
            gained = {name: kept(tmp_path)[name] - before[name] for name in urls}
            assert gained == {name: requests(urls)[name] - counted[name] for name in urls}
    _check_whole(tmp_path)
    print(f"{ROUNDS} kills; {sum(kept(tmp_path).values()):,} requests kept")


def _check_kept(
    now: dict[str, int], before: dict[str, int], must: dict[str, int], counted: dict[str, int]
) -> None:
    for name, owed in must.items():
        assert now.get(name, 0) - before.get(name, 0) >= owed - counted[name], name


def _check_the_rest(folder: Path, master: Started) -> None:
    """The dead worker's users go on at the other one; then the master ends in order."""
    with Store.open_readonly(folder / DATABASE) as store:
        seconds = len(store.loader_seconds(RUN))
    with Store.open_readonly(folder / DATABASE) as store:
        until(lambda: len(store.loader_seconds(RUN)) > seconds + 3)
    until(lambda: users_told(folder) == USERS)
    master.send_signal(signal.SIGINT)
    said, _ = master.communicate(timeout=60)
    assert master.returncode == 0, said
    assert newest(folder).ended_at is not None


def _check_whole(folder: Path) -> None:
    check_file(folder)
    with Store.open_readonly(folder / DATABASE) as store:
        (found,) = store.runs(verb="blast")
        kinds = [event.kind for _, event in store.events(found.id)]
    assert found.ended_at is not None
    assert kinds.count("start") == 1
    assert kinds.count("resume") == ROUNDS
