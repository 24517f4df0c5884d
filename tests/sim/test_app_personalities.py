"""How each personality behaves towards its clients, over real sockets."""

import json
import re

import httpx
import pytest
from support.simulated import Sim, Start, becomes_true, events_of, refuses_connections

LABELS = '{engine="0",model_name="tiny"}'


def test_cached_answers_a_repetition_from_memory_streamed_or_not(start_sim: Start) -> None:
    sim = start_sim("cached")
    first = sim.chat("again", temperature=1)
    before = sim.numbers()[f"vllm:generation_tokens_total{LABELS}"]
    assert sim.chat("again", temperature=1).content == first.content
    streamed = sim.chat("again", temperature=1, stream=True, stream_options={"include_usage": True})
    events = events_of(streamed.content)
    words = "".join(event["choices"][0]["delta"]["content"] for event in events[:-1])
    assert words == first.json()["choices"][0]["message"]["content"]
    assert events[-1]["usage"]["completion_tokens"] == 4
    assert sim.numbers()[f"vllm:generation_tokens_total{LABELS}"] == before == 4
    assert "x-cache" not in streamed.headers


def test_cached_tells_on_request_whether_it_remembered(start_sim: Start) -> None:
    sim = start_sim("cached", cache_header=True)
    told = [sim.chat(text).headers["x-cache"] for text in ("one", "one", "two")]
    assert told == ["MISS", "HIT", "MISS"]


def test_first_token_says_one_token_and_claims_to_be_done(start_sim: Start) -> None:
    sim = start_sim("first-token")
    answer = sim.chat(max_tokens=50, ignore_eos=True).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 1
    events = events_of(sim.chat(max_tokens=50, ignore_eos=True, stream=True).content)
    assert len(events) == 2  # the role and one token
    assert events[1]["choices"][0]["finish_reason"] == "stop"


def test_switcher_refuses_connections_and_comes_back_as_a_new_process(start_sim: Start) -> None:
    sim = start_sim("switcher", down_after_s=50, down_for_s=50)  # half a second each
    old = httpx.Client(base_url=sim.url, trust_env=False)
    with old:
        assert sim.chat().status_code == 200
        started = sim.numbers()["process_start_time_seconds"]
        assert becomes_true(lambda: refuses_connections(sim.url))
        with pytest.raises(httpx.TransportError):
            old.get("/health")
    assert becomes_true(lambda: not refuses_connections(sim.url))
    numbers = sim.numbers()
    assert numbers["process_start_time_seconds"] > started
    assert numbers[f"vllm:prompt_tokens_total{LABELS}"] == 0


def test_switcher_comes_back_with_another_model_under_its_old_name(start_sim: Start) -> None:
    sim = start_sim("switcher", max_model_len=4096, down_after_s=50, down_for_s=50)
    before = told(sim)
    assert becomes_true(lambda: refuses_connections(sim.url))
    assert becomes_true(lambda: not refuses_connections(sim.url))
    after = told(sim)
    assert before == ("tiny", "QuantTrio/Qwen3.5-35B-A3B-AWQ", "499", "auto", "0.9")
    assert after == ("tiny", "Qwen/Qwen3.5-35B-A3B-GPTQ-Int4", "1097", "fp8_e4m3", "0.98")
    assert sim.chat().status_code == 200  # and speaks


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


def test_flaky_cuts_whole_answers_in_their_middle(start_sim: Start) -> None:
    sim = start_sim("flaky", error_share=0, cut_share=1, stream_error_share=0)
    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
        sim.chat()


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
    started = switcher.numbers()["process_start_time_seconds"]
    for sim in (switcher, other):
        sim.thread.call(sim.thread.server.change_now)
    assert becomes_true(lambda: refuses_connections(switcher.url))
    # while it is down, a second word changes nothing
    switcher.thread.call(switcher.thread.server.change_now)
    assert becomes_true(lambda: not refuses_connections(switcher.url))
    assert switcher.numbers()["process_start_time_seconds"] > started
    assert not refuses_connections(other.url)
    assert told(switcher)[1] == "Qwen/Qwen3.5-35B-A3B-GPTQ-Int4"
    assert told(other)[1] == "QuantTrio/Qwen3.5-35B-A3B-AWQ"
