"""Locust processes against hosts that fail in every way: each failure under its kind, and none at a neighbour's cost."""

import asyncio
import contextlib
import json
import signal
import socketserver
import sqlite3
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme
from contract.harness.programs import free_port, until
from support.chat import CHAT, DONE, HEAD, LAST, ROLE, STREAM, USAGE, WHOLE, chunk, token
from support.locusts import (
    BEGUN,
    DATABASE,
    HOSTS,
    all_sums,
    errors,
    headless,
    newest,
    requests_kept,
    run,
    start,
    stored,
    wait_for,
)
from support.raw_server import RawServer, http, recorded, serving

from toolkit.store import Store

pytestmark = pytest.mark.slow

MODELS = http(recorded("v1_models.json"), content_type="application/json")
GOOD = http(WHOLE, content_type="application/json")
THINKING_S = 0.02
"""A host that answers at once is asked as fast as a CPU can."""
ONLY_WHOLE = ("--mix", "0", "--canaries", "0")


@contextlib.contextmanager
def fleet(**answers) -> Iterator[dict[str, RawServer]]:
    """A raw host for each name, which answers chats as told."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(serving({"/v1/models": MODELS, CHAT: answer}))
            for name, answer in answers.items()
        }


def write_hosts(folder: Path, servers: dict[str, RawServer], *more: str) -> None:
    lines = [f"{name} {server.url}" for name, server in servers.items()]
    (folder / HOSTS).write_text("\n".join([*lines, *more, ""]))


def chats(server: RawServer) -> int:
    return server.paths().count(CHAT)


async def good(writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(THINKING_S)
    writer.write(GOOD)
    return True


async def hang(_: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def hang_in_the_middle(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + ROLE + token("Hello"))
    await asyncio.Event().wait()


async def close(_: asyncio.StreamWriter) -> bool:
    return False


async def cut(writer: asyncio.StreamWriter) -> bool:
    writer.write(HEAD + ROLE + token("Hello"))
    await writer.drain()
    return False


async def flood(writer: asyncio.StreamWriter) -> bool:
    """Gigabytes, as fast as they are read."""
    writer.write(HEAD + ROLE)
    piece = chunk(b": " + b"x" * 2**16 + b"\n\n")
    while True:
        writer.write(piece)
        await writer.drain()


async def drip(writer: asyncio.StreamWriter) -> bool:
    """An answer that comes byte by byte and never ends."""
    while True:
        writer.write(b"H")
        await writer.drain()
        await asyncio.sleep(0.05)


class PlainHttp(socketserver.BaseRequestHandler):
    """Refuses whatever does not look like HTTP, as uvicorn does."""

    def handle(self) -> None:
        self.request.recv(2**16)
        self.request.sendall(http("Invalid HTTP request received.", "400 Bad Request"))


@contextlib.contextmanager
def no_tls() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), PlainHttp) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class TlsServer(socketserver.ThreadingTCPServer):
    """Plain HTTP is no handshake: the connection ends."""

    def get_request(self) -> tuple[ssl.SSLSocket, object]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        sock, address = super().get_request()
        return context.wrap_socket(sock, server_side=True), address


@contextlib.contextmanager
def only_tls() -> Iterator[str]:
    with TlsServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_each_failure_has_its_kind_and_a_good_host_none(tmp_path: Path) -> None:
    error = {"error": {"message": "engine died", "code": 500}}
    in_stream = HEAD + ROLE + chunk(b"data: " + json.dumps(error).encode() + b"\n\n") + DONE + LAST
    hosts = fleet(
        good=good,
        good_stream=STREAM,
        # a header without a value before the one that says what it is
        good_header=STREAM.replace(b"OK\r\n", b"OK\r\nx-empty: \r\n", 1),
        http_500=http(json.dumps(error), "500 Internal Server Error"),
        http_307=http(b"", "307 Temporary Redirect", location="http://127.0.0.1:1/"),
        cut=cut,
        closed=close,
        garbage=http("<html>welcome</html>", content_type="text/html"),
        no_http=b"SSH-2.0-OpenSSH_9.2\r\n",
        no_finish=HEAD + ROLE + token("Hello") + USAGE + DONE + LAST,
        stream_error=in_stream,
    )
    refused = f"refused http://127.0.0.1:{free_port()}"
    with hosts as servers, no_tls() as plain, only_tls() as behind:
        write_hosts(tmp_path, servers, refused, f"plain {plain}", f"behind_tls {behind}")
        said = run(tmp_path, headless("-u", "28", "-t", "2s", "--canaries", "0"))
        asked = {name: chats(server) for name, server in servers.items()}
    found = errors(tmp_path)
    assert {name: set(kinds) for name, kinds in found.items()} == {
        "good": set(),
        "good_stream": set(),
        "good_header": set(),
        "http_500": {"http_500"},
        "http_307": {"http_307"},
        "cut": {"cut"},
        "closed": {"cut"},
        "garbage": {"garbage"},
        "no_http": {"garbage"},
        "no_finish": {"no_finish"},
        "stream_error": {"stream_error"},
        "refused": {"connect"},
        "plain": {"tls"},
        "behind_tls": {"tls"},
    }
    sums = {name: each for (name, _, _), each in all_sums(tmp_path).items()}
    # every request that a host got was counted there, as one or the other
    assert {name: sums[name].ok + sums[name].errors for name in asked} == asked
    assert sums["good"].ok > 0
    assert sums["good"].output_tokens == 2 * sums["good"].ok
    for name in ("good_stream", "good_header"):
        assert sums[name].streamed == sums[name].ok > 0
    # a sentence for the first of each kind, and no flood of them
    assert said.count("http_500: first http_500: engine died") == 1
    assert "http_307: first http_307: a redirect, and none is followed" in said
    assert "no_http: first unreadable answer: no HTTP answer: Expected HTTP/" in said
    assert "behind_tls: first TLS error: wants TLS; write `https://` before the address" in said
    assert "plain: first TLS error: the port does not speak TLS; write `http://`" in said


def test_a_host_that_hangs_costs_its_neighbour_nothing(tmp_path: Path) -> None:
    with fleet(good=good, dead=hang, stuck=hang_in_the_middle, flood=flood, drip=drip) as servers:
        write_hosts(tmp_path, servers)
        words = headless("-u", "10", "-t", "3s", "--request-timeout", "1", *ONLY_WHOLE)
        run(tmp_path, words)
        asked = {name: chats(server) for name, server in servers.items()}
    found = errors(tmp_path)
    assert found["good"] == {}
    assert set(found["dead"]) == set(found["stuck"]) == {"timeout"}
    assert set(found["drip"]) <= {"timeout", "garbage"}
    assert set(found["flood"]) <= {"timeout", "too_large"}
    sums = {name: each for (name, _, _), each in all_sums(tmp_path).items()}
    assert {name: sums[name].ok + sums[name].errors for name in asked} == asked
    # two users, 3 s, a timeout of 1 s: at most 4 requests each; the good one answers in milliseconds
    assert sums["dead"].errors <= 8 < sums["good"].ok


def test_what_is_under_way_at_the_end_is_a_failure_and_a_connection_closed_after_an_answer_is_none(
    tmp_path: Path,
) -> None:
    closed = http(WHOLE, content_type="application/json", connection="close")

    async def closing(writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(THINKING_S)
        writer.write(closed)
        return False

    with fleet(good=good, dead=hang, closing=closing) as servers:
        write_hosts(tmp_path, servers)
        # Locust's own word for how long a stop may wait
        run(tmp_path, headless("-u", "6", "-t", "1s", "--stop-timeout", "1", *ONLY_WHOLE))
        asked = {name: chats(server) for name, server in servers.items()}
    assert errors(tmp_path) == {"good": {}, "dead": {"timeout": 2}, "closing": {}}
    assert asked["dead"] == 2
    sums = stored(tmp_path)
    for name in ("good", "closing"):
        assert sums[name].requests == asked[name] > 0


@dataclass
class Sleepy:
    """Closes each connection that was idle when its next request crosses the end."""

    answered: set[int] = field(default_factory=set)
    crossed: int = 0

    async def answer(self, writer: asyncio.StreamWriter) -> bool:
        if id(writer) in self.answered:
            self.crossed += 1
            return False
        self.answered.add(id(writer))
        self.kept = [*getattr(self, "kept", []), writer]  # so that no id comes twice
        writer.write(GOOD)
        await writer.drain()
        return True


def test_a_request_that_crosses_an_idle_connections_end_is_no_error_and_a_swapped_model_is_learned(
    tmp_path: Path,
) -> None:
    """One host closes idle connections, the other serves `first` for four requests, then only `second`."""
    (tmp_path / "slow.toml").write_text('think_time_s = 0.7\n[[prompts]]\ntext = "Hi"\n')
    sleepy = Sleepy()
    asked: list[str] = []

    async def swapped(writer: asyncio.StreamWriter) -> bool:
        server = servers["swapped"]
        model = json.loads(server.bodies[-1])["model"]
        asked.append(model)
        serving_now = "first" if len(asked) <= 4 else "second"
        server.pages["/v1/models"] = models(serving_now)
        missing = http('{"message": "The model does not exist"}', "404 Not Found")
        writer.write(GOOD if model == serving_now else missing)
        return True

    def models(name: str) -> bytes:
        return http(json.dumps({"data": [{"id": name}]}), content_type="application/json")

    with fleet(sleepy=sleepy.answer, swapped=swapped) as servers:
        servers["swapped"].pages["/v1/models"] = models("first")
        write_hosts(tmp_path, servers)
        # a model is looked up anew every 5 s at most
        run(tmp_path, headless("-u", "4", "-t", "7s", "--profile", "slow.toml", *ONLY_WHOLE))
    assert errors(tmp_path)["sleepy"] == {}
    assert sleepy.crossed >= 2
    assert stored(tmp_path)["sleepy"].requests == len(sleepy.answered)
    assert set(errors(tmp_path)["swapped"]) == {"http_404"}
    # one of the two users may have sent its last request before it learned it
    assert "second" in asked
    assert stored(tmp_path)["swapped"].requests > 4


def test_prompts_of_a_length_are_exact_at_a_host_that_was_down_at_the_start(tmp_path: Path) -> None:
    """It has no `/tokenize`, a chat template of 9 tokens, and a model that the hosts file names."""
    asked: list[str] = []

    async def late(writer: asyncio.StreamWriter) -> bool:
        asked.append(json.loads(servers["late"].bodies[-1])["messages"][0]["content"])
        await asyncio.sleep(THINKING_S)
        answer = json.loads(WHOLE)
        answer["usage"]["prompt_tokens"] = 9 + len(asked[-1].split(" "))
        is_up = len(asked) > 2
        status = "200 OK" if is_up else "503 Service Unavailable"
        writer.write(http(json.dumps(answer), status, content_type="application/json"))
        return True

    with fleet(late=late) as servers:
        (tmp_path / HOSTS).write_text(f"late {servers['late'].url} model=tiny\n")
        lengths = ("--input-len", "40", "--output-len", "5")
        with start(tmp_path, headless("-u", "1", *lengths, *ONLY_WHOLE)) as running:
            until(lambda: len(asked) > 6)
            running.send_signal(signal.SIGINT)
            said, _ = running.communicate(timeout=60)
        tokenized = servers["late"].paths().count("/tokenize")
    assert running.returncode == 0, said
    assert set(errors(tmp_path)["late"]) == {"http_503"}
    # two attempts found it down; then the first word, all words, one of the wanted length, and the load
    assert asked[:3] == ["Read"] * 3
    assert {len(text.split(" ")) for text in asked[4:]} == {31}
    # it is not asked again for a page that it does not have
    assert tokenized == 3


def test_a_database_that_is_locked_for_a_while_loses_nothing(tmp_path: Path) -> None:
    with fleet(good=good) as servers:
        write_hosts(tmp_path, servers)
        words = headless("-u", "2", *ONLY_WHOLE)
        with start(tmp_path, words) as running:
            wait_for(running, BEGUN)
            until(lambda: requests_kept(tmp_path))
            lock = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
            lock.execute("BEGIN IMMEDIATE")
            told = wait_for(running, "is locked by another process")
            lock.execute("ROLLBACK")
            lock.close()
            told += wait_for(running, "nothing of it was lost")
            running.send_signal(signal.SIGINT)
            said, _ = running.communicate(timeout=60)
        asked = chats(servers["good"])
    assert running.returncode == 0, said
    assert stored(tmp_path)["good"].requests == asked
    assert newest(tmp_path).ended_at is not None
    with Store.open_readonly(tmp_path / DATABASE) as store:
        seconds = [second.at_s for _, second in store.loader_seconds(newest(tmp_path).id)]
    assert seconds == list(range(seconds[0], seconds[-1] + 1))
