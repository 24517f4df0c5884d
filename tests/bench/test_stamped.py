"""The stamped server: what it sends is what an engine sends, and its stamps are the moments they name."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from toolkit.bench.selftest import StampedServer, stamped_server
from toolkit.bench.stamped import TokenPace, read_stamps
from toolkit.protocol.completion import Completion

PACE = TokenPace(ttft_ms=4.0, interval_ms=2.0, tokens=5)
CHAT = "/v1/chat/completions"
WAIT_S = 60


@pytest.fixture(scope="module")
def server() -> Iterator[StampedServer]:
    with stamped_server(PACE) as server:
        yield server


def connection(server: StampedServer) -> "closing[http.client.HTTPConnection]":
    parts = urlsplit(server.url)
    return closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=WAIT_S))


def raw(server: StampedServer) -> socket.socket:
    parts = urlsplit(server.url)
    return socket.create_connection((parts.hostname, parts.port), WAIT_S)


def ask(server: StampedServer, **body: Any) -> http.client.HTTPResponse:
    """The whole answer; its body was read."""
    with connection(server) as line:
        line.request("POST", CHAT, json.dumps({"stream": True} | body))
        return read(line)


def read(line: http.client.HTTPConnection) -> http.client.HTTPResponse:
    response = line.getresponse()
    response.body = response.read()
    return response


def events(body: bytes) -> list[dict[str, Any]]:
    *said, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert all(event.startswith(b"data: ") for event in said)
    return [json.loads(event[6:]) for event in said]


def text_of(body: bytes) -> str:
    choices = [event["choices"][0] for event in events(body) if event["choices"]]
    return "".join(choice["delta"]["content"] for choice in choices)


def test_every_token_carries_its_moment_on_the_clock_that_all_processes_share(
    server: StampedServer,
) -> None:
    before_ns = time.monotonic_ns()
    stamps = read_stamps(text_of(ask(server, max_tokens=20).body))
    moments = [before_ns, stamps.received_ns, *stamps.sent_ns, time.monotonic_ns()]
    assert len(stamps.sent_ns) == 20
    assert moments == sorted(moments)
    # none before it is due: the first 4 ms after the request, each further one 2 ms after the one before was
    first_ns = stamps.received_ns + 4_000_000
    assert all(sent >= first_ns + n * 2_000_000 for n, sent in enumerate(stamps.sent_ns))


def test_a_late_token_makes_no_later_one_late() -> None:
    others = set(psutil.Process().children())
    with stamped_server(TokenPace(ttft_ms=0.0, interval_ms=10.0, tokens=60)) as server:
        (process,) = set(psutil.Process().children()) - others
        with connection(server) as line:
            line.request("POST", CHAT, '{"stream": true}')
            response = line.getresponse()
            begun = response.readline()
            process.suspend()
            time.sleep(0.2)
            process.resume()
            stamps = read_stamps(text_of(begun + response.read()))
    gaps_ms = [(after - before) / 1e6 for before, after in pairwise(stamps.sent_ns)]
    # what was due in the 200 ms leaves at once; then each has its own moment again
    assert sum(gap < 5 for gap in gaps_ms) >= 15


def test_the_request_was_received_when_its_last_byte_was(server: StampedServer) -> None:
    with closing(raw(server)) as line:
        line.sendall(f"POST {CHAT} HTTP/1.1\r\nContent-Length: 16\r\n\r\n".encode())
        line.sendall(b'{"stream": true')
        with connection(server) as other:  # it answers: so it has read what came before
            other.request("GET", "/health")
            read(other)
        before_ns = time.monotonic_ns()
        line.sendall(b"}")
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += line.recv(65536)
    said = data.split(b'"content":"')[2].split(b"/")[0]  # the first one is the role's, empty
    assert int(said) >= before_ns


def test_a_stream_looks_like_vllms(server: StampedServer) -> None:
    response = ask(server, stream_options={"include_usage": True})
    assert response.status == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    role, *tokens, usage = events(response.body)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [each["choices"][0]["finish_reason"] for each in tokens] == [None] * 4 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert usage["usage"]["total_tokens"] == 5 + usage["usage"]["prompt_tokens"]
    assert len({each["id"] for each in (role, *tokens, usage)}) == 1
    sizes = [len(event) for event in response.body.split(b"\n\n")[2:5]]
    assert all(230 <= size <= 330 for size in sizes), sizes
    # the toolkit's own reader knows the tokens of every chunk
    reader = Completion(status=200, content_type="text/event-stream")
    reader.feed(response.body, 1.0)
    answer = reader.end(2.0)
    assert (answer.ok, answer.token_chunks, answer.output_tokens) == (True, 5, 5)
    assert [count for _, count in answer.gaps] == [1] * 4
    # usage comes only where it was asked for, and the newer name of `max_tokens` counts, too
    only = events(ask(server, max_completion_tokens=1).body)
    assert [each["choices"][0]["finish_reason"] for each in only] == [None, "length"]
    assert not any("usage" in event for event in only)


def test_a_client_that_leaves_ends_its_stream_and_nobody_elses(server: StampedServer) -> None:
    with connection(server) as line:
        line.request("POST", CHAT, json.dumps({"stream": True, "max_tokens": 100_000}))
        assert line.getresponse().readline().startswith(b"data: ")
    assert len(read_stamps(text_of(ask(server).body)).sent_ns) == 5


@pytest.mark.slow
def test_a_client_that_does_not_read_holds_up_nobody_and_loses_nothing() -> None:
    tokens = 40_000  # about 11 MB: more than two sockets hold
    with (
        stamped_server(TokenPace(ttft_ms=0.0, interval_ms=0.0, tokens=tokens)) as server,
        connection(server) as line,
    ):
        line.request("POST", CHAT, json.dumps({"stream": True}))
        response = line.getresponse()
        assert len(read_stamps(text_of(ask(server).body)).sent_ns) == tokens
        sent = read_stamps(text_of(response.read())).sent_ns
    assert len(sent) == tokens
    assert list(sent) == sorted(sent)


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        ("no json", CHAT, 400),
        ("[]", CHAT, 400),
        ('{"stream": true, "max_tokens": -1}', CHAT, 400),
        ('{"stream": true, "max_tokens": "many"}', CHAT, 400),
        ('{"max_tokens": 1}', CHAT, 400),
        ("{}", "/v1/completions", 404),
    ],
)
def test_what_it_cannot_answer_is_refused_and_the_connection_lives(
    server: StampedServer, body: str, path: str, status: int
) -> None:
    with connection(server) as line:
        line.request("POST", path, body)
        refusal = read(line)
        assert refusal.status == status
        assert json.loads(refusal.body)["error"]["message"]
        line.request("GET", "/health")
        assert read(line).status == 200
        line.request("GET", "/v1/models")
        (model,) = json.loads(read(line).body)["data"]
        assert model["id"] == "stamped"


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (f"POST {CHAT} HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n" + "x" * 2**24, b"413"),
        ("nonsense\r\n\r\n", b"400"),
        ("GET / HTTP/1.1\r\nX: " + "x" * 2**24, b"413"),
    ],
    ids=["a long body", "nonsense", "a long head"],
)
def test_a_request_that_is_none_or_has_no_end_ends_the_connection(
    server: StampedServer, request_text: str, status: bytes
) -> None:
    with closing(raw(server)) as line:
        line.sendall(request_text.encode())
        data = b""
        while more := line.recv(65536):
            data += more
    assert data.split(b" ")[1] == status


def test_it_listens_on_loopback_and_ends_when_its_parent_is_killed() -> None:
    script = (
        "import time\n"
        "from toolkit.bench.selftest import stamped_server\n"
        "from toolkit.bench.stamped import TokenPace\n"
        "with stamped_server(TokenPace()) as server:\n"
        "    print(server.url, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        parts = urlsplit(parent.stdout.readline().strip())
        assert parts.hostname == "127.0.0.1"
        with closing(socket.create_connection((parts.hostname, parts.port), WAIT_S)) as line:
            os.kill(parent.pid, signal.SIGKILL)
            assert line.recv(1) == b""  # the kernel closes a dead server's connections


def test_a_wrong_pace_is_refused() -> None:
    words = [sys.executable, "-m", "toolkit.bench.stamped", "--interval-ms=-1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "not negative" in done.stderr


@pytest.mark.parametrize("text", ["", "hello world", "12", "1/2 x"])
def test_a_text_without_stamps_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid literal"):
        read_stamps(text)
