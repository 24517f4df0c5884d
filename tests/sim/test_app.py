"""The simulated server over real sockets: headers, odd bodies, a lost engine, ports, fleets. The contract holds what it answers and counts."""

import asyncio
import re
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from support.recordings import recorded
from support.simulated import Sim, Start, becomes_true, refuses_connections

from toolkit.hosts import read_hosts
from toolkit.sim.app import Fleet, SimServer, serve_in_thread
from toolkit.sim.presets import setup_for, setups_for

WAIT_S = 60


def header_names(recording: bytes) -> list[str]:
    """The header names of a recorded answer, in their order."""
    return re.findall(r"^([a-z-]+):", recording.decode(), re.MULTILINE)


def names(answer: httpx.Response) -> list[str]:
    return [name.decode().lower() for name, _ in answer.headers.raw]


"""13 tokens; with the eight of the chat template 21, as the recorded prompt."""


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


def test_a_synthetic_client_gives_up_on_what_can_never_be_answered(start_sim: Start) -> None:
    # 25 tokens of prompt need 2 blocks; of 2 blocks vLLM keeps one for itself
    sim = start_sim(num_gpu_blocks=2, load=3)
    assert becomes_true(lambda: sim.numbers()[f"vllm:request_success_total{length('error')}"] == 3)
    failed = sim.chat("word " * 20)
    assert failed.status_code == 500
    assert "do not fit" in failed.json()["error"]["message"]


def length(reason: str = "length") -> str:
    return f'{{engine="0",finished_reason="{reason}",model_name="tiny"}}'


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


def test_one_taken_port_stops_the_whole_fleet() -> None:
    async def scene(fleet: Fleet) -> None:
        async with fleet:
            pass

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        fleet = Fleet({"free": setup_for("awq"), "taken": setup_for("awq", port=port)})
        with pytest.raises(OSError, match="in use"):
            asyncio.run(scene(fleet))
    assert urlsplit(fleet.servers["free"].url).port  # it was up before the other one failed
    assert refuses_connections(fleet.servers["free"].url)
