"""A master and two workers against eight simulated hosts: do the tallies equal what the servers counted?

Five minutes with TOOLKIT_LONG=full, 20 s by default. The fleet runs in a process of its own. Request for request and
token for token: prompts, answers, streams and canaries, whatever the host is like.
"""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from contract.harness.programs import free_port
from support import sim_fleet
from support.locusts import (
    DATABASE,
    HOSTS,
    all_sums,
    counted_everywhere,
    headless,
    newest,
    start,
    stored,
    urls_in,
)

from toolkit.store import Store

SECONDS = {"short": 20, "full": 300}[os.environ.get("TOOLKIT_LONG", "short")]
USERS = 64
WORKERS = 2
QUICK = {"time_scale": 0.1}
FLEET = {
    "fp8": ("fp8", QUICK),
    "awq": ("awq", QUICK),
    "gptq-int4": ("gptq-int4", QUICK),
    "fp8-again": ("fp8", QUICK | {"seed": 1}),
    "first-token": ("first-token", QUICK),
    "rust": ("gptq-int4", QUICK | {"dialect": "rust"}),
    "slow": ("fp8", {"time_scale": 1.0}),
    "tiny-cache": ("awq", QUICK | {"num_gpu_blocks": 64}),
}
"""Eight whose engine counts every request that the client sees: none behind a response cache."""

pytestmark = pytest.mark.timeout(SECONDS + 120)


def test_tallies_equal_what_the_servers_counted(tmp_path: Path) -> None:
    port = str(free_port())
    words = ("--expect-workers", str(WORKERS), "-u", str(USERS), "-t", f"{SECONDS}s")
    with sim_fleet.running(FLEET) as hosts:
        (tmp_path / HOSTS).write_text(hosts)
        master = headless("--master", "--master-bind-port", port, *words)
        worker = headless("--worker", "--master-port", port)
        with ExitStack() as stack:
            leading = stack.enter_context(start(tmp_path, master))
            following = [stack.enter_context(start(tmp_path, worker)) for _ in range(WORKERS)]
            said, _ = leading.communicate(timeout=SECONDS + 100)
            for each in following:
                each.communicate(timeout=60)
        truth = counted_everywhere(urls_in(hosts))
    assert [each.returncode for each in (leading, *following)] == [0] * (1 + WORKERS), said
    assert stored(tmp_path) == truth
    sums = all_sums(tmp_path)
    assert all(each.errors == 0 for each in sums.values())
    assert {kind for _, _, kind in sums} == {"ranked", "canary"}
    for name, url in urls_in(hosts).items():
        canaries, ranked = sums[name, url, "canary"].ok, sums[name, url, "ranked"].ok
        # 1 %, but the first pair comes at once at each worker and is not paid back by a slow host
        assert 2 * WORKERS <= canaries <= max(4 * WORKERS, 0.012 * (canaries + ranked))
    _check_seconds(tmp_path)
    requests = sum(each.requests for each in truth.values())
    tokens = sum(each.output_tokens for each in truth.values())
    print(f"{SECONDS} s, {requests:,} requests and {tokens:,} tokens on both sides")
    assert requests > 20 * SECONDS


def _check_seconds(folder: Path) -> None:
    """Every worker tells of every second, and of the same number of users at every host."""
    with Store.open_readonly(folder / DATABASE) as store:
        run = newest(folder)
        seconds = [second for _, second in store.loader_seconds(run.id)]
        tallies = store.tallies(run.id)
    for worker in {second.worker for second in seconds}:
        told = [second.at_s for second in seconds if second.worker == worker]
        assert told == list(range(told[0], told[-1] + 1))
        assert len(told) >= SECONDS
        assert max(second.users or 0 for second in seconds if second.worker == worker) == 32
    assert len({second.worker for second in seconds}) == WORKERS
    # both workers count at every host: none hangs on one of them alone
    for name in FLEET:
        workers = {one for t in tallies if t.name == name for one in t.worker.split("+")}
        assert len(workers) == WORKERS
