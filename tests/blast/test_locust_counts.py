"""Locust processes against simulated servers: what was stored is what the servers counted, request for request."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from contract.harness.programs import free_port, until
from support import sim_fleet
from support.chat import CHAT
from support.locusts import (
    BEGUN,
    CAST,
    DATABASE,
    HOSTS,
    Counted,
    all_sums,
    counted_everywhere,
    errors,
    headless,
    newest,
    requests_kept,
    run,
    settings,
    start,
    stored,
    urls_in,
    wait_for,
)
from support.raw_server import http, recorded, serving

from toolkit.store import Store

pytestmark = pytest.mark.slow

KEY = "a-very-secret-key"


@dataclass
class Servers:
    """A fleet, and what it has counted since it was last asked."""

    hosts: str
    urls: dict[str, str]
    before: dict[str, Counted]

    def since(self) -> dict[str, Counted]:
        earlier, self.before = self.before, counted_everywhere(self.urls)
        return {name: self.before[name].since(earlier[name]) for name in self.urls}


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with sim_fleet.running(CAST) as hosts:
        urls = urls_in(hosts)
        yield Servers(hosts, urls, counted_everywhere(urls))


@pytest.fixture
def folder(tmp_path: Path, servers: Servers) -> Path:
    (tmp_path / HOSTS).write_text(servers.hosts)
    servers.since()
    return tmp_path


def test_one_process_stores_what_the_servers_counted(folder: Path, servers: Servers) -> None:
    said = run(folder, headless("-u", "7", "-t", "2s", "--max-tokens", "16"))
    truth = servers.since()
    assert stored(folder) == truth
    assert min(counted.requests for counted in truth.values()) > 20
    # 7 users on 2 hosts: 4 for each
    assert "7 users were rounded up to 8" in said
    told = newest(folder)
    assert told.ended_at is not None
    assert (settings(told)["users"], settings(told)["users_per_host"]) == (8, 4)
    with Store.open_readonly(folder / DATABASE) as store:
        seconds = [second for _, second in store.loader_seconds(told.id)]
        events = [event.kind for _, event in store.events(told.id)]
        shots = store.shots(told.id)
    # a host on the machine of the load generator
    assert events == ["start", "mark", "stop"]
    assert max(second.users or 0 for second in seconds) == 8
    numbers = [second.at_s for second in seconds]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    for name in servers.urls:
        uniques = [shot.slot for shot in shots if (shot.name, shot.kind) == (name, "unique")]
        twins = [shot.pair for shot in shots if (shot.name, shot.kind) == (name, "twin")]
        # the first two are due among the first five requests, and after four there is none within 5 s
        assert 2 <= len(uniques) <= 4
        # the load may end between the last of them and its twin
        assert len(uniques) - len(twins) in (0, 1)
        assert sorted(slot for slot in twins if slot is not None) == sorted(uniques)[: len(twins)]
    assert all(shot.ok and shot.text_hash for shot in shots)


def test_a_master_with_workers_stores_what_the_servers_counted_and_refuses_an_unlike_one(
    folder: Path, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    port = str(free_port())
    other = tmp_path_factory.mktemp("other")
    (other / HOSTS).write_text(servers.hosts.replace("fp8", "fp9"))
    worker = headless("--worker", "--master-port", port)
    words = headless("--master", "--master-bind-port", port, "--expect-workers", "2")
    with start(folder, [*words, "-u", "8", "-t", "2s", "--max-tokens", "16"]) as master:
        refused = run(other, worker, code=1)
        with start(folder, worker) as first, start(folder, worker) as second:
            said, _ = master.communicate(timeout=60)
            ends = [one.communicate(timeout=60)[0] for one in (first, second)]
    assert (master.returncode, first.returncode, second.returncode) == (0, 0, 0), (said, ends)
    assert "Error: the worker's list of hosts is not the master's" in refused
    assert "A worker was refused" in said
    assert stored(folder) == servers.since()


def test_a_terminated_process_loses_nothing(folder: Path, servers: Servers) -> None:
    with start(folder, headless("-u", "8", "--max-tokens", "16")) as running:
        wait_for(running, BEGUN)
        until(lambda: requests_kept(folder))
        running.send_signal(signal.SIGTERM)
        said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, said
    assert stored(folder) == servers.since()
    assert newest(folder).ended_at is not None


def test_forked_workers_store_what_the_servers_counted_and_an_interrupt_loses_nothing(
    folder: Path, servers: Servers
) -> None:
    def workers_of() -> dict[str, set[str]]:
        """By host: the workers that answers of it were counted by."""
        with Store.open_readonly(folder / DATABASE) as store:
            tallies = store.tallies(newest(folder).id)
        of: dict[str, set[str]] = {name: set() for name in servers.urls}
        for tally in tallies:
            of[tally.name].update(tally.worker.split("+"))
        return of

    port = str(free_port())
    ports = ("--master-port", port, "--master-bind-port", port)
    words = headless("-u", "8", "--max-tokens", "16", "--processes", "2", *ports)
    with start(folder, words) as running:
        wait_for(running, BEGUN)
        until(lambda: requests_kept(folder))
        # neither host hangs on one of them alone
        until(lambda: all(len(workers) == 2 for workers in workers_of().values()))
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, said
    assert stored(folder) == servers.since()
    assert newest(folder).ended_at is not None
    with Store.open_readonly(folder / DATABASE) as store:
        seconds = [second for _, second in store.loader_seconds(newest(folder).id)]
    workers = {second.worker for second in seconds}
    assert all(workers == of_host for of_host in workers_of().values())
    # 2 hosts x 4 users, dealt out to 2 workers
    assert {max(s.users or 0 for s in seconds if s.worker == one) for one in workers} == {4}


def test_a_key_is_sent_and_kept_nowhere_though_a_host_repeats_it(tmp_path: Path) -> None:
    setup = ("awq", {"time_scale": 0.1, "api_key": KEY})

    async def tell(writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.02)
        sent = teller.requests[-1][2]["authorization"]
        body = json.dumps({"error": {"message": f"bad header: {sent}"}})
        writer.write(http(body, "401 Unauthorized", x_cache=sent))
        return True

    pages = {
        "/v1/models": http(recorded("v1_models.json"), content_type="application/json"),
        CHAT: tell,
    }
    with (
        sim_fleet.running({"locked": setup, "refusing": setup}) as hosts,
        serving(pages) as teller,
    ):
        urls = urls_in(hosts)
        lines = [
            f"{name} {url} api_key_env={name.upper()}_KEY\n"
            for name, url in (urls | {"teller": teller.url}).items()
        ]
        (tmp_path / HOSTS).write_text("".join(lines))
        words = headless("-u", "6", "-t", "1s", "--max-tokens", "4", "--loglevel", "DEBUG")
        # a wrong one is an error of a kind, and no better kept
        keys = {"LOCKED_KEY": KEY, "REFUSING_KEY": "wrong-" + KEY, "TELLER_KEY": KEY}
        said = run(tmp_path, [*words, "--canaries", "100"], **keys)
        truth = counted_everywhere(urls)
    found = stored(tmp_path)
    assert {name: found[name] for name in urls} == truth
    assert truth["locked"].requests > 5
    assert truth["refusing"].requests == 0
    assert errors(tmp_path)["refusing"]["http_401"] > 0
    assert errors(tmp_path)["teller"]["http_401"] > 1
    with Store.open_readonly(tmp_path / DATABASE) as store:
        shots = store.shots(newest(tmp_path).id, name="teller")
    # it came, and was made unreadable
    assert [shot.error for shot in shots if shot.error] == ["bad header: Bearer ***"] * len(shots)
    assert len(shots) > 0
    assert "first http_401: bad header: Bearer ***" in said
    assert KEY not in said
    files = b"".join(file.read_bytes() for file in tmp_path.glob(f"{DATABASE}*"))
    assert KEY.encode() not in files


def test_canaries_are_counted_apart_and_a_run_goes_on_after_its_end(
    folder: Path, servers: Servers
) -> None:
    words = headless("-u", "2", "-t", "1s", "--max-tokens", "4", "--canaries", "50")
    run(folder, [*words, "--run", "0123456789ab"])
    for name, url in servers.urls.items():
        ranked, canary = (all_sums(folder)[name, url, kind].ok for kind in ("ranked", "canary"))
        # one at a time, so that they hold up no user: at most the share
        assert 0 < canary <= 0.55 * (ranked + canary)
    run(folder, [*words, "--resume", "0123456789ab"])
    assert stored(folder, "0123456789ab") == servers.since()
    with Store.open_readonly(folder / DATABASE) as store:
        assert len(store.runs(verb="blast")) == 1
        kinds = [event.kind for _, event in store.events("0123456789ab")]
        slots = [shot.slot for shot in store.shots("0123456789ab", name="fp8")]
    assert kinds == ["start", "mark", "stop", "resume", "mark", "stop"]
    assert len(slots) == len(set(slots))
    # of each part two pairs or more, the second part's far from the first one's
    assert sum(slot < 10**9 for slot in slots) >= 4
    assert sum(slot >= 10**9 for slot in slots) >= 4
