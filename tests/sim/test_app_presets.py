"""How each preset behaves towards its clients, over real sockets."""

import re

import httpx
import pytest
from support.simulated import Sim, Start, becomes_true, refuses_connections


def test_a_switcher_falls_by_itself_when_its_time_comes(start_sim: Start) -> None:
    sim = start_sim("switcher", down_after_s=1, down_for_s=1)

    def root() -> str:
        try:
            return told(sim)[1]
        except httpx.TransportError:
            return "down"

    assert becomes_true(lambda: root() == "Qwen/Qwen3.5-35B-A3B-GPTQ-Int4")


def told(sim: Sim) -> tuple[str, ...]:
    """What a visitor is told of the model and its cache."""
    card = sim.client.get("/v1/models").json()["data"][0]
    page = sim.client.get("/metrics").text
    (config,) = [line for line in page.splitlines() if line.startswith("vllm:cache_config_info{")]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', config))
    wanted = ("num_gpu_blocks", "cache_dtype", "gpu_memory_utilization")
    return (card["id"], card["root"], *(labels[name] for name in wanted))


def test_drip_lets_every_page_trickle(start_sim: Start) -> None:
    sim = start_sim("drip", drip_bytes_per_s=1000, time_scale=1)
    with sim.client.stream("GET", "/version") as answer:
        assert b"".join(answer.iter_raw()) == b'{"version":"0.32.0"}'
    with sim.client.stream("GET", "/metrics") as page:
        pieces = page.iter_raw()
        received = [next(pieces) for _ in range(3)]
    # 50 bytes each twentieth of a second; a late reader may find a few of them together
    assert all(len(piece) % 50 == 0 for piece in received)
    assert int(page.headers["content-length"]) > 40_000 > 100 * len(received[0])


def test_a_switcher_that_is_told_to_falls_at_once_and_nobody_else_does(start_sim: Start) -> None:
    switcher = start_sim("switcher", down_after_s=None, down_for_s=20)
    other = start_sim("awq", down_for_s=20)
    assert told(other) == ("tiny", "QuantTrio/Qwen3.5-35B-A3B-AWQ", "499", "auto", "0.9")
    started = switcher.numbers()["process_start_time_seconds"]
    before = told(switcher)
    for sim in (switcher, other):
        sim.thread.call(sim.thread.server.change_now)
    assert becomes_true(lambda: refuses_connections(switcher.url))
    with pytest.raises(httpx.TransportError):
        switcher.client.get("/health")
    # while it is down, a second word changes nothing
    switcher.thread.call(switcher.thread.server.change_now)
    assert becomes_true(lambda: not refuses_connections(switcher.url))
    assert switcher.numbers()["process_start_time_seconds"] > started
    assert not refuses_connections(other.url)
    after = ("tiny", "Qwen/Qwen3.5-35B-A3B-GPTQ-Int4", "1097", "fp8_e4m3", "0.98")
    assert told(switcher) == after
    assert switcher.chat().status_code == 200  # and speaks
    assert told(other) == before
