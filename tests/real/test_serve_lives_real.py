"""`toolkit serve` with a real vLLM and clients that never stop asking: reloaded, flooded, swapped in place, killed and hung.

Each request is counted once: answered, refused with a status, cut (an answer that had begun and ended with its engine), or
lost: a broken connection, no answer, a wrong one, or a stored one that was not given. Run with `-s` it shows the table, and every state that the engine came into.
With TOOLKIT_LONG=full it is hung and given up, too; test_warm_real.py hangs one each time.
"""

import http.client
import itertools
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from contract.harness.programs import free_port, runs, until
from support.proxy_verb import CHAT
from support.served import PATIENCE_S, Served, serving

from toolkit.serving.processes import SharedFile, shared_files

START_S = 600.0
"""Far more than a start takes on a machine that is busy."""
IS_FULL = os.environ.get("TOOLKIT_LONG", "short") == "full"
CLIENTS, FLOODERS = 4, 24
LIMIT = 4
OTHERS = ("429", "502", "503", "cut")
"""What may become of a request, beside an answer."""
NOTED = """
import sys
from toolkit.cli import main
from toolkit.serving.engine import ManagedEngine

def note(engine, name, value):
    if name == "state":
        print(f"{engine.name}: [{value}]", file=sys.stderr, flush=True)
    object.__setattr__(engine, name, value)

ManagedEngine.__setattr__ = note
main()
"""
"""`toolkit` that says every state which an engine comes into."""
STACK = """database = "toolkit.db"
preflight = false
[[engine]]
name = "slow"
model = "{home}/models/tiny-slow"
served_name = "slow"
vllm = "{home}/bin/vllm"
port = {port}
spare_port = "none"
[engine.flags]
max-model-len = "0.5k"
max-num-seqs = 8
enforce-eager = true
block_size = 32
num-gpu-blocks-override = 64
disable-log-requests = true
[engine.env]
VLLM_CACHE_ROOT = "{home}/cache"
VLLM_CPU_KVCACHE_SPACE = "1"
VLLM_NO_USAGE_STATS = "1"
DO_NOT_TRACK = "1"
HF_HUB_OFFLINE = "1"
TRANSFORMERS_OFFLINE = "1"
[warm]
concurrency = [1, 2]
rounds = 2
[guard]
stuck = "10s"
answer = "10s"
backoff = "100ms"
restarts = 2
stop = "5s"
[proxy]
port = 0
admin_port = 0
[proxy.admission]
wait = "5s"
[proxy.routing]
stuck = "10s"
probe = "10s"
"""
"""Its limits on silence are such that an engine which is only slow, on a machine that is busy, is not left. Flags are spelled as people
do, and the last of them is not this version's.
"""


class Clients:
    """Some that ask what nobody asked before, half of it as streams, and one that asks the same all the time."""

    def __init__(self, port: int) -> None:
        self.counted: dict[str, Counter[str]] = {}
        """What became of the requests that ended in each phase."""
        self.wrong: list[str] = []
        self._phase = Counter[str]()
        self._port, self._stop = port, threading.Event()
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self._answered = [0] * CLIENTS

    @contextmanager
    def asking(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask_on, args=(n,)) for n in range(CLIENTS)]
        threads.append(threading.Thread(target=self._ask_the_same))
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self.stop()
            for each in threads:
                each.join()

    @contextmanager
    def phase(self, name: str) -> Iterator[Counter[str]]:
        """Count under a name, until every client was answered once more than what it had under way when the block ended."""
        self._phase = self.counted[name] = Counter()
        yield self._phase
        if not self._stop.is_set():
            before = list(self._answered)
            until(
                lambda: all(now > was + 1 for now, was in zip(self._answered, before, strict=True)),
                patience_s=START_S,
            )

    def stop(self) -> None:
        """Have them ask nothing more."""
        self._stop.set()

    def flood(self, enough: Callable[[], bool]) -> None:
        """Many more that ask without a pause, until it is enough."""

        def ask_on() -> None:
            while not enough():
                connection = self._connection()
                self._count(*self._new(connection))
                connection.close()
                self._stop.wait(0.05)

        threads = [threading.Thread(target=ask_on) for _ in range(FLOODERS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=START_S)

    def _ask_on(self, client: int) -> None:
        connection = self._connection()
        while not self._stop.is_set():
            result, what = self._new(connection)
            self._count(result, what)
            self._answered[client] += result == "answered"
            if result != "answered":
                # refused at once and asking again at once, it would take the machine from the engine that starts
                self._stop.wait(0.2)
        connection.close()

    def _ask_the_same(self) -> None:
        connection = self._connection()
        body = {
            "model": "slow",
            "messages": [{"role": "user", "content": "known"}],
            "max_tokens": 8,
        }
        known = None
        while not self._stop.wait(0.1):
            result, what = self._ask(connection, body)
            if result == "answered":
                text = json.loads(what)["choices"][0]["message"]["content"]
                if known is not None:
                    result, what = "stored", ""
                known = known or text
                if text != known:
                    result, what = "lost", f"{text} for {known}"
            elif known is not None:
                result = "lost"
            self._count(result, what)
        connection.close()

    def _count(self, result: str, what: str) -> None:
        with self._lock:
            self._phase[result] += 1
            if result == "lost":
                self.wrong.append(what)

    def _new(self, connection: http.client.HTTPConnection) -> tuple[str, str]:
        """Ask what nobody asked; the answer must be as long as this very question wanted it."""
        number = next(self._numbers)
        tokens = 8 + number % 13
        body = {
            "model": "slow",
            "messages": [{"role": "user", "content": f"question {number}"}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        is_stream = number % 2 == 0
        if is_stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        result, what = self._ask(connection, body)
        if result != "answered":
            return result, what
        events = [line.removeprefix("data: ") for line in what.split("\n\n") if line]
        if is_stream and events[-1] != "[DONE]":
            return "cut", what
        answers = [json.loads(each) for each in events if each != "[DONE]"]
        if any("error" in each for each in answers):
            return "cut", what
        reasons = [c["finish_reason"] for each in answers for c in each["choices"]]
        told = (reasons[-1], answers[-1]["usage"]["completion_tokens"], answers[-1]["model"])
        return ("answered", "") if told == ("length", tokens, "slow") else ("lost", what)

    def _ask(self, connection: http.client.HTTPConnection, body: dict[str, Any]) -> tuple[str, str]:
        """What became of it, and the body or what else there is to say."""
        head = {"content-type": "application/json"}
        try:
            connection.request("POST", CHAT, json.dumps(body).encode(), head)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return "lost", repr(error)
        try:
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return "cut", repr(error)
        if answer.status == 200:
            return "answered", text
        if answer.status < 500 and answer.status != 429:
            return "lost", f"{answer.status} {text}"
        return str(answer.status), text


def table(counted: dict[str, Counter[str]]) -> str:
    """As many lines as phases."""
    columns = ("asked", "answered", "stored", *OTHERS, "lost")
    lines = [" " * 14 + "".join(f"{each:>9}" for each in columns)]
    for name, count in counted.items():
        cells = [count.total(), *(count[each] for each in columns[1:])]
        lines.append(f"{name:<14}" + "".join(f"{each:>9}" for each in cells))
    return "\n".join(lines)


@pytest.mark.timeout(2 * START_S)
def test_whatever_happens_to_its_engine_no_request_is_lost(vllm_home: Path, tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "stack.toml"
    usual = STACK.format(home=vllm_home, port=port)
    file.write_text(usual)
    with serving(tmp_path, str(file), command=(sys.executable, "-c", NOTED)) as served:
        served.until_open(START_S)
        # 64 blocks of 32 tokens; 2048 / 500 would be 4.096, but a request of 500 takes 16 blocks: 64 / 16 = 4, times 500
        assert engine(served)["kv_cache_tokens"] == 2000
        clients = Clients(served.port)
        with clients.asking():
            with clients.phase("nothing"):
                until(lambda: clients.counted["nothing"].total() > 40)
            with clients.phase("reloaded"):
                limited = f"[proxy.admission]\nconcurrency = {LIMIT}\nqueue = {LIMIT}\n"
                file.write_text(usual.replace("[proxy.admission]\n", limited))
                order(served, "reload")
            with clients.phase("flooded") as count:
                clients.flood(lambda: min(count["answered"], count["429"] + count["503"]) > 40)
            with clients.phase("reloaded back"):
                file.write_text(usual)
                order(served, "reload")
            with clients.phase("swapped"):
                order(served, "swap", "--in-place", "--yes", "--set", "max-num-seqs=6")
            with clients.phase("killed"):
                killed = family(served)
                shared = shared_files(each.pid for each in killed)
                assert len(killed) >= 3  # front, engine core, worker
                assert any("psm_" in file.path for file in shared)
                os.kill(engine(served)["pid"], signal.SIGKILL)
                until(lambda: states(served).count("up") == 3, patience_s=START_S)
            assert_nothing_is_left(killed, shared)
            if IS_FULL:
                with clients.phase("hung"):
                    for each in family(served):
                        each.suspend()
                    until(lambda: states(served).count("up") == 4, patience_s=START_S)
                with clients.phase("given up"):
                    os.kill(engine(served)["pid"], signal.SIGKILL)
                    until(lambda: states(served)[-1] == "down")
                    count = clients.counted["given up"]
                    until(lambda: count["503"] + count["502"] > 10)
                    clients.stop()
        stopped = served.family()
        shared = shared_files(each.pid for each in stopped)
        assert served.order("stop").returncode == 0
        assert served.process.wait(PATIENCE_S) == 0
        assert_nothing_is_left(stopped, shared)
    print("\n" + table(clients.counted), *served.said, sep="\n")
    assert clients.wrong == []
    counted = clients.counted
    assert {each for count in counted.values() for each in count} <= {"answered", "stored", *OTHERS}
    for name in ("nothing", "reloaded", "reloaded back"):
        assert set(counted[name]) <= {"answered", "stored"}, name
    # what was under way when its engine ended, and had begun
    for name, count in counted.items():
        assert count["cut"] <= (CLIENTS if name in ("killed", "hung", "given up") else 0), name
        assert count["stored"] > 0, name
    up = ["starting", "warming", "up"]
    lives = ["waiting", *up, "waiting", "draining", *up, "restarting", *up]
    if IS_FULL:
        lives += ["restarting", *up, "restarting", "down"]
    assert states(served) == [*lives, "ended"]


def order(served: Served, *words: str) -> None:
    """Give it, and wait as long as a start may take."""
    done = served.order(*words, timeout_s=START_S)
    assert done.returncode == 0, done.stderr


def assert_nothing_is_left(members: list[psutil.Process], shared: set[SharedFile]) -> None:
    """No orphan, and none of the 420 MB of shared memory that a server has."""
    assert not [each for each in members if runs(each.pid)]
    assert not [file.path for file in shared if Path(file.path).exists()]


def engine(served: Served) -> dict[str, Any]:
    return served.engines()["slow"]


def states(served: Served) -> list[str]:
    """All that it came into so far."""
    return [line.partition(": [")[2][:-1] for line in served.said if line.endswith("]")]


def family(served: Served) -> list[psutil.Process]:
    """The engine's processes."""
    first = psutil.Process(engine(served)["pid"])
    return [first, *first.children(recursive=True)]
