"""How each preset behaves towards its clients, over real sockets."""

import json
import re

import httpx
import pytest
from support.simulated import Sim, Start, becomes_true, refuses_connections

LABELS = '{engine="0",model_name="tiny"}'


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


def test_cold_takes_its_time_for_the_first_request_only(start_sim: Start) -> None:
    sim = start_sim("cold", time_scale=0.001, cold_s=100, jitter=0)  # a tenth of a second
    for _ in range(2):
        assert sim.chat(max_tokens=1).status_code == 200
    first_token = "vllm:time_to_first_token_seconds"
    numbers = sim.numbers()
    fast = numbers[f'{first_token}_bucket{{engine="0",le="0.08",model_name="tiny"}}']
    assert fast == 1
    assert numbers[f"{first_token}_sum{LABELS}"] >= 0.1


def test_flaky_fails_in_every_way_it_promises(start_sim: Start) -> None:
    sim = start_sim("flaky", error_share=0.25, cut_share=0.25, stream_error_share=0.25)
    seen = set()
    for _ in range(40):
        seen.add(kind_of_failure(sim))
    assert seen == {"fine", "error", "cut", "stream_error"}
    assert sim.numbers()[f"vllm:num_requests_running{LABELS}"] == 0


def kind_of_failure(sim: Sim) -> str:
    try:
        answer = sim.chat(stream=True, max_tokens=12, ignore_eos=True)
    except httpx.RemoteProtocolError:
        return "cut"
    if answer.status_code == 500:
        assert answer.json()["error"]["type"] == "InternalServerError"
        return "error"
    *_, last, done, _ = answer.content.split(b"\n\n")
    assert done == b"data: [DONE]"
    return "stream_error" if "error" in json.loads(last[6:]) else "fine"


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
