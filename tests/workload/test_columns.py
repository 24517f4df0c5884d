"""Requests laid out as columns: in the order of their arrival, equal keys with equal numbers, nothing dropped unsaid."""

import numpy as np

from toolkit.records import Asked, Seen
from toolkit.workload import columns


def asked(exact: str, request: str | None, prompt: str | None, **more) -> Asked:
    return Asked(exact_key=exact, request_key=request, prompt_key=prompt, body_bytes=10, **more)


FIRST = asked("a" * 32, "1" * 32, "p" * 32, max_tokens=256)
SPACED = asked("b" * 32, "1" * 32, "p" * 32)
RAW = asked("c" * 32, None, "q" * 32, prompt_tokens=7)


def test_requests_stand_in_the_order_of_their_arrival_whatever_the_order_told() -> None:
    laid = columns([Seen(ts=3.0, asked=RAW), Seen(ts=1.0, asked=SPACED), Seen(ts=2.0, asked=FIRST)])
    assert laid.ts.tolist() == [1.0, 2.0, 3.0]
    assert [laid.asked[code].exact_key[0] for code in laid.exact.tolist()] == ["b", "a", "c"]


def test_equal_keys_have_equal_numbers_and_a_body_without_a_canonical_form_its_own() -> None:
    laid = columns(
        Seen(ts=float(at), asked=one) for at, one in enumerate([FIRST, SPACED, RAW, RAW])
    )
    assert laid.exact.tolist() == [0, 1, 2, 2]
    assert laid.request.tolist() == [0, 0, 1, 1]
    assert laid.prompt.tolist() == [0, 0, 1, 1]


def test_damaged_requests_and_those_that_ask_no_model_are_counted_not_laid_out() -> None:
    laid = columns(
        [
            Seen(ts=1.0, damaged=True, asked=FIRST),
            Seen(ts=2.0, method="GET", path="/metrics"),
            Seen(ts=3.0, asked=asked("d" * 32, None, None, problem="not JSON")),
            Seen(ts=4.0, asked=FIRST),
        ]
    )
    assert (len(laid), laid.damaged, laid.other) == (1, 1, 2)


def test_what_a_server_refused_is_counted_and_a_client_that_left_did_ask() -> None:
    asked = Asked(exact_key="x", prompt_key="p", body_bytes=1)
    found = columns(
        Seen(ts=float(status), asked=asked, status=status) for status in (200, 400, 499, 503, 503)
    )
    assert found.status.tolist() == [200, 499]
    assert found.refused == {400: 1, 503: 2}


def test_usage_goes_before_what_the_request_told_and_unknown_is_nan_or_minus_one() -> None:
    laid = columns(
        [
            Seen(
                ts=1.0,
                asked=RAW,
                prompt_tokens=9,
                client="x",
                latency_ms=1500.0,
                finish_reason="length",
                cache="hit",
            ),
            Seen(ts=2.0, asked=RAW, client="y", finish_reason="stop"),
            Seen(ts=3.0, asked=FIRST, client="x"),
        ]
    )
    assert np.array_equal(laid.prompt_tokens, [9.0, 7.0, float("nan")], equal_nan=True)
    assert laid.client.tolist() == [0, 1, 0]
    assert laid.clients == ("x", "y")
    assert np.array_equal(laid.latency_s, [1.5, float("nan"), float("nan")], equal_nan=True)
    assert laid.finish_length.tolist() == [1, 0, -1]
    assert laid.cache.tolist() == [1, -1, -1]
    assert np.array_equal(
        laid.per_request("max_tokens"), [float("nan"), float("nan"), 256.0], equal_nan=True
    )


def test_nothing_seen_is_no_rows_and_no_error() -> None:
    laid = columns([])
    assert len(laid) == 0
    assert laid.per_request("max_tokens").tolist() == []
