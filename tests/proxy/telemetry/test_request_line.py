"""Lines of the log: what they hold and never hold, and that `toolkit workload` reads them to the same figures."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.proxy.telemetry.access_log import HitLine, event_line, json_line, request_line
from toolkit.proxy.telemetry.metrics import Served
from toolkit.records import Asked, Seen
from toolkit.workload import read

T = 1_750_000_000.123457
MISS = Served(
    ts=T,
    request_id="7f3a-12",
    team="red",
    path="/v1/chat/completions",
    endpoint="chat/completions",
    model="qwen",
    stream=True,
    status=200,
    cache="miss",
    new=True,
    prompt_tokens=20,
    output_tokens=5,
    cached_tokens=16,
    ttft_ms=101.23456,
    tpot_ms=10.5,
    latency_ms=143.2,
    queue_ms=3.25,
    finish_reason="stop",
    upstream="a",
    stored=True,
    body_bytes=812,
    exact_key="e" * 32,
    request_key="r" * 32,
    prompt_key="p" * 32,
)


def hit(**told: Any) -> Served:
    usual: dict[str, Any] = {
        "ts": T,
        "request_id": "7f3a-13",
        "team": "red",
        "path": "/v1/chat/completions",
        "endpoint": "chat/completions",
        "model": "qwen",
        "stream": False,
        "status": 200,
        "cache": "hit",
        "layer": "memory",
        "new": False,
        "prompt_tokens": 20,
        "output_tokens": 5,
        "latency_ms": 0.0312,
        "finish_reason": "stop",
        "body_bytes": 812,
        "exact_key": "e" * 32,
        "request_key": "r" * 32,
        "prompt_key": "p" * 32,
    }
    return Served(**{**usual, **told})


def workload(*lines: bytes) -> list[Seen]:
    return list(read(iter(lines), "log", client=lambda address: f"<{address}>").seen)


@pytest.mark.parametrize(
    "hostile",
    [
        "a\nb",
        "\x1b[2J",
        "\x7f",
        "\x9b2J",
        "\u2028",
        "\u202e",
        '"}\n{"event":"x"',
        "\r",
        "\x00",
        "ü%s%b",
    ],
)
def test_no_character_breaks_a_line_or_reaches_a_terminal(hostile: str) -> None:
    for told in (
        request_line(hit(model=hostile)),
        HitLine(hit(model=hostile)).fill(T, b"1", 1.0),
        event_line(T, "epoch_bumped", {"model": hostile}),
    ):
        assert told.count(b"\n") == 1
        assert told.endswith(b"}\n")
        text = told[:-1].decode()
        assert text.isprintable()
        assert json.loads(text)["model"] == hostile


def test_half_a_surrogate_pair_and_a_huge_number_are_told_as_far_as_they_can_be() -> None:
    told = json.loads(json_line({"model": "a\ud800b\x9b", "n": 10**30, "x": float("nan")}))
    assert told == {"model": "a?b\x9b", "n": 10**30, "x": None}


@given(
    st.dictionaries(
        st.text(), st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    )
)
def test_whatever_is_told_makes_one_line_of_json(told: dict[str, Any]) -> None:
    made = json_line(told)
    assert made.endswith(b"\n")
    assert made.count(b"\n") == 1
    assert isinstance(json.loads(made), dict)


@pytest.mark.parametrize("ttft_ms", [None, 0.5])
def test_a_hits_line_filled_in_is_the_line_that_it_would_have_been(ttft_ms: float | None) -> None:
    form = HitLine(hit(model="100 %", ttft_ms=ttft_ms, stream=ttft_ms is not None))
    later = hit(
        ts=1_750_000_123.5,
        request_id="7f3a-99",
        model="100 %",
        latency_ms=0.25,
        ttft_ms=None if ttft_ms is None else 0.25,
        stream=ttft_ms is not None,
    )
    filled = form.fill(1_750_000_123.5, b"7f3a-99", 0.25)
    assert list(json.loads(filled).items()) == list(json.loads(request_line(later)).items())


def test_the_workload_reads_a_miss_to_the_same_figures() -> None:
    assert workload(request_line(MISS)) == [
        Seen(
            ts=T,
            server="a",
            client="red",
            method="POST",
            path="/v1/chat/completions",
            status=200,
            ttft_ms=101.235,
            latency_ms=143.2,
            prompt_tokens=20,
            cached_tokens=16,
            output_tokens=5,
            finish_reason="stop",
            cache="miss",
            asked=Asked(
                exact_key="e" * 32,
                request_key="r" * 32,
                prompt_key="p" * 32,
                body_bytes=812,
                model="qwen",
                stream=True,
            ),
        )
    ]


def test_the_workload_leaves_events_out_wherever_they_stand() -> None:
    left = event_line(T, "upstream_left", {"upstream": "a", "reason": "stuck"})
    bumped = event_line(T + 2, "epoch_bumped", {"model": "qwen", "epoch": 2})
    found = workload(left, *[bumped] * 50, request_line(MISS), left, request_line(hit()), bumped)
    assert [seen.cache for seen in found] == ["miss", "hit"]
    assert json.loads(left)["event"] == "upstream_left"


def test_a_first_line_without_keys_hides_nothing_of_those_behind_it() -> None:
    lines = [request_line(Served(ts=T, request_id="1", status=404)), request_line(MISS)]
    source = read(iter(lines), "log", client=str)
    assert source.identities == "bodies"
    assert [one.asked is None for one in source.seen] == [True, False]
