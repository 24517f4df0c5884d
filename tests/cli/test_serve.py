"""What `toolkit serve` reads of its command line, and what it says where nothing can be served; nothing is started here."""

import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from contract.harness.programs import free_port

from toolkit.cli import main
from toolkit.cli.serve.events import ServeEvents, blast_on
from toolkit.cli.serve.machine import needs_of
from toolkit.proxy.config import Settings
from toolkit.records import Event, Host, LoaderSecond, Run, Sighting
from toolkit.serving.stack import EngineSetting, Stack
from toolkit.store import Store


def serve(*words: str) -> Result:
    return CliRunner().invoke(main, ["serve", *words])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fake_vllm() -> str:
    """A command that is there."""
    fake = Path("vllm")
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    return str(fake.absolute())


STACK = '[[engine]]\nkind = "sim"\nmodel = "fp8"\n'


@pytest.mark.parametrize(
    "words",
    [
        *("", "--tiny --sim fp8", "model --tiny", "stack.toml --gpus 0", "stack.toml --preset latency"),
        *(f"--preset multi-team --vllm ./vllm {word} 0" for word in ("--set", "--served-name", "--gpus")),
        *(f"org/m --vllm ./vllm --check -- {words}" for words in ("4096", "--a 1 2", "--a=1 2", "--a -tp 2")),
        "swap",
    ],
)  # fmt: skip
def test_what_nobody_can_mean_is_a_wrong_command_line(words: str) -> None:
    fake_vllm()
    assert serve(*words.split(), *([] if words == "swap" else ["--check"])).exit_code == 2


def test_check_says_what_the_stack_means_and_starts_nothing() -> None:
    port = free_port()
    done = serve("--sim", "fp8", "--port", str(port), "--served-name", "m", "--check")
    assert done.exit_code == 0, done.output
    assert f"Proxy on http://127.0.0.1:{port}" in done.stderr
    assert "Engine m: fp8, by the simulator" in done.stderr
    assert done.stdout == ""
    assert not Path("data").exists()
    # a port that the system chooses is not known before it listens
    done = serve("--sim", "fp8", "--port", "0", "--check")
    assert "Proxy on a free port of 127.0.0.1 in front of " in done.stderr
    assert ":0" not in done.stderr


def test_flags_after_two_dashes_are_vllms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Stack] = []
    monkeypatch.setattr("toolkit.cli.serve.run.serve_stack", lambda stack, *_: served.append(stack))
    monkeypatch.setattr("toolkit.cli.proxy.process.run_loop", lambda _: None)
    words = "--max-model-len 4096 --seed -1 --enforce-eager --dtype=half --no-enable-prefix-caching"
    done = serve(
        *("org/m", "--port", "0", "--set", "max-num-seqs=8", "--vllm", fake_vllm()),
        *("--", *words.split(), "--override-generation-config", '{"a": "b=c"}'),
    )
    assert done.exit_code == 0, done.output
    (engine,) = served[0].engines
    assert dict(engine.flags) == {
        "max-num-seqs": "8",
        "max-model-len": "4096",
        "seed": "-1",
        "enforce-eager": True,
        "dtype": "half",
        "no-enable-prefix-caching": True,
        "override-generation-config": '{"a": "b=c"}',
    }


def test_a_preset_that_is_several_engines_needs_no_model() -> None:
    done = serve("--preset", "multi-team", "--vllm", fake_vllm(), "--check")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("Engine ") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("no.toml", "`no.toml` cannot be read"),
        ("org/model --vllm /no/vllm", "there is no vLLM at"),
        ("--tiny", "tests/real/install_vllm.sh"),
        ("--preset latency --check", "toolkit serve MODEL --preset latency"),
        ("key.toml", "`MY_KEY`, the key of engine `fp8`, is not set"),
        ("warm.toml --check", "nobody"),
        ("org/m --vllm ./vllm --check", "`VLLM_API_KEY` is set"),
        *((order, "no serve runs in `data/serve`") for order in ("status", "restart", "stop")),
    ],
)
def test_what_cannot_be_served_is_told_once_before_anything_starts(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_vllm()
    Path("key.toml").write_text(STACK + 'key_env = "MY_KEY"\n')
    Path("warm.toml").write_text(STACK + '[warm]\nprofile = "nobody"\n')
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("TOOLKIT_VLLM_HOME", "/nowhere")
    monkeypatch.delenv("MY_KEY", raising=False)
    if words.startswith("org/m "):
        monkeypatch.setenv("VLLM_API_KEY", "geheim")
    done = serve(*words.split())
    assert (done.exit_code, done.stderr.count("Error: ")) == (1, 1)
    assert message in done.stderr
    assert "geheim" not in done.output
    assert not Path("data").exists()


def test_vllms_own_variable_is_none_of_the_simulators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "geheim")
    assert serve("--sim", "fp8", "--check").exit_code == 0


def test_a_port_that_somebody_holds_is_told_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = serve("--sim", "fp8", "--port", str(port))
    assert done.exit_code == 1
    assert f"the proxy cannot listen on 127.0.0.1:{port}" in done.stderr


@pytest.mark.parametrize("host", ["203.0.113.1", "2001:db8::1"])
def test_an_address_that_is_not_ours_is_not_called_taken(host: str) -> None:
    Path("s.toml").write_text(f'{STACK}host = "{host}"\n')
    for told in (serve("s.toml", "--check"), serve("--sim", "fp8", "--host", host, "--check")):
        assert told.exit_code == 1
        assert "listen on" in told.stderr
        assert "somebody does" not in told.stderr
        assert "no port above" not in told.stderr


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
        # whatever began after it
        for place in range(20):
            began = now - 50 + place
            store.add_run(Run(id=f"b{place}", verb="blast", started_at=began, ended_at=began + 1))
    assert blast_on(DATABASE) == "on"
    assert blast_on(None) is blast_on("nothing.db") is None


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
