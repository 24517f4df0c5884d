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
from typing import Any
from urllib.parse import urlsplit

import pytest

from toolkit.bench.selftest import StampedServer, stamped_server
from toolkit.bench.stamped import StampedAnswer, TokenPace, read_stamps
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


def ask(server: StampedServer, body: Any, path: str = CHAT) -> http.client.HTTPResponse:
    """The whole answer; its body was read."""
    with connection(server) as line:
        line.request("POST", path, json.dumps(body))
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
    body = ask(server, {"stream": True}).body
    after_ns = time.monotonic_ns()
    stamps = read_stamps(text_of(body))
    moments = [before_ns, stamps.received_ns, *stamps.sent_ns, after_ns]
    assert len(stamps.sent_ns) == 5
    assert moments == sorted(moments)


def test_no_token_leaves_before_it_is_due(server: StampedServer) -> None:
    stamps = read_stamps(text_of(ask(server, {"stream": True, "max_tokens": 20}).body))
    # the first 4 ms after the request, each further one 2 ms after the one before was due
    early = [
        number
        for number, sent in enumerate(stamps.sent_ns)
        if sent < stamps.received_ns + 4_000_000 + number * 2_000_000
    ]
    assert early == []


class Line:
    """Takes what a reply sends."""

    def __init__(self) -> None:
        self.answer: StampedAnswer | None = None
        self.paused = False
        self.waiting_ns: int | None = None
        self.sent = b""

    def send(self, data: bytes) -> None:
        self.sent += data

    def finish(self) -> None:
        self.answer = None


def started_reply(line: Line, tokens: int, interval_ns: int) -> StampedAnswer:
    line.answer = StampedAnswer(
        line, answer_id="a", received_ns=1, tokens=tokens, interval_ns=interval_ns, usage=None
    )
    return line.answer


def test_a_late_token_makes_no_later_one_late() -> None:
    line = Line()
    reply = started_reply(line, 3, interval_ns=10)
    # due at 1000 ns of a clock that stands far beyond: the next are due 10 ns later each, whatever the clock says
    assert [reply.send(1000), reply.send(1010), reply.send(1020)] == [1010, 1020, None]


def test_a_paused_line_keeps_its_token_until_it_is_read() -> None:
    line = Line()
    reply = started_reply(line, 3, interval_ns=10)
    line.paused = True
    assert reply.send(1000) is None
    assert (line.sent, line.waiting_ns) == (b"", 1000)


def test_the_request_was_received_when_its_last_byte_was(server: StampedServer) -> None:
    parts = urlsplit(server.url)
    with closing(socket.create_connection((parts.hostname, parts.port), WAIT_S)) as raw:
        raw.sendall(f"POST {CHAT} HTTP/1.1\r\nContent-Length: 16\r\n\r\n".encode())
        raw.sendall(b'{"stream": true')
        with connection(server) as other:  # it answers: so it has read what came before
            other.request("GET", "/health")
            read(other)
        before_ns = time.monotonic_ns()
        raw.sendall(b"}")
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += raw.recv(65536)
    said = data.split(b'"content":"')[2].split(b"/")[0]  # the first one is the role's, empty
    assert int(said) >= before_ns


def test_a_stream_looks_like_vllms(server: StampedServer) -> None:
    response = ask(server, {"stream": True, "stream_options": {"include_usage": True}})
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


def test_usage_comes_only_when_asked_for(server: StampedServer) -> None:
    said = events(ask(server, {"stream": True}).body)
    assert [event["choices"] for event in said if not event["choices"]] == []
    assert not any("usage" in event for event in said)


def test_the_toolkits_reader_knows_the_tokens_of_every_chunk(server: StampedServer) -> None:
    body = ask(server, {"stream": True, "stream_options": {"include_usage": True}}).body
    reader = Completion(status=200, content_type="text/event-stream")
    reader.feed(body, 1.0)
    answer = reader.end(2.0)
    assert (answer.ok, answer.token_chunks, answer.output_tokens) == (True, 5, 5)
    assert [tokens for _, tokens in answer.gaps] == [1] * 4


def test_the_newer_name_of_max_tokens_counts_too(server: StampedServer) -> None:
    body = ask(server, {"stream": True, "max_completion_tokens": 3}).body
    assert len(read_stamps(text_of(body)).sent_ns) == 3


def test_answers_of_one_connection_come_one_after_the_other(server: StampedServer) -> None:
    parts = urlsplit(server.url)
    request = f"POST {CHAT} HTTP/1.1\r\nContent-Length: {{}}\r\n\r\n{{}}"
    bodies = [json.dumps({"stream": True, "max_tokens": count}) for count in (3, 1)]
    both = "".join(request.format(len(body), body) for body in bodies)
    with closing(socket.create_connection((parts.hostname, parts.port), WAIT_S)) as raw:
        raw.sendall(both.encode())
        data = b""
        while data.count(b"0\r\n\r\n") < 2:
            data += raw.recv(65536)
    first, second = data.split(b"HTTP/1.1 200 OK")[1:]
    assert first.count(b'"finish_reason":null') == 3  # the role's, two of three tokens
    assert second.count(b'"finish_reason":null') == 1
    assert first.endswith(b"0\r\n\r\n")


def test_a_client_that_leaves_ends_its_stream_and_nobody_elses(server: StampedServer) -> None:
    with connection(server) as line:
        line.request("POST", CHAT, json.dumps({"stream": True, "max_tokens": 100_000}))
        assert line.getresponse().readline().startswith(b"data: ")
    stamps = read_stamps(text_of(ask(server, {"stream": True}).body))
    assert len(stamps.sent_ns) == 5


@pytest.mark.slow
def test_a_client_that_does_not_read_holds_up_nobody_and_loses_nothing() -> None:
    tokens = 40_000  # about 11 MB: more than two sockets hold
    with (
        stamped_server(TokenPace(ttft_ms=0.0, interval_ms=0.0, tokens=tokens)) as server,
        connection(server) as line,
    ):
        line.request("POST", CHAT, json.dumps({"stream": True}))
        response = line.getresponse()
        assert len(read_stamps(text_of(ask(server, {"stream": True}).body)).sent_ns) == tokens
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
        ("{}", "/v1/embeddings", 404),
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
    parts = urlsplit(server.url)
    with closing(socket.create_connection((parts.hostname, parts.port), WAIT_S)) as raw:
        raw.sendall(request_text.encode())
        data = b""
        while more := raw.recv(65536):
            data += more
    assert data.split(b" ")[1] == status


def test_the_pages_that_tools_ask_for_first_are_there(server: StampedServer) -> None:
    with connection(server) as line:
        for path in ("/health", "/v1/models"):
            line.request("GET", path)
            assert read(line).status == 200
        line.request("GET", "/v1/models")
        (model,) = json.loads(read(line).body)["data"]
        assert model["id"] == "stamped"


def test_it_listens_on_loopback_only(server: StampedServer) -> None:
    assert urlsplit(server.url).hostname == "127.0.0.1"


def test_it_ends_when_its_parent_is_killed() -> None:
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
        with closing(socket.create_connection((parts.hostname, parts.port), WAIT_S)) as raw:
            os.kill(parent.pid, signal.SIGKILL)
            assert raw.recv(1) == b""  # the kernel closes a dead server's connections


def test_a_wrong_pace_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "toolkit.bench.stamped", "--interval-ms=-1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "not negative" in done.stderr


@pytest.mark.parametrize("text", ["", "hello world", "12", "1/2 x"])
def test_a_text_without_stamps_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid literal"):
        read_stamps(text)
