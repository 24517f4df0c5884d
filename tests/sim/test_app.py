"""The simulated server over real sockets: headers, guarded paths, a lost engine, clients of whom some leave or never read. The contract holds what it answers and counts."""

import asyncio
import json
import logging
import random
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest
from contract.harness.programs import until
from support.recordings import recorded

from toolkit.hosts import read_hosts
from toolkit.sim.app import Fleet, SimThread, serve_in_thread
from toolkit.sim.presets import setups_for


class Sim:
    """A running simulator and a client for it."""

    def __init__(self, thread: SimThread, client: httpx.Client) -> None:
        self.thread, self.url, self.client = thread, thread.url, client

    def chat(self, text: str = "Tell me about the garden", **fields: Any) -> httpx.Response:
        """Ask one question; four tokens of answer unless said otherwise."""
        body = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
        return self.client.post("/v1/chat/completions", json=body | fields)

    def numbers(self) -> dict[str, float]:
        """Read `/metrics` line by line: everything before the last blank is the name."""
        page = self.client.get("/metrics").text.splitlines()
        pairs = [line.rpartition(" ") for line in page if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in pairs}


Start = Callable[..., Sim]


@pytest.fixture
def start_sim() -> Iterator[Start]:
    """Start servers of any preset, a hundred times as fast as life, named `tiny` and 512 tokens long."""
    with ExitStack() as stack:

        def start(name: str = "gptq-int4", **changes: Any) -> Sim:
            chosen = {"model": "tiny", "max_model_len": 512, "time_scale": 0.01} | changes
            thread = stack.enter_context(serve_in_thread(name, **chosen))
            client = httpx.Client(base_url=thread.url, timeout=30, trust_env=False)
            return Sim(thread, stack.enter_context(client))

        yield start


@pytest.fixture
def sim(start_sim: Start) -> Sim:
    return start_sim()


def header_names(recording: bytes) -> list[str]:
    """The header names of a recorded answer, in their order."""
    return re.findall(r"^([a-z-]+):", recording.decode(), re.MULTILINE)


def names(answer: httpx.Response) -> list[str]:
    return [name.decode().lower() for name, _ in answer.headers.raw]


@pytest.mark.parametrize(
    ("method", "path", "fields", "recording"),
    [
        ("POST", "/v1/chat/completions", {"max_tokens": 2}, "chat"),
        ("POST", "/v1/chat/completions", {"stream": True, "max_tokens": 2}, "chat_stream"),
        ("POST", "/v1/chat/completions", {"temperature": []}, "err_malformed"),
        ("GET", "/v1/chat/completions", None, "err_method"),
        ("GET", "/v1/models", None, "v1_models"),
        ("GET", "/health", None, "health"),
    ],
)
def test_headers_come_in_the_recorded_order(
    sim: Sim, method: str, path: str, fields: dict[str, Any] | None, recording: str
) -> None:
    body = None if fields is None else {"messages": [{"role": "user", "content": "hi"}]} | fields
    answer = sim.client.request(method, path, json=body)
    assert names(answer) == header_names(recorded(f"{recording}.headers"))
    assert (answer.headers["server"], answer.headers["vary"]) == ("uvicorn", "Origin")


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
    parts = urlsplit(sim.url)

    def refuses() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((parts.hostname, parts.port)) != 0

    until(refuses)


def test_all_of_a_fleet_listen_and_its_hosts_file_reads_back() -> None:
    async def scene() -> dict[str, str]:
        async with Fleet(setups_for(["alice=cached", "awq"], time_scale=0.01)) as fleet:
            hosts = read_hosts(fleet.hosts("note=x"), "test")
            async with httpx.AsyncClient(trust_env=False) as client:
                pages = [await client.get(f"{host.url}/v1/models") for host in hosts]
            roots = [page.json()["data"][0]["root"] for page in pages]
            return dict(zip((host.name for host in hosts), roots, strict=True))

    assert asyncio.run(scene()) == {
        "alice": "Qwen/Qwen3.5-35B-A3B-GPTQ-Int4",
        "awq": "QuantTrio/Qwen3.5-35B-A3B-AWQ",
    }


def test_a_guarded_path_is_guarded_however_it_is_spelled(start_sim: Start) -> None:
    sim = start_sim(api_key="secret")
    for target in ("/v1/models", "/%761/models", "/v1%2fmodels"):
        with closing(HTTPConnection(urlsplit(sim.url).netloc)) as connection:
            connection.request("GET", target)
            assert connection.getresponse().status == 401


CLIENTS = 24
WAIT_S = 60
LABELS = '{engine="0",model_name="tiny"}'


def reason(name: str) -> str:
    return f'vllm:request_success_total{{engine="0",finished_reason="{name}",model_name="tiny"}}'


def question(number: int, **fields: Any) -> dict[str, Any]:
    """Up to 40 words of prompt and 60 tokens of answer, different for each number."""
    dice = random.Random(number)
    words = " ".join(dice.choices("a b c d e f".split(), k=dice.randint(1, 40)))
    messages = [{"role": "user", "content": f"{number} {words}"}]
    return {"messages": messages, "max_tokens": dice.randint(8, 60), "ignore_eos": True} | fields


async def whole(client: aiohttp.ClientSession, number: int) -> None:
    async with client.post("/v1/chat/completions", json=question(number)) as answer:
        await answer.json()


async def leave_early(client: aiohttp.ClientSession, number: int) -> None:
    """Go after the first bytes of a stream of 400 tokens."""
    wish = question(number, stream=True) | {"max_tokens": 400}
    async with client.post("/v1/chat/completions", json=wish) as answer:
        assert await answer.content.readany()
        answer.close()


def session(url: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=30))


def test_clients_that_leave_in_the_middle_leave_nothing_behind(
    start_sim: Start, caplog: pytest.LogCaptureFixture
) -> None:
    sim = start_sim(num_gpu_blocks=64, time_scale=0.1)  # 63 blocks: some leave from the queue

    async def everybody() -> None:
        async with session(sim.url) as client:
            await asyncio.gather(
                *(leave_early(client, n) for n in range(CLIENTS)),
                whole(client, CLIENTS),
            )

    with caplog.at_level(logging.WARNING):
        asyncio.run(everybody())
        until(lambda: sim.numbers()[f"vllm:num_requests_running{LABELS}"] == 0)
        # the one that asks is a client, too
        until(lambda: len(sim.thread.server._runner.server.connections) == 1)
    numbers = sim.numbers()
    assert numbers[f"vllm:num_requests_waiting{LABELS}"] == 0
    assert numbers[f"vllm:kv_cache_usage_perc{LABELS}"] == 0
    assert numbers[reason("length")] == 1
    assert [record.getMessage() for record in caplog.records] == []


def test_a_client_that_never_reads_holds_up_nobody_and_fills_no_memory(start_sim: Start) -> None:
    # 4,000 tokens with running usage are 1.4 MB of events
    sim = start_sim(time_scale=0.0001, max_model_len=4096)
    options = {"include_usage": True, "continuous_usage_stats": True}
    wish = question(1, stream=True, stream_options=options) | {"max_tokens": 4000}
    with deaf_client(sim.url, json.dumps(wish).encode()):
        until(lambda: sim.numbers()[f"vllm:generation_tokens_total{LABELS}"] >= 4000)
        assert sim.chat().status_code == 200
        waiting = [
            connection.transport.get_write_buffer_size()
            for connection in sim.thread.server._runner.server.connections
            if connection.transport
        ]
        # asyncio's high-water mark and aiohttp's, 64 KiB each, and the last write
        assert max(waiting) < 2**18
        assert sim.numbers()[reason("length")] == 2


def deaf_client(url: str, body: bytes) -> socket.socket:
    """Ask, and read nothing; with the smallest receive buffer that the system gives."""
    parts = urlsplit(url)
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.settimeout(WAIT_S)
    deaf.connect((parts.hostname, parts.port))
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\n"
    deaf.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return deaf
