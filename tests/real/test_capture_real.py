"""A capture beside a real vLLM: what the packets say of each answer is what the client was told and the server counted."""

import hashlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from support.capture_verb import capturing
from support.locusts import counted
from support.net_namespaces import needs_capture

REQUESTS = 24
AT_ONCE = 6


class Told(NamedTuple):
    """What a client knows of one of its requests."""

    ttft_ms: float | None
    took_ms: float
    usage: dict[str, Any]
    finish_reason: str


def body_of(number: int, model: str) -> dict[str, Any]:
    """Chat and text, streamed and not; every third prompt is the same."""
    text = f"Say {number if number % 3 else 'it'} again, please"
    asked: dict[str, Any] = {"model": model, "max_tokens": 3 + number % 5, "temperature": 0.0}
    asked |= {"messages": [{"role": "user", "content": text}]} if number % 4 else {"prompt": text}
    if number % 2:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return asked


def send(server: Any, body: dict[str, Any]) -> tuple[str, Told]:
    """Send one request; the hash of its bytes, and what came of it."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    sent = json.dumps(body).encode()
    first_at = None
    said: list[dict[str, Any]] = []
    with server.client() as client:
        began = time.perf_counter()
        with client.stream(
            "POST", path, content=sent, headers={"content-type": "application/json"}
        ) as answer:
            assert answer.status_code == 200
            for one in _objects(answer.iter_lines()):
                if first_at is None and _has_token(one):
                    first_at = time.perf_counter()
                said.append(one)
        took = time.perf_counter() - began
    reasons = [c["finish_reason"] for one in said for c in one["choices"] if c["finish_reason"]]
    ttft = None if first_at is None or not body.get("stream") else 1e3 * (first_at - began)
    key = hashlib.blake2b(sent, digest_size=16).hexdigest()
    return key, Told(ttft, 1e3 * took, said[-1]["usage"], reasons[-1])


def _objects(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON of an answer, whole or event by event."""
    for line in lines:
        text = line.removeprefix("data: ")
        if text.startswith("{"):
            yield json.loads(text)


def _has_token(one: dict[str, Any]) -> bool:
    return any(c.get("delta", {}).get("content") or c.get("text") for c in one["choices"])


@needs_capture
def test_every_answer_is_followed_to_its_usage(roomy_server: Any, tmp_path: Path) -> None:
    port = roomy_server.url.rpartition(":")[2]
    bodies = [body_of(number, roomy_server.model) for number in range(REQUESTS)]
    before = counted(roomy_server.url)
    words = ("--full", "--iface", "lo", "--port", port)
    with capturing(tmp_path, *words) as capture:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            told = list(pool.map(lambda body: send(roomy_server, body), bodies))
        seen, summary = capture.stop()
    truth = counted(roomy_server.url).since(before)

    asked = [one for one in seen if one["method"] == "POST"]
    assert sorted(one["exact_key"] for one in asked) == sorted(key for key, _ in told)
    assert [summary[name] for name in ("damaged", "gaps", "kernel_drops", "app_drops")] == [0] * 4
    # 24 requests, of which 8 (0, 3, 6, ...) say `it`, as chat or as text: as many prompts as the rest and these two
    assert summary["unique"] == 16 + 2
    # equal bodies were told of in any order
    by_key: dict[str, list[Told]] = {}
    for key, one in told:
        by_key.setdefault(key, []).append(one)
    for one in asked:
        candidates = by_key[one["exact_key"]]
        usage, reason = candidates[0].usage, candidates[0].finish_reason
        assert one["status"] == 200
        assert one["prompt_tokens"] == usage["prompt_tokens"]
        assert one["output_tokens"] == usage["completion_tokens"]
        assert one["finish_reason"] == reason
        # the packets are nearer to the server than the client is: never later than the slowest of those that sent it
        assert 0 < one["latency_ms"] <= max(each.took_ms for each in candidates)
        if one["stream"]:
            assert 0 < one["ttft_ms"] <= one["latency_ms"]
            assert one["ttft_ms"] <= max(each.ttft_ms or 0.0 for each in candidates)
        else:
            assert one["ttft_ms"] is None
    assert len(asked) == truth.requests
    assert sum(one["prompt_tokens"] for one in asked) == truth.prompt_tokens
    assert sum(one["output_tokens"] for one in asked) == truth.output_tokens
    # how many meet is the server's pace; never more than the others that were sent at once
    assert 0 < max(one["in_flight"] for one in asked) < AT_ONCE
