"""Requests from packets as the records that everything else counts: read once, bounded, private."""

import json
from hashlib import blake2b
from typing import Any

import pytest

from toolkit.capture import bodies as module
from toolkit.capture.bodies import ENTRY_BYTES, Bodies
from toolkit.capture.records import HttpAnswer, HttpRequest
from toolkit.protocol.request import asked
from toolkit.records import Asked

LOCAL = bytes([10, 0, 0, 4])
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "secret"}]}).encode()


def request(body: bytes | None = CHAT, **fields: Any) -> HttpRequest:
    told: dict[str, Any] = {
        "ts": 100.0,
        "ts_last": 100.25,
        "client": bytes([10, 0, 0, 9]),
        "client_port": 4711,
        "server": LOCAL,
        "server_port": 8000,
        "method": "POST",
        "path": "/v1/chat/completions",
        "body": body,
        "body_bytes": len(body or b""),
    }
    return HttpRequest(**{**told, **fields})


def name(address: bytes) -> str:
    return "c" + address.hex()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies that were read, in order."""
    bodies: list[bytes] = []

    def counted(body: bytes, **how: Any) -> Asked:
        bodies.append(body)
        return asked(body, **how)

    monkeypatch.setattr(module, "asked", counted)
    return bodies


def test_a_request_keeps_who_when_where_and_what() -> None:
    seen = Bodies(client=name).seen(request())
    assert (seen.ts, seen.took_ms) == (100.0, 250.0)
    assert (seen.client, seen.server) == ("c0a000009", "10.0.0.4:8000")
    assert (seen.method, seen.path) == ("POST", "/v1/chat/completions")
    assert seen.asked == asked(CHAT, path="/v1/chat/completions")
    assert (seen.damaged, seen.problem, seen.status, seen.in_flight) == (False, None, None, None)
    # no text is kept unless the user said so
    assert "secret" not in repr(seen)
    kept = Bodies(client=name, store_prompts=True).seen(request())
    assert kept.asked is not None
    assert kept.asked.prompt_text == "user: secret"


def test_equal_bodies_are_read_once_and_share_what_they_ask(read: list[bytes]) -> None:
    bodies = Bodies(client=name)
    another = bytes(bytearray(CHAT))
    assert another is not CHAT
    first, again = bodies.seen(request()), bodies.seen(request(another))
    assert first.asked is again.asked
    assert read == [CHAT]
    bodies.seen(request(CHAT + b" "))
    assert read == [CHAT, CHAT + b" "]
    # to another path it asks something else
    other = bodies.seen(request(path="/tokenize"))
    assert other.asked is not None
    assert (other.asked.prompt_key, len(read)) == (None, 3)


def body(number: int, size: int = 1000) -> bytes:
    return json.dumps({"prompt": f"{number:04}" + "x" * size}).encode()


def test_the_bodies_that_came_last_are_remembered(read: list[bytes]) -> None:
    cost = ENTRY_BYTES + 4 * len("/v1/chat/completions") + len(body(0)) + 8 * (1004 // 64)
    bodies = Bodies(client=name, remember_bytes=10 * cost + 5)
    for number in range(10):
        bodies.seen(request(body(number)))
    bodies.seen(request(body(0)))  # still there, and now the last that came
    bodies.seen(request(body(10)))  # takes the place of 1
    assert len(read) == 11
    bodies.seen(request(body(0)))
    bodies.seen(request(body(2)))
    assert len(read) == 11
    bodies.seen(request(body(1)))
    assert len(read) == 12


def test_a_body_that_would_fill_the_memory_is_read_but_not_remembered(read: list[bytes]) -> None:
    bodies = Bodies(client=name, remember_bytes=100_000)
    bodies.seen(request())
    for _ in range(2):
        seen = bodies.seen(request(body(1, 50_000)))
        assert seen.asked is not None
        assert seen.asked.prompt_chars == 50_004
    bodies.seen(request())
    assert len(read) == 3


def test_a_damaged_request_says_why_and_asks_nothing() -> None:
    seen = Bodies(client=name).seen(request(None, damaged=True, problem="1,448 bytes lost"))
    assert (seen.damaged, seen.problem, seen.asked) == (True, "1,448 bytes lost", None)
    # what is left of a body is not what the client asked
    assert Bodies(client=name).seen(request(damaged=True)).asked is None


def test_a_body_beyond_the_limit_is_known_by_its_hash() -> None:
    digest = blake2b(CHAT, digest_size=16).digest()
    seen = Bodies(client=name).seen(
        request(None, body_hash=digest, body_bytes=20_000_000, problem="longer than 16 MiB")
    )
    assert seen.asked == Asked(
        exact_key=asked(CHAT).exact_key, problem="longer than 16 MiB", body_bytes=20_000_000
    )


# --- answers -----------------------------------------------------------------------------------


def test_times_count_from_the_requests_last_byte() -> None:
    answer = HttpAnswer(
        status=200,
        first_at=100.375,
        token_at=100.5,
        last_at=102.25,
        complete=True,
        prompt_tokens=21,
        cached_tokens=16,
        output_tokens=5,
        finish_reason="stop",
    )
    bodies = Bodies(client=name)
    seen = bodies.seen(request(answer=answer, in_flight=3))
    assert (seen.status, seen.ttft_ms, seen.latency_ms) == (200, 250.0, 2000.0)
    assert (seen.prompt_tokens, seen.cached_tokens, seen.output_tokens) == (21, 16, 5)
    assert (seen.finish_reason, seen.in_flight, seen.cache) == ("stop", 3, None)
    # one cut short has no latency, and one that did not wait for the request no times
    cut = HttpAnswer(status=200, first_at=101.0, token_at=101.0, last_at=102.0, damaged=True)
    early = HttpAnswer(status=413, first_at=100.1, last_at=100.2, complete=True)
    for answer, ttft_ms in ((cut, 750.0), (early, None)):
        seen = bodies.seen(request(answer=answer))
        assert (seen.status, seen.ttft_ms, seen.latency_ms) == (answer.status, ttft_ms, None)
        assert not seen.damaged


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (None, None),
        ("proxy; hit; ttl=60", "hit"),
        ("HIT", "hit"),
        ("MISS", "miss"),
        ("proxy; fwd=miss; stored", "miss"),
        ("proxy; fwd=miss; collapsed", "coalesced"),
        ("proxy; fwd=uri-miss; collapsed=?1", "coalesced"),
        ("proxy; fwd=miss; collapsed=?0", "miss"),
        ("proxy; hit=?0", "miss"),
    ],
)
def test_what_a_cache_says_is_how_it_served(header: str | None, told: str | None) -> None:
    answer = HttpAnswer(status=200, cache_status=header)
    assert Bodies(client=name).seen(request(answer=answer)).cache == told
