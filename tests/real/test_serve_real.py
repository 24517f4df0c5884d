"""`toolkit serve --tiny`: from nothing to a warmed real vLLM behind the proxy, blasted; its worker killed under load, and back again."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from contract.harness.programs import runs
from support.served import PATIENCE_S, TOOLKIT, Crowd, Served, free_ports, serving, wait_until

from toolkit.store import Store

WORKER = "VLLM::Worker"
"""As vLLM calls it since 0.10; it computes."""


def start(vllm_home: Path) -> list[str]:
    (port,) = free_ports(1)
    vllm = str(vllm_home / "bin" / "vllm")
    # whether the machine is fit is preflight's own test; here it may be a crowded one
    return ["--tiny", "--vllm", vllm, "--port", str(port), "--db", "toolkit.db", "--no-preflight"]


@pytest.mark.timeout(900)
def test_from_nothing_to_a_warmed_stack_that_survives_the_death_of_its_worker(
    vllm_home: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, *start(vllm_home)) as served:
        served.until_open(600)
        engine = served.engines()["tiny"]
        assert (engine["state"], engine["served_name"]) == ("up", "tiny")
        # 64 blocks of 32 tokens; vLLM keeps one of them for itself and says so in its own way
        assert engine["kv_cache_tokens"] in (64 * 32, 63 * 32)
        assert engine["warm_ttft_ms"] > 0
        blasted(served, tmp_path)
        killed_under_load(served)
        left = served.family()
        assert served.order("stop").returncode == 0
        assert served.process.wait(60) == 0
    assert [each for each in left if runs(each.pid)] == []
    with Store.open_readonly(tmp_path / "toolkit.db") as store:
        (run,) = store.runs(verb="serve")
        texts = [event.text for _, event in store.events(run.id) if event.run]
    # warm, dead, and warm again
    assert sum(text.startswith("ready after ") for text in texts) == 2
    assert sum("warm TTFT" in text for text in texts) == 2


def blasted(served: Served, folder: Path) -> None:
    words = ["blast", served.url, "--duration", "5s", "--users", "2", "--db", "toolkit.db"]
    words += ["--non-neutral", "--max-tokens", "8", "--json"]
    done = subprocess.run(
        [*TOOLKIT, *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    host = json.loads(done.stdout.splitlines()[0])
    assert host["ok"] > 0, done.stderr
    assert host["errors"] == 0, done.stderr


def killed_under_load(served: Served) -> None:
    """Those who ask what is stored notice nothing; those who ask for something new do, and then no more."""
    assert served.ask("known", model="tiny", temperature=0)[0] == 200
    (worker,) = [each for each in served.family() if WORKER in " ".join(each.cmdline())]
    known, new = Crowd(served, "tiny", text="known"), Crowd(served, "tiny")
    with known.asking(1), new.asking(2):
        wait_until(lambda: len(new.answers) > 4)
        os.kill(worker.pid, signal.SIGKILL)
        served.until_said("is started again")
        during = len(known.answers)
        # not by asking for its status again and again: each is a process, and takes the machine from the engine that starts
        wait_until(lambda: any("clients are let in again" in each for each in served.said), 600)
        assert len(known.answers) > during
        again = len(new.answers)
        wait_until(lambda: len(new.answers) > again + 4)
    assert set(known.answers) == {(200, "hit")}
    engine = served.engines()["tiny"]
    assert new.answers[0][0] == new.answers[-1][0] == 200, (new.refusals, served.said, engine)
    assert engine["restarts"] == 1
    assert runs(engine["pid"])
