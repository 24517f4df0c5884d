"""A Locust master, two workers and the hosts, each on a machine of its own: network namespaces at one switch, and no loopback between.

    machine 0: master   1, 2: workers   3: four simulated hosts

The commands are those that the README shows. The clock of worker 2 is 90 s ahead: seconds are placed by the master's. What must be there is
told by the hosts, which count for themselves.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from contract.harness.programs import until
from support import sim_fleet
from support.locusts import (
    BEGUN,
    DATABASE,
    HOSTS,
    Counted,
    Started,
    command,
    counted_everywhere,
    newest,
    start,
    stored,
    urls_in,
    wait_for,
)
from support.net_namespaces import Star, inside, needs_namespaces, star

from toolkit.store import Store

MASTER, WORKERS, SERVERS = 0, (1, 2), 3
USERS = 16
AHEAD_S = 90
MISSING = "failed to send heartbeat, setting state to missing"
QUICK = {"time_scale": 0.05}
FLEET = {
    "fp8": ("fp8", QUICK),
    "awq": ("awq", QUICK),
    "rust": ("gptq-int4", QUICK | {"dialect": "rust"}),
    "slow": ("fp8", {"time_scale": 1.0}),
}
CLOCK = f"""\
import time

_right = time.time
time.time = lambda: _right() + {AHEAD_S}
"""

pytestmark = [needs_namespaces, pytest.mark.timeout(150)]


@dataclass(frozen=True, slots=True)
class Blast:
    """All that takes part."""

    net: Star
    folder: Path
    hosts: str
    master: Started
    workers: tuple[Started, ...]

    def counted(self) -> dict[str, Counted]:
        """What the hosts say."""
        with inside(self.net.machines[SERVERS]):
            return counted_everywhere(urls_in(self.hosts))

    def seconds(self) -> dict[str, list[int]]:
        """Which ones each worker told of."""
        found: dict[str, list[int]] = {}
        with Store.open_readonly(self.folder / DATABASE) as store:
            for _, second in store.loader_seconds(newest(self.folder).id):
                found.setdefault(second.worker, []).append(second.at_s)
        return found

    def users(self) -> int:
        """In the newest second, at the workers that told of it."""
        with Store.open_readonly(self.folder / DATABASE) as store:
            seconds = [second for _, second in store.loader_seconds(newest(self.folder).id)]
        last = max(second.at_s for second in seconds)
        return sum(second.users or 0 for second in seconds if second.at_s == last)


def on(net: Star, number: int) -> list[str]:
    return ["ip", "netns", "exec", net.machines[number]]


@contextmanager
def blasting(folder: Path, *, seconds: int) -> Iterator[Blast]:
    """One that has begun; whoever still runs afterwards is ended."""
    clock = folder / "ahead"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(CLOCK)
    with ExitStack() as stack:
        net = stack.enter_context(star(4))
        fleet = {
            name: (who, more | {"host": net.address(SERVERS)})
            for name, (who, more) in FLEET.items()
        }
        hosts = stack.enter_context(sim_fleet.running(fleet, enter=on(net, SERVERS)))
        words = ("--headless", "--exit-code-on-error", "0", "-r", "100", "-u", str(USERS))
        words += ("--expect-workers", "2", "-t", f"{seconds}s")
        master = _start(net, MASTER, folder, hosts, ["--master", *words])
        worker = ["--worker", "--master-host", net.address(MASTER)]
        begun = [stack.enter_context(master)]
        for number in WORKERS:
            more = {"PYTHONPATH": str(clock)} if number == WORKERS[-1] else {}
            begun.append(stack.enter_context(_start(net, number, folder, hosts, worker, **more)))
        wait_for(begun[0], BEGUN)
        yield Blast(net, folder, hosts, begun[0], tuple(begun[1:]))


def _start(
    net: Star, number: int, folder: Path, hosts: str, words: list[str], **variables: str
) -> Started:
    """One of the processes, with a folder of its own, as on a machine of its own."""
    home = folder if number == MASTER else folder / f"machine{number}"
    home.mkdir(exist_ok=True)
    (home / HOSTS).write_text(hosts)
    return start(home, [*on(net, number), *command(*words)], **variables)


def test_totals_equal_what_the_hosts_counted_though_a_cable_was_out(tmp_path: Path) -> None:
    """A worker that is away for some seconds is told as missing, and tells later what it counted."""
    began_s = time.time()
    # on a busy machine it takes 10 s until a worker is missed
    with blasting(tmp_path, seconds=24) as blast:
        until(lambda: len(blast.seconds()) == 2 and blast.users() == USERS)
        blast.net.cut(WORKERS[0])
        wait_for(blast.master, MISSING)
        blast.net.join(WORKERS[0])
        wait_for(blast.master, "self-healed")
        said, _ = blast.master.communicate(timeout=100)
        for worker in blast.workers:
            worker.communicate(timeout=60)
        assert [each.returncode for each in (blast.master, *blast.workers)] == [0, 0, 0], said
        truth, told = blast.counted(), blast.seconds()
    # what was on its way at the cut, TCP brought later
    assert stored(tmp_path) == truth
    assert not any((tmp_path / f"machine{n}" / DATABASE).exists() for n in WORKERS)
    assert len(told) == 2
    for seconds in told.values():
        assert len(seconds) == len(set(seconds)) >= 10
        # by its own clock one of them was 90 s later
        assert began_s - 2 < min(seconds) <= max(seconds) < time.time() + 2
    _check_both_load_every_host(tmp_path)
    print(f"{sum(each.requests for each in truth.values()):,} requests on both sides")


def _check_both_load_every_host(folder: Path) -> None:
    with Store.open_readonly(folder / DATABASE) as store:
        tallies = store.tallies(newest(folder).id)
    for name in FLEET:
        workers = {one for t in tallies if t.name == name for one in t.worker.split("+")}
        assert len(workers) == 2, name


def test_a_worker_that_stays_away_is_told_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    with blasting(tmp_path, seconds=10) as blast:
        until(lambda: len(blast.seconds()) == 2 and blast.users() == USERS)
        kept = stored(tmp_path)
        blast.net.cut(WORKERS[0])
        counted = blast.counted()
        wait_for(blast.master, MISSING)
        # its users go on at the other one
        until(lambda: blast.users() == USERS and _tell_of_the_newest(blast) == 1)
        said, _ = blast.master.communicate(timeout=100)
        assert blast.master.returncode == 0, said
        truth = blast.counted()
    assert newest(tmp_path).ended_at is not None
    lost = _requests(truth) - _requests(stored(tmp_path))
    for name, each in stored(tmp_path).items():
        assert each.requests <= truth[name].requests, name
        assert each.output_tokens <= truth[name].output_tokens, name
    # at most what was not told at the cut, and what each of its users, and a canary's twin a host, was waiting for
    assert 0 <= lost <= _requests(counted) - _requests(kept) + USERS // 2 + len(FLEET)
    print(f"{lost} of {_requests(truth):,} answers were on their way at the cut, and are lost")


def _requests(counted: Mapping[str, Counted]) -> int:
    return sum(each.requests for each in counted.values())


def _tell_of_the_newest(blast: Blast) -> int:
    """How many workers."""
    seconds = blast.seconds().values()
    last = max(max(each) for each in seconds)
    return sum(last in each for each in seconds)
