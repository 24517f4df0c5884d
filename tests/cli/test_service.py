"""`toolkit serve` and `toolkit proxy` under a service manager, played by the test with a real socket."""

import os
import signal
from pathlib import Path

import psutil
import pytest
from contract.harness.stacks import write_stack
from support.managers import manager
from support.proxy_verb import proxying
from support.served import serving

NOBODY = ("--upstream", "http://127.0.0.1:9", "--no-cache-file")
"""A proxy is alive without its upstreams."""


@pytest.mark.slow
def test_a_proxy_says_when_clients_are_let_in_that_it_lives_and_when_it_ends(
    tmp_path: Path,
) -> None:
    with manager() as listener:
        environ = {"NOTIFY_SOCKET": listener.address, "WATCHDOG_USEC": "400000"}
        with proxying(*NOBODY, cwd=tmp_path, **environ) as proxy:
            *early, ready = listener.until("READY")
            assert all("EXTEND_TIMEOUT_USEC" in each for each in early)
            assert ready["MAINPID"] == str(proxy.process.pid)
            clients, admin = (f"http://127.0.0.1:{port}" for port in (proxy.port, proxy.admin))
            assert ready["STATUS"] == f"clients on {clients}, admin on {admin}"
            listener.until("WATCHDOG")
            assert proxy.end(signal.SIGTERM) == 0
            assert "STOPPING" in listener.until("STOPPING")[-1]


@pytest.mark.slow
def test_a_worker_that_is_frozen_stops_the_signs_of_life_of_all(tmp_path: Path) -> None:
    with manager() as listener:
        environ = {"NOTIFY_SOCKET": listener.address, "WATCHDOG_USEC": "800000"}
        file = ("--cache-file", str(tmp_path / "cache.db"))
        words = ("--upstream", "http://127.0.0.1:9", "--workers", "2", *file)
        with proxying(*words, cwd=tmp_path, **environ) as proxy:
            listener.until("READY")
            listener.until("WATCHDOG")
            (owner,) = [
                each
                for each in psutil.Process(proxy.process.pid).children()
                if each.cmdline()[-1] == "worker-0"
            ]
            # what we start does not speak for us
            assert "NOTIFY_SOCKET" not in owner.environ()
            owner.suspend()
            try:
                told = listener.next()
                while not told["STATUS"].startswith("Not well"):
                    told = listener.next()
                assert "WATCHDOG" not in listener.next()
            finally:
                owner.resume()
            listener.until("WATCHDOG")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stack_says_what_it_waits_for_and_lives_until_it_is_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with manager() as listener:
        monkeypatch.setenv("NOTIFY_SOCKET", listener.address)
        monkeypatch.setenv("WATCHDOG_USEC", "1000000")
        with serving(tmp_path, str(write_stack(tmp_path))) as served:
            *early, ready = listener.until("READY")
            assert early[0]["STATUS"].startswith("Starting: one ")
            assert ready["STATUS"].endswith(": one up")
            assert ready["MAINPID"] == str(served.process.pid)
            listener.until("WATCHDOG")
            engine = psutil.Process(served.engines()["one"]["pid"])
            assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(engine.environ())
            os.kill(served.process.pid, signal.SIGSTOP)
            try:
                listener.waiting()
                with pytest.raises(TimeoutError):
                    listener.next(2.0)
            finally:
                os.kill(served.process.pid, signal.SIGCONT)
            listener.until("WATCHDOG")
            monkeypatch.delenv("NOTIFY_SOCKET")
            assert served.order("stop").returncode == 0
            assert listener.until("STOPPING")[-1]["STATUS"].startswith("Ending: one ")
