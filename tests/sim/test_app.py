"""The simulated server over real sockets: headers, bytes, counters, and how each personality misbehaves."""

import asyncio
import re
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from support.recordings import recorded
from support.simulated import Sim, Start, becomes_true, refuses_connections

from toolkit.sim.app import SimServer, serve_in_thread
from toolkit.sim.drive import Core
from toolkit.sim.engine import EngineConfig
from toolkit.sim.life import setup_for

LABELS = '{engine="0",model_name="tiny"}'
WAIT_S = 60


def header_names(recording: bytes) -> list[str]:
    """The header names of a recorded answer, in their order."""
    return re.findall(r"^([a-z-]+):", recording.decode(), re.MULTILINE)


def names(answer: httpx.Response) -> list[str]:
    return [name.decode().lower() for name, _ in answer.headers.raw]


def masked(body: bytes) -> bytes:
    """A body without ids, times, and the model's own words and numbers."""
    for pattern, mask in (
        (rb'"id":"[a-z]+-[0-9a-f]{16}"', b'"id"'),
        (rb'"created":\d{10}', b'"created"'),
        (rb'"(content|text)":"(?:[^"\\]|\\.)+"', rb'"\1":"words"'),
        (rb'"root":"[^"]+"', b'"root"'),
        (rb'"system_fingerprint":"vllm-0\.32\.0-[0-9a-f]{8}"', b'"fingerprint"'),
    ):
        body = re.sub(pattern, mask, body)
    return body


TEN_WORDS = "a b c d e f g h i j k l m"
"""13 tokens; with the eight of the chat template 21, as the recorded prompt."""


def test_a_chat_answer_has_the_recorded_headers_and_bytes(sim: Sim) -> None:
    answer = sim.chat(TEN_WORDS, max_tokens=16)
    assert masked(answer.content) == masked(recorded("chat.json"))
    assert names(answer) == header_names(recorded("chat.headers"))
    assert answer.headers["server"] == "uvicorn"
    assert answer.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    ("recording", "options"),
    [
        ("chat_stream_nousage.body", None),
        ("chat_stream_contusage.body", {"include_usage": True, "continuous_usage_stats": True}),
    ],
)
def test_a_streamed_chat_has_the_recorded_headers_and_bytes(
    sim: Sim, recording: str, options: dict[str, bool] | None
) -> None:
    answer = sim.chat(TEN_WORDS, stream=True, stream_options=options)
    assert masked(answer.content) == masked(recorded(recording))
    assert names(answer) == header_names(recorded("chat_stream.headers"))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["transfer-encoding"] == "chunked"


def test_a_streamed_text_has_the_recorded_bytes(sim: Sim) -> None:
    body = {"prompt": "a b c d", "max_tokens": 4, "stream": True}
    body |= {"stream_options": {"include_usage": True}}
    answer = sim.client.post("/v1/completions", json=body)
    assert masked(answer.content) == masked(recorded("completions_stream.body"))


def test_a_text_answer_has_the_recorded_bytes(sim: Sim) -> None:
    answer = sim.client.post("/v1/completions", json={"prompt": "a b c d", "max_tokens": 8})
    assert masked(answer.content) == masked(recorded("completions.body"))


def test_the_small_pages_answer_as_recorded(sim: Sim) -> None:
    get = sim.client.get
    assert get("/version").content == recorded("version.json")
    assert get("/load").content == recorded("load.body")
    health = get("/health")
    assert (health.status_code, health.content) == (200, b"")
    assert names(health) == header_names(recorded("health.headers"))
    assert sim.client.post("/ping").status_code == 200
    models = get("/v1/models")
    assert masked(models.content) == masked(recorded("v1_models.json"))
    assert names(models) == header_names(recorded("v1_models.headers"))
    metrics = get("/metrics")
    assert metrics.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert "/v1/chat/completions" in get("/openapi.json").json()["paths"]


def test_the_models_creation_is_the_time_of_the_request(sim: Sim) -> None:
    created = sim.client.get("/v1/models").json()["data"][0]["created"]
    assert abs(created - time.time()) < 60


@pytest.mark.parametrize(
    ("method", "path", "recording"),
    [("GET", "/nowhere", "err_notfound"), ("GET", "/v1/chat/completions", "err_method")],
)
def test_a_wrong_path_or_method_is_refused_as_recorded(
    sim: Sim, method: str, path: str, recording: str
) -> None:
    answer = sim.client.request(method, path)
    assert answer.content == recorded(f"{recording}.body")
    assert str(answer.status_code) == recorded(f"{recording}.status").decode().strip()
    if recording == "err_method":
        assert names(answer) == header_names(recorded("err_method.headers"))
        assert answer.headers["allow"] == "POST"


def test_a_refusal_has_the_recorded_status_headers_and_bytes(sim: Sim) -> None:
    answer = sim.client.post(
        "/v1/chat/completions",
        content=b'{"model": "tiny", "messages":       }',
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400
    assert answer.content == recorded("err_malformed.body")
    assert names(answer) == header_names(recorded("err_malformed.headers"))


def test_a_body_beyond_all_measure_is_refused(sim: Sim) -> None:
    answer = sim.client.post("/tokenize", content=b"x" * (16 * 2**20 + 1))
    assert answer.status_code == 413


def test_a_client_that_waits_for_leave_to_send_gets_it(sim: Sim) -> None:
    parts = urlsplit(sim.url)
    head = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with socket.create_connection((parts.hostname, parts.port), timeout=WAIT_S) as connection:
        connection.sendall(head + b"content-length: 16\r\nexpect: 100-continue\r\n\r\n")
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b'{"prompt": "hi"}')
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK\r\ndate: ")


def test_the_tokenizer_counts_what_usage_will_say(sim: Sim) -> None:
    messages = [{"role": "user", "content": "one two three"}]
    counted = sim.client.post("/tokenize", json={"messages": messages}).json()
    used = sim.chat("one two three").json()["usage"]
    assert (counted["count"], counted["max_model_len"]) == (used["prompt_tokens"], 512)


def test_a_key_guards_v1_but_not_the_other_doors(start_sim: Start) -> None:
    sim = start_sim(api_key="secret")
    refused = sim.chat()
    assert (refused.status_code, refused.content) == (401, recorded("v2/nokey_chat.body"))
    assert names(refused) == header_names(recorded("v2/nokey_chat.headers"))
    assert sim.client.get("/v1/nowhere").status_code == 401
    assert sim.client.options("/v1/models").status_code == 405
    question = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    assert sim.client.post("/invocations", json=question).status_code == 200
    sim.client.headers["authorization"] = "Bearer secret"
    assert sim.chat().status_code == 200
    numbers = sim.numbers()
    unauthorized = [name for name in numbers if "http_requests_total" in name and "4xx" in name]
    assert unauthorized == ['http_requests_total{handler="none",method="OPTIONS",status="4xx"}']


def test_the_counters_equal_what_was_sent(sim: Sim) -> None:
    asked = [
        sim.chat("first question", max_tokens=3),
        sim.chat("second, a longer question", max_tokens=5),
        sim.client.post("/v1/completions", json={"prompt": "third", "max_tokens": 7}),
    ]
    assert sim.chat(temperature=-1).status_code == 400
    streamed = sim.chat("fourth", stream=True, max_tokens=2)
    assert streamed.status_code == 200
    usages = [answer.json()["usage"] for answer in asked]
    # "fourth" is one token, the chat template adds eight
    prompt = sum(usage["prompt_tokens"] for usage in usages) + 9
    numbers = sim.numbers()
    assert [usage["completion_tokens"] for usage in usages] == [3, 5, 7]
    assert numbers[f"vllm:prompt_tokens_total{LABELS}"] == prompt
    assert numbers[f"vllm:generation_tokens_total{LABELS}"] == 17  # 3 + 5 + 7 + 2
    assert numbers[f"vllm:request_prompt_tokens_sum{LABELS}"] == prompt
    assert numbers[f"vllm:e2e_request_latency_seconds_count{LABELS}"] == 4
    reason = 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}'
    assert numbers[reason] == 4
    chat = 'http_requests_total{handler="/v1/chat/completions",method="POST",status="%s"}'
    assert (numbers[chat % "2xx"], numbers[chat % "4xx"]) == (3, 1)


def test_an_answer_ends_of_itself_unless_told_to_go_on(sim: Sim) -> None:
    endings = set()
    for number in range(8):
        answer = sim.chat(f"question {number}", temperature=0, max_tokens=490).json()
        spoken, reason = answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]
        assert reason == "stop" or spoken == 490
        endings.add(reason)
        same = {"temperature": 0, "max_tokens": spoken}
        longer = sim.chat(f"question {number}", **same, ignore_eos=True).json()
        assert longer["choices"][0]["finish_reason"] == "length"
    assert "stop" in endings  # half of all answers are shorter than 400 tokens


def test_min_tokens_keep_an_answer_from_ending_early(sim: Sim) -> None:
    for number in range(4):
        answer = sim.chat(f"question {number}", temperature=0, min_tokens=480, max_tokens=490)
        assert 480 <= answer.json()["usage"]["completion_tokens"] <= 490


def test_temperature_zero_and_a_seed_repeat_themselves_and_chance_does_not(sim: Sim) -> None:
    def words(**fields: Any) -> str:
        message = sim.chat(max_tokens=16, **fields).json()["choices"][0]["message"]
        return str(message["content"])

    assert words(temperature=0) == words(temperature=0)
    assert words(seed=7) == words(seed=7)
    assert words(seed=7) != words(seed=8)
    assert words() != words()


def test_a_repeated_prompt_is_found_in_the_prefix_cache(sim: Sim) -> None:
    question = "word " * 100
    sim.chat(question)
    assert sim.numbers()[f"vllm:prefix_cache_hits_total{LABELS}"] == 0
    sim.chat(question)
    # 100 words, the last blank and eight of the template: 109 tokens, 6 full blocks of 16
    assert sim.numbers()[f"vllm:prefix_cache_hits_total{LABELS}"] == 96


def test_too_many_tokens_for_the_kv_cache_lead_to_preemption(start_sim: Start) -> None:
    # 32 blocks of 16 hold 496 tokens; four requests of 9 + 200 need 836
    sim = start_sim(num_gpu_blocks=32, time_scale=0.05, prefix_caching=False)

    async def all_at_once() -> list[int]:
        async with httpx.AsyncClient(base_url=sim.url, trust_env=False, timeout=30) as client:
            body = {"max_tokens": 200, "ignore_eos": True}
            body |= {"messages": [{"role": "user", "content": "hi"}]}
            sent = [client.post("/v1/chat/completions", json=body) for _ in range(4)]
            answers = await asyncio.gather(*sent)
            return [answer.json()["usage"]["completion_tokens"] for answer in answers]

    assert asyncio.run(all_at_once()) == [200] * 4
    numbers = sim.numbers()
    assert numbers[f"vllm:num_preemptions_total{LABELS}"] > 0
    assert numbers[f"vllm:generation_tokens_total{LABELS}"] == 800
    assert numbers[f"vllm:prompt_tokens_total{LABELS}"] == 36
    preempted = numbers[f"vllm:request_num_preemptions_sum{LABELS}"]
    assert preempted == numbers[f"vllm:num_preemptions_total{LABELS}"]


def test_a_client_that_leaves_frees_its_place(start_sim: Start) -> None:
    sim = start_sim(time_scale=1)
    with sim.client.stream(
        "POST",
        "/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "ignore_eos": True,
        },
    ) as answer:
        pieces = answer.iter_raw()
        assert next(pieces)
        numbers = sim.numbers()
        assert numbers[f"vllm:num_requests_running{LABELS}"] == 1
        assert numbers[f"vllm:kv_cache_usage_perc{LABELS}"] > 0
    assert becomes_true(lambda: sim.numbers()[f"vllm:num_requests_running{LABELS}"] == 0)
    numbers = sim.numbers()
    assert numbers[f"vllm:kv_cache_usage_perc{LABELS}"] == 0
    ended = [value for name, value in numbers.items() if "request_success_total" in name]
    assert sum(ended) == 0  # as recorded: an abort is counted nowhere


def test_a_client_that_leaves_a_whole_answer_frees_its_place_too(start_sim: Start) -> None:
    sim = start_sim(time_scale=1)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{sim.url}/v1/completions",
            json={"prompt": "hi", "max_tokens": 500, "ignore_eos": True},
            timeout=0.2,
            trust_env=False,
        )
    assert becomes_true(lambda: sim.numbers()[f"vllm:num_requests_running{LABELS}"] == 0)


def test_a_lost_engine_ends_streams_with_an_error_and_then_the_server(start_sim: Start) -> None:
    # so that it lingers for 2 s: time to ask it three things on a busy machine
    sim = start_sim(time_scale=4)
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True}
    with sim.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        pieces = answer.iter_raw()
        received = next(pieces)
        sim.thread.call(sim.thread.server.kill_engine)
        received += b"".join(pieces)
    end = recorded("slow/stream_during_engine_death.txt").split(b"\n\n")[-3:]
    assert answer.status_code == 200
    assert received.split(b"\n\n")[-3:] == end
    health = sim.client.get("/health")
    assert (health.status_code, health.content) == (503, b"")
    assert sim.client.get("/metrics").status_code == 200
    lost = sim.client.post("/v1/completions", json={"prompt": "hi"})
    assert (lost.status_code, lost.json()["error"]["type"]) == (500, "InternalServerError")
    assert becomes_true(lambda: refuses_connections(sim.url))


def test_connections_are_refused_until_the_server_is_up() -> None:
    async def scene() -> tuple[bool, int]:
        async with SimServer(setup_for("awq", startup_s=0.2)) as server:
            early = refuses_connections(server.url)
            await asyncio.wait_for(server.listening.wait(), WAIT_S)
            async with httpx.AsyncClient(trust_env=False) as client:
                health = await client.get(f"{server.url}/health")
            return early, health.status_code

    assert asyncio.run(scene()) == (True, 200)


def test_a_port_that_is_taken_is_an_error_of_the_system() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(OSError, match="in use"),
            serve_in_thread("awq", port=taken.getsockname()[1]),
        ):
            pass


def test_synthetic_clients_move_the_counters_without_any_request(start_sim: Start) -> None:
    sim = start_sim(load=3)
    assert becomes_true(lambda: sim.numbers()[f"vllm:request_success_total{length()}"] >= 6)
    numbers = sim.numbers()
    # 17 words and eight tokens of the chat template
    asked = numbers[f"vllm:request_prompt_tokens_count{LABELS}"]
    assert numbers[f"vllm:request_prompt_tokens_sum{LABELS}"] == 25 * asked
    assert not [name for name in numbers if name.startswith("http_requests_total")]


def test_an_idle_engine_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    async def idle(core: Core) -> None:
        monkeypatch.setattr(core.engine, "plan", asked.append)
        task = asyncio.create_task(core.run())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(idle(Core(EngineConfig(), {}, 0.0)))
    assert len(asked) == 1


def test_a_synthetic_client_gives_up_on_what_can_never_be_answered(start_sim: Start) -> None:
    # 25 tokens of prompt need 2 blocks; of 2 blocks vLLM keeps one for itself
    sim = start_sim(num_gpu_blocks=2, load=3)
    assert becomes_true(lambda: sim.numbers()[f"vllm:request_success_total{length('error')}"] == 3)
    failed = sim.chat("word " * 20)
    assert failed.status_code == 500
    assert "do not fit" in failed.json()["error"]["message"]


def length(reason: str = "length") -> str:
    return f'{{engine="0",finished_reason="{reason}",model_name="tiny"}}'


def test_several_engines_share_the_work_behind_one_address(start_sim: Start) -> None:
    sim = start_sim(engines=2, load=4)
    second = '{engine="1",model_name="tiny"}'
    assert becomes_true(lambda: sim.numbers()[f"vllm:generation_tokens_total{second}"] > 0)
    assert sim.numbers()[f"vllm:generation_tokens_total{LABELS}"] > 0


@pytest.mark.parametrize(
    ("dialect", "version", "content_type", "missing"),
    [
        ("v0", {"version": "0.7.3"}, "text/plain; version=0.0.4; charset=utf-8", "/load"),
        (
            "rust",
            {"version": "0.33.0", "rust_frontend_version": "0.33.0"},
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            "/ping",
        ),
    ],
)
def test_a_dialect_shows_in_version_and_pages(
    start_sim: Start, dialect: str, version: dict[str, str], content_type: str, missing: str
) -> None:
    sim = start_sim(dialect=dialect)
    assert sim.client.get("/version").json() == version
    assert sim.client.get("/metrics").headers["content-type"] == content_type
    assert sim.client.get(missing).status_code == 404


def test_without_stats_the_page_has_no_vllm_family(start_sim: Start) -> None:
    sim = start_sim(stats=False)
    assert sim.chat().status_code == 200
    page = sim.client.get("/metrics").text
    assert "vllm:" not in page
    assert "http_requests_total{" in page


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engines": 0}, "engines"),
        ({"engines": 2, "dialect": "v0"}, "exactly 1 in dialect `v0`"),
        ({"load": -1}, "load"),
        ({"nonsense": 1}, "nonsense"),
        ({"later": None}, "later"),
        ({"port": 65536}, "`127.0.0.1:65536` is no address"),
        ({"host": ""}, "`:0` is no address"),
        ({"cache_hit_s": -1.0}, "must not be negative"),
    ],
)
def test_a_setup_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        setup_for("awq", **changes)


def test_the_key_never_shows_in_a_setup() -> None:
    assert "secret" not in repr(setup_for("awq", api_key="secret"))
