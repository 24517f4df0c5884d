"""HTTP as odd clients speak it, over bare sockets."""

import logging
import socket
from urllib.parse import urlsplit

import pytest
from support.simulated import Sim, Start

WAIT_S = 60
QUESTION = b'{"prompt": "hi", "max_tokens": 3, "ignore_eos": true}'
STREAMED = b'{"prompt": "hi", "max_tokens": 3, "ignore_eos": true, "stream": true}'


def post(body: bytes, version: str = "1.1", *headers: str) -> bytes:
    lines = (
        f"POST /v1/completions HTTP/{version}",
        "host: sim",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    )
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body


def get(target: str, method: str = "GET", version: str = "1.1") -> bytes:
    return f"{method} {target} HTTP/{version}\r\nhost: sim\r\n\r\n".encode()


def last(request: bytes) -> bytes:
    """The request, and after it one that asks to close: then everything can be read."""
    return request + b"GET /health HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n"


def exchange(url: str, data: bytes) -> bytes:
    """Send it and read until the server closes."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=WAIT_S) as connection:
        connection.sendall(data)
        received = b""
        while data := connection.recv(65536):
            received += data
        return received


def test_pipelined_requests_are_answered_in_their_order(sim: Sim) -> None:
    received = exchange(sim.url, last(post(STREAMED) + get("/version") + post(QUESTION)))
    marks = (b"[DONE]", b'"version"', b'"completion_tokens":3', b"Connection: close")
    places = [received.index(mark) for mark in marks]
    assert received.count(b"HTTP/1.1 200 OK\r\n") == 4
    assert places == sorted(places)


def test_a_client_of_http_1_0_gets_an_unchunked_stream_that_ends_with_the_connection(
    sim: Sim,
) -> None:
    head, _, body = exchange(sim.url, post(STREAMED, "1.0")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


def test_a_head_request_is_refused_without_a_body(sim: Sim) -> None:
    received = exchange(sim.url, last(get("/health", "HEAD")))
    refusal, _, rest = received.partition(b"\r\n\r\n")
    assert refusal.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert b"\r\nallow: GET\r\n" in refusal
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")  # the answer to the one that follows


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/%76ersion", 200),  # %76 is `v`
        ("/version?a=b", 200),
        ("/version/", 404),
        ("/v1/../version", 404),
        ("/%ff", 404),
    ],
)
def test_a_path_is_unquoted_once_and_otherwise_taken_as_it_is(
    sim: Sim, target: str, status: int
) -> None:
    assert exchange(sim.url, last(get(target))).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_guarded_path_is_guarded_however_it_is_spelled(start_sim: Start) -> None:
    sim = start_sim(api_key="secret")
    for target in ("/v1/models", "/%761/models", "/v1%2fmodels"):
        assert exchange(sim.url, last(get(target))).startswith(b"HTTP/1.1 401 ")


def test_leave_to_send_is_asked_for_in_any_case_of_letters(sim: Sim) -> None:
    received = exchange(sim.url, last(post(QUESTION, "1.1", "Expect: 100-Continue")))
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00 a TLS greeting\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: sim\r\nlong: " + b"a" * 2**17 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["tls", "no host", "long header", "http/2"],
)
def test_what_is_no_http_is_refused_without_a_traceback(
    sim: Sim, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    with caplog.at_level(logging.WARNING):
        assert b" 400 Bad Request\r\n" in exchange(sim.url, data)
    assert caplog.records == []
    assert sim.client.get("/health").status_code == 200
