"""What `toolkit serve` reads of its command line, and what it says where nothing can be served; nothing is started here."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.served import free_ports

from toolkit.cli import main
from toolkit.cli.exit_codes import INTERRUPTED
from toolkit.cli.serve.events import ServeEvents, blast_on
from toolkit.cli.serve.machine import needs_of
from toolkit.cli.serve.run import listen_to_signals
from toolkit.proxy.config import Settings
from toolkit.records import Event, Host, LoaderSecond, Run, Sighting
from toolkit.serving.stack import EngineSetting, Stack
from toolkit.store import Store


def serve(*words: str) -> Result:
    return CliRunner().invoke(main, ["serve", *words])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "words", [[], ["--tiny", "--sim", "fp8"], ["model", "--tiny"], ["stack.toml", "--gpus", "0"]]
)
def test_a_stack_is_named_in_one_way(words: list[str]) -> None:
    assert serve(*words).exit_code == 2


def test_help_shows_what_is_typed_and_the_orders() -> None:
    told = serve("--help").output
    for word in ("--tiny", "--sim", "--preset", "status", "restart", "swap", "stop"):
        assert word in told
    assert serve("swap", "--help").exit_code == 0


def test_check_says_what_the_stack_means_and_starts_nothing() -> None:
    port, *_ = free_ports(1)
    told = serve("--sim", "fp8", "--port", str(port), "--served-name", "m", "--check")
    assert told.exit_code == 0, told.output
    assert f"Proxy on http://127.0.0.1:{port}" in told.stderr
    assert "Engine m: fp8, by the simulator" in told.stderr
    assert told.stdout == ""
    assert not Path("data").exists()


def test_a_preset_that_is_several_engines_needs_no_model() -> None:
    fake = Path("vllm")
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    told = serve("--preset", "multi-team", "--vllm", str(fake.absolute()), "--check")
    assert told.exit_code == 0, told.output
    assert told.stderr.count("Engine ") == 2
    for option in ("--set", "--served-name", "--gpus"):
        assert serve("--preset", "multi-team", option, "0", "--check").exit_code == 2
    alone = serve("--preset", "latency", "--check")
    assert alone.exit_code == 1
    assert "toolkit serve MODEL --preset latency" in alone.stderr


def test_a_file_that_is_missing_and_a_vllm_that_is_missing_are_told() -> None:
    assert "`no.toml` cannot be read" in serve("no.toml").stderr
    assert "there is no vLLM at" in serve("org/model", "--vllm", "/no/vllm").stderr


def test_a_tiny_stack_without_any_vllm_names_the_command_that_brings_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TOOLKIT_VLLM_HOME", str(tmp_path / "none"))
    told = serve("--tiny")
    assert told.exit_code == 1
    assert told.stderr.count("Error: ") == 1
    assert "install_vllm.sh" in told.stderr


def test_a_key_that_is_not_set_is_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    Path("s.toml").write_text('[[engine]]\nkind = "sim"\nmodel = "fp8"\nkey_env = "MY_KEY"\n')
    told = serve("s.toml")
    assert told.exit_code == 1
    assert "`MY_KEY`, the key of engine `fp8`, is not set" in told.stderr


def test_a_port_that_somebody_holds_is_told_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        told = serve("--sim", "fp8", "--port", str(port))
    assert told.exit_code == 1
    assert f"the proxy cannot listen on 127.0.0.1:{port}" in told.stderr


@pytest.mark.parametrize("host", ["203.0.113.1", "2001:db8::1"])
def test_an_address_that_is_not_ours_is_not_called_taken(host: str) -> None:
    Path("s.toml").write_text(f'[[engine]]\nkind = "sim"\nmodel = "fp8"\nhost = "{host}"\n')
    for told in (serve("s.toml", "--check"), serve("--sim", "fp8", "--host", host, "--check")):
        assert told.exit_code == 1
        assert "listen on" in told.stderr
        assert "somebody does" not in told.stderr
        assert "no port above" not in told.stderr


def test_a_key_that_vllm_would_find_by_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "geheim")
    fake = Path("vllm")
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    told = serve("org/m", "--vllm", str(fake.absolute()), "--check")
    assert told.exit_code == 1
    assert "`VLLM_API_KEY` is set" in told.stderr
    assert "geheim" not in told.output
    assert serve("--sim", "fp8", "--check").exit_code == 0


def test_prompts_that_nobody_knows_are_told_before_anything_starts() -> None:
    Path("s.toml").write_text(
        '[[engine]]\nkind = "sim"\nmodel = "fp8"\n[warm]\nprofile = "nobody"\n'
    )
    told = serve("s.toml", "--check")
    assert told.exit_code == 1
    assert "nobody" in told.stderr


@pytest.mark.parametrize("order", ["status", "restart", "stop"])
def test_an_order_to_nobody_says_so(order: str) -> None:
    told = serve(order)
    assert told.exit_code == 1
    assert "no serve runs in `data/serve`" in told.stderr


def test_a_swap_to_nothing_is_a_slip() -> None:
    assert serve("swap").exit_code == 2


# --- events -----------------------------------------------------------------------------------------------

DATABASE = "toolkit.db"


def stack(**more: object) -> Stack:
    proxy = Settings(upstreams=(), port=8000)
    return Stack(engines=(), proxy=proxy, database=DATABASE, **more)  # type: ignore[arg-type]


def test_restarts_are_shown_on_the_board_of_whoever_asks_the_proxy_and_figures_are_not() -> None:
    url = "http://127.0.0.1:8000"
    with Store.open(Path(DATABASE)) as store:
        store.add_sightings([Sighting(name="alice", url=url, at=1.0, status="ok")])
        store.add_run(Run(id="b", verb="blast", started_at=time.time() - 5))
    with ServeEvents(stack()) as events:
        events.opened(url)
        for kind, text in (("mark", "ready after 3.0 s"), ("restart", "it ended")):
            host = Host(name="e", url="http://127.0.0.1:8001")
            events.add(
                Event(name=host.name, url=host.url, at=time.time(), kind=kind, text=text)  # type: ignore[arg-type]
            )
    with Store.open_readonly(Path(DATABASE)) as store:
        board = [(event.name, event.text) for _, event in store.events("b")]
        (run,) = store.runs(verb="serve")
        own = [(event.name, event.text) for _, event in store.events(run.id) if event.run]
    assert board == [("alice", "e: it ended")]
    assert own == [("e", "ready after 3.0 s"), ("e", "it ended")]
    assert run.ended_at is not None


def test_a_blast_is_on_while_it_writes_its_seconds() -> None:
    now = time.time()
    with Store.open(Path(DATABASE)) as store:
        store.add_run(Run(id="killed", verb="blast", started_at=now - 600))
        store.add_second(seconds=[LoaderSecond(run="killed", at_s=int(now) - 300, worker="w")])
        store.add_run(Run(id="over", verb="blast", started_at=now - 9, ended_at=now))
    assert blast_on(DATABASE) is None
    with Store.open(Path(DATABASE)) as store:
        store.add_run(Run(id="on", verb="blast", started_at=now - 60))
        store.add_second(seconds=[LoaderSecond(run="on", at_s=int(now), worker="w")])
    assert blast_on(DATABASE) == "on"
    assert blast_on(None) is blast_on("nothing.db") is None


def test_a_blast_is_on_whatever_began_after_it() -> None:
    now = time.time()
    with Store.open(Path(DATABASE)) as store:
        store.add_run(Run(id="on", verb="blast", started_at=now - 3600))
        store.add_second(seconds=[LoaderSecond(run="on", at_s=int(now), worker="w")])
        for place in range(20):
            started_at = now - 600 + place
            over = Run(id=f"b{place}", verb="blast", started_at=started_at, ended_at=started_at + 1)
            store.add_run(over)
    assert blast_on(DATABASE) == "on"


# --- what ends it ------------------------------------------------------------------------------------------


class Asked:
    """A supervisor that only counts how often it is asked to end."""

    times = 0

    @property
    def stopping(self) -> "Asked":
        return self

    def set(self) -> None:
        self.times += 1


async def heard(numbers: list[signal.Signals]) -> int:
    """How often a house was asked to end once all these signals were heard, one after the other."""
    house: Any = Asked()
    loop = asyncio.get_running_loop()
    with ExitStack() as signs:
        listen_to_signals(house, signs)
        for number in numbers:
            was_heard = asyncio.Event()
            loop.add_signal_handler(signal.SIGUSR1, was_heard.set)
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), signal.SIGUSR1)  # heard behind it
            await was_heard.wait()
    return int(house.times)


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The codes with which it would have ended at once; a terminal that is closed is heard."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield codes
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_tells_it_twice_and_means_it_once(exits: list[int]) -> None:
    """The shell hangs up, and behind it the kernel: bash's did within a millisecond."""
    assert asyncio.run(heard([signal.SIGHUP, signal.SIGHUP])) == 1
    assert exits == []


def test_who_cannot_wait_ends_it_at_once(exits: list[int]) -> None:
    asyncio.run(heard([signal.SIGHUP, signal.SIGINT]))
    assert exits == [INTERRUPTED]


# --- what is asked of the machine -------------------------------------------------------------------------


def test_each_vllm_is_looked_at_once_and_all_ports_with_the_first() -> None:
    engines = (
        EngineSetting(name="a", model="m", port=1, spare_port=2, gpus="0"),
        EngineSetting(name="b", model="m", port=3, spare_port=4, gpus="0"),
        EngineSetting(name="s", kind="sim", model="fp8", port=5, spare_port=None),
    )
    first, second = needs_of(Stack(engines=engines, proxy=Settings(upstreams=(), port=9)))
    assert (first.ports, first.gpu, first.vllm) == ((1, 2, 3, 4, 5, 9), True, "vllm")
    assert (second.ports, second.gpu, second.vllm) == ((), False, None)


def test_the_weights_of_a_known_model_are_asked_of_disk_and_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    flags = (("gpu-memory-utilization", "0.5"), ("tensor-parallel-size", "2"))
    setting = EngineSetting(name="a", model="Qwen/Qwen2.5-7B-Instruct", port=1, flags=flags)
    (needs,) = needs_of(Stack(engines=(setting,), proxy=None))
    assert needs.gpu_memory_utilization == 0.5
    # 7.6 thousand million weights of 2 bytes, half of them on each GPU
    assert needs.disk_bytes is not None
    assert 14e9 < needs.disk_bytes < 16e9
    assert needs.gpu_bytes is not None
    assert 7e9 < needs.gpu_bytes < 8.5e9
    (unknown,) = needs_of(Stack(engines=(replace(setting, model="org/unknown"),), proxy=None))
    assert unknown.gpu_bytes is None
