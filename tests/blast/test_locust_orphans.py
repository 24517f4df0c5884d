"""Workers whose master is gone: hosts must not be loaded while nobody writes it down."""

from pathlib import Path

import psutil
import pytest
from contract.harness.programs import free_port, gone, until
from support import sim_fleet
from support.locusts import (
    BEGUN,
    CAST,
    HOSTS,
    counted,
    headless,
    start,
    urls_in,
    wait_for,
)

pytestmark = pytest.mark.slow


def test_forked_workers_end_with_their_master(tmp_path: Path) -> None:
    port = str(free_port())
    words = ("--processes", "2", "--master-port", port, "--master-bind-port", port)
    with sim_fleet.running(CAST) as hosts:
        (tmp_path / HOSTS).write_text(hosts)
        with start(tmp_path, headless("-u", "4", *words)) as master:
            wait_for(master, BEGUN)
            workers = psutil.Process(master.pid).children()
            assert len(workers) == 2
            master.kill()
            assert gone(workers)


def test_a_worker_leaves_the_hosts_alone_when_its_master_is_silent(tmp_path: Path) -> None:
    port = str(free_port())
    with sim_fleet.running(CAST) as hosts:
        (tmp_path / HOSTS).write_text(hosts)
        url = urls_in(hosts)["fp8"]
        master = start(tmp_path, headless("-u", "4", "--master", "--master-bind-port", port))
        worker = start(tmp_path, headless("--worker", "--master-port", port))
        with master, worker:
            wait_for(master, BEGUN)
            until(lambda: counted(url).requests)
            master.end()
            seen = [counted(url).requests]

            def is_still() -> bool:
                seen.append(counted(url).requests)
                # for three seconds: an answer takes less
                return len(seen) > 60 and len(set(seen[-60:])) == 1

            until(is_still)
            assert worker.poll() is None
