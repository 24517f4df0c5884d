"""`toolkit serve --tiny`: from nothing to a warmed real vLLM behind the proxy, blasted; its worker killed under load, and back again."""

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest
from contract.harness.programs import free_port, run, runs, until
from support.proxy_verb import CHAT, ask
from support.served import Served, serving

from toolkit.store import Store

WORKER = "VLLM::Worker"
"""As vLLM calls it since 0.10; it computes."""


def start(vllm_home: Path) -> list[str]:
    vllm = str(vllm_home / "bin" / "vllm")
    # whether the machine is fit is preflight's own test; here it may be a crowded one
    return [
        "--tiny",
        "--vllm",
        vllm,
        "--port",
        str(free_port()),
        "--db",
        "toolkit.db",
        "--no-preflight",
    ]


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
    done = run(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    host = json.loads(done.stdout.splitlines()[0])
    assert host["ok"] > 0, done.stderr
    assert host["errors"] == 0, done.stderr


def asked(served: Served, text: str) -> tuple[int, dict[str, str], bytes]:
    """One chat: status, headers, body."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    return ask(served.port, "POST", CHAT, json.dumps(body | {"temperature": 0}).encode())


class Crowd:
    """Clients that ask and ask until told to stop: one text, or what nobody asked before."""

    def __init__(self, served: Served, text: str | None = None) -> None:
        self.answers: list[tuple[int, str]] = []
        """Status, and `hit` or whatever else the proxy's cache says."""
        self.refusals: list[str] = []
        """What was said with every other status than 200, for whoever wonders."""
        self._served, self._text = served, text
        self._stop = threading.Event()
        self._numbers = itertools.count()

    @contextmanager
    def asking(self, clients: int) -> Iterator[Self]:
        threads = [threading.Thread(target=self._ask_on) for _ in range(clients)]
        for each in threads:
            each.start()
        try:
            yield self
        finally:
            self._stop.set()
            for each in threads:
                each.join()

    def _ask_on(self) -> None:
        while not self._stop.is_set():
            text = self._text or f"tell me {next(self._numbers)}"
            status, headers, body = asked(self._served, text)
            if status != 200:
                self.refusals.append(f"{time.strftime('%X')} {status} {body.decode()}")
                # who is refused at once and asks again at once takes the machine from what is to come back
                self._stop.wait(0.1)
            cache = "hit" if "hit" in headers.get("cache-status", "") else "other"
            if cache == "hit":
                # so does who is answered at once
                self._stop.wait(0.01)
            self.answers.append((status, cache))


def killed_under_load(served: Served) -> None:
    """Those who ask what is stored notice nothing; those who ask for something new do, and then no more."""
    assert asked(served, "known")[0] == 200
    (worker,) = [each for each in served.family() if WORKER in " ".join(each.cmdline())]
    known, new = Crowd(served, text="known"), Crowd(served)
    with known.asking(1), new.asking(2):
        until(lambda: len(new.answers) > 4)
        os.kill(worker.pid, signal.SIGKILL)
        served.until_said("is started again")
        during = len(known.answers)
        # not by asking for its status again and again: each is a process, and takes the machine from the engine that starts
        until(
            lambda: any("clients are let in again" in each for each in served.said), patience_s=600
        )
        assert len(known.answers) > during
        again = len(new.answers)
        until(lambda: len(new.answers) > again + 4)
    assert set(known.answers) == {(200, "hit")}
    engine = served.engines()["tiny"]
    assert new.answers[0][0] == new.answers[-1][0] == 200, (new.refusals, served.said, engine)
    assert engine["restarts"] == 1
    assert runs(engine["pid"])
