"""A run that somebody stops from outside, in a process of its own as on the command line."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.chat import CHAT, STREAM, hang
from support.raw_server import serving, vllm_pages

SCRIPT = """
import asyncio, json, signal, socket, sys, threading
import uvloop
from toolkit.bench.client import HostClient
from toolkit.bench.runner import Bench
from toolkit.bench.plan import BenchPlan
from toolkit.profiles import Profile, Prompt
from toolkit.records import Host

loop, path, *urls = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
find = socket.getaddrinfo

def getaddrinfo(host, *rest, **more):
    if host.endswith(".test"):
        threading.Event().wait()  # a name server that is not there
    return find(host, *rest, **more)

socket.getaddrinfo = getaddrinfo

def keep(batch):
    with open(path, "a") as file:
        for shot in batch:
            print(json.dumps([shot.name, shot.ok]), file=file)

clients = [HostClient(Host(name=url, url=url)) for url in urls]
profile = Profile(name="p", prompts=(Prompt(name="a", messages=({"role": "user", "content": "Hi"},)),))
plan = BenchPlan(requests=10, concurrency=2, sameness="unique")
bench = Bench(clients, plan, profile, keep=keep)
new_loop = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
try:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(bench.run())
except (KeyboardInterrupt, asyncio.CancelledError) as stopped:
    print(type(stopped).__name__, sum(len(runner.records) for runner in bench.hosts))
"""
WAIT_S = 30


def becomes_true(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("sent", "raised"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "CancelledError")]
)
def test_a_run_that_is_stopped_ends_soon_and_keeps_its_shots(
    tmp_path: Path, loop: str, sent: signal.Signals, raised: str
) -> None:
    """One host hangs for the two minutes that a request may take; nobody waits for it."""
    kept = tmp_path / "kept"
    with (
        serving(vllm_pages() | {CHAT: STREAM}) as good,
        serving(vllm_pages() | {CHAT: hang}) as bad,
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, loop, kept, good.url, bad.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            assert becomes_true(lambda: bad.paths().count(CHAT) == 2)
            # the good one's shots are kept before anybody stops the run: a kill would lose none of them
            assert becomes_true(lambda: kept.exists() and len(kept.read_text().splitlines()) == 10)
            process.send_signal(sent)
            told, errors = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert (told.split(), errors) == ([raised, "10"], "")
    assert [json.loads(line) for line in kept.read_text().splitlines()] == [[good.url, True]] * 10


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_run_that_is_stopped_waits_for_no_name_server(tmp_path: Path, loop: str) -> None:
    with (
        serving(vllm_pages() | {CHAT: STREAM}) as good,
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, loop, tmp_path / "kept", good.url, "http://slow.test"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            assert becomes_true(lambda: "/v1/models" in good.paths())
            process.send_signal(signal.SIGINT)
            told, errors = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert (told.split(), errors) == (["KeyboardInterrupt", "0"], "")
