"""Summary: what one host's requests add up to, each figure worked out by hand."""

from dataclasses import fields, replace
from typing import Any

import pytest
from support.shots import AT, answered, step

from toolkit.bench.summary import (
    GoodputLimits,
    HostSummary,
    best_level,
    is_good,
    knee,
    read_limits,
    summary,
)
from toolkit.errors import ToolkitError
from toolkit.records import Ledger, RequestRecord, Verdict
from toolkit.stats import Sketch

FIXED_KEYS = (
    "name url requests ok errors error_kinds rps output_tokens_per_s ttft_p50_ms ttft_p95_ms"
    " tpot_p50_ms itl_p95_ms e2e_p50_ms e2e_p95_ms e2e_p99_ms rtt_ms client_ok goodput verdicts"
).split()


def shot(
    slot: int, at_s: float = 0.0, took_ms: float | None = 1000.0, **more: Any
) -> RequestRecord:
    """A streamed answer of 100 tokens in a closed loop, planned `at_s` after the start."""
    e2e_ms = took_ms or 1000.0
    usual = {
        "planned_at": AT + at_s,
        "send_lag_ms": 0.0,
        "ttft_ms": e2e_ms / 10,
        "e2e_ms": e2e_ms,
        "tpot_ms": e2e_ms / 100,
        "prompt_tokens": 20,
        "output_tokens": 100,
    }
    return answered(took_ms, slot, **{**usual, **more})


def failed(slot: int, kind: str, text: str | None = None, **more: Any) -> RequestRecord:
    return shot(slot, ok=False, error_kind=kind, error=text, ttft_ms=1.0, e2e_ms=1.0, **more)


def of(*records: RequestRecord, **more: Any) -> HostSummary:
    return summary(records, **({"name": "alice", "url": "http://h:1", "run": "r"} | more))


def about(value: float) -> Any:
    return pytest.approx(value, rel=0.0101)  # the sketch's alpha, and a rounding


def itl(*gaps_ms: float) -> bytes:
    return Sketch.of(gaps_ms).to_bytes()


UNSENT = {"sent_at": None, "send_lag_ms": None, "took_ms": None}
TEN = [shot(slot, took_ms=100.0 * (slot + 1)) for slot in range(10)]
HUNDRED = [shot(n, took_ms=1000.0 * (n + 1), send_lag_ms=n + 1.0) for n in range(100)]
LATE = [failed(slot, "cut", send_lag_ms=80.0) for slot in range(100)]
SILENT = shot(1, output_tokens=None, prompt_tokens=None)
REFUSED = [
    failed(0, "http_500", "out of memory"),
    failed(1, "http_500", "out of memory"),
    failed(2, "connect", "refused from port 1"),
    failed(3, "connect", "refused from port 2"),
    failed(4, "connect", "refused from port 2"),
]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        # 0.0 .. 1.0, 0.5 .. 2.5, 1.0 .. 4.0: a window of 4 s, 3 answers, 300 tokens
        ([shot(0), shot(1, 0.5, 2000.0), shot(2, 1.0, 3000.0)],
         {"window_s": 4.0, "rps": 0.75, "output_tokens_per_s": 75.0, "output_tokens": 300, "prompt_tokens": 60}),
        ([shot(0, 0.0, 5000.0), shot(1, 1.0, 1000.0)], {"window_s": 5.0}),  # the last end is not the last slot's
        # a closed loop's request ends its time after it was sent, an open loop's after it was planned
        ([shot(0, sent_at=AT + 0.5)], {"window_s": 1.5}),
        ([shot(0, concurrency=None, sent_at=AT + 0.5)], {"window_s": 1.0}),
        # one answer in 1 s, one timeout that held the connection for 4 s
        ([shot(0), failed(1, "timeout", took_ms=4000.0)], {"window_s": 4.0, "rps": 0.25}),
        # planned at 0 and never sent; the only answer came from 1 to 2
        ([failed(0, "not_sent", concurrency=None, **UNSENT), shot(1, 1.0, concurrency=None)],
         {"window_s": 2.0, "missed": 1, "errors": 1, "error_kinds": {"not_sent": 1}, "planned": 2}),
        ([failed(0, "not_sent", **UNSENT)], {"window_s": None, "rps": None}),
        ([failed(0, "cut"), shot(1), failed(2, "timeout"), failed(3, "timeout"), failed(4, "connect")],
         {"requests": 5, "ok": 1, "errors": 4, "error_kinds": {"timeout": 2, "connect": 1, "cut": 1}, "error": None}),
        # failures are in no latency
        ([shot(0), *(failed(slot, "cut", tpot_ms=1.0, itl=itl(1.0)) for slot in range(1, 9))],
         {"e2e_p50_ms": about(1000.0), "unique_e2e_p50_ms": about(1000.0), "ttft_p50_ms": about(100.0),
          "tpot_p50_ms": about(10.0), "itl_p95_ms": None, "output_tokens": 100}),
        # 10 answers of 100, 200, ... 1000 ms: rank 5 is 500, rank ceil(9.5) = 10 is 1000
        (TEN, {"e2e_p50_ms": about(500.0), "e2e_p95_ms": about(1000.0), "ttft_p50_ms": about(50.0),
               "ttft_p95_ms": about(100.0), "tpot_p50_ms": about(5.0)}),
        # a p99 needs a hundred values: of 1 .. 100 s rank 99 is 99 s
        (HUNDRED, {"e2e_p99_ms": about(99_000.0), "send_lag_p99_ms": about(99.0)}),
        ([*HUNDRED[1:], failed(100, "cut")], {"e2e_p99_ms": None, "send_lag_p99_ms": about(99.0)}),
        # the send lag counts all that left, ok or not; one early by the clock's grain is not late
        (LATE, {"send_lag_p99_ms": about(80.0)}),
        ([replace(one, sent_at=None) for one in LATE], {"send_lag_p99_ms": None}),
        ([replace(one, send_lag_ms=-0.001) for one in LATE], {"send_lag_p99_ms": about(0.01)}),
        # gaps of all streams one by one: 18 of 10 ms and 2 of 70 ms: rank 19 of 20; a mean of p95s would say 40
        ([shot(0, itl=itl(*[10.0] * 18)), shot(1, itl=itl(70.0, 70.0)), shot(2, itl=None)],
         {"itl_p95_ms": about(70.0)}),
        ([shot(0, stream=False, ttft_ms=None, tpot_ms=None)],
         {"e2e_p50_ms": about(1000.0), "ttft_p50_ms": None, "tpot_p50_ms": None, "itl_p95_ms": None}),
        ([shot(0), shot(1, kind="twin", pair=0, took_ms=20.0), shot(2, kind="repeat")],
         {"requests": 3, "unique_e2e_p50_ms": about(1000.0), "twin_e2e_p50_ms": about(20.0)}),
        ([shot(0, ttft_visible_ms=700.0)], {"ttft_visible_p50_ms": about(700.0)}),
        # tokens that no answer tells are unknown, and a part is marked
        ([SILENT], {"output_tokens": None, "output_tokens_per_s": None, "prompt_tokens": None}),
        ([shot(0), SILENT], {"output_tokens": 100, "output_tokens_estimated": True}),
        ([shot(0, output_tokens_estimated=True)], {"output_tokens_estimated": True}),
        ([shot(0)], {"output_tokens_estimated": False, "goodput": None, "good_share": None}),
        # where nothing was answered: one kind with three texts outweighs two equal texts of another
        (REFUSED, {"error": "refused from port 2 (3 of 5 requests)", "ok": 0, "rps": 0.0, "e2e_p50_ms": None}),
        ([failed(0, "timeout")], {"error": "timeout (1 of 1 requests)"}),
        ([shot(0, ok=False, sent_at=None, took_ms=None)], {"error": "not_sent (1 of 1 requests)"}),
        ([], {"error": "no request was sent", "requests": 0, "error_kinds": {}, "window_s": None, "rps": None,
              "output_tokens": 0, "output_tokens_per_s": None}),
    ],
)  # fmt: skip
def test_a_figure_is_worked_out_from_its_requests(
    records: list[RequestRecord], expected: dict[str, Any]
) -> None:
    found = of(*records)
    assert {key: getattr(found, key) for key in expected} == expected
    assert found.requests == found.ok + found.errors
    assert list(found.error_kinds.values()) == sorted(found.error_kinds.values(), reverse=True)


def test_warmup_counts_nowhere() -> None:
    cold = shot(0, -60.0, 50_000.0, kind="warmup", send_lag_ms=500.0)
    assert of(cold, *TEN) == of(*TEN)
    assert of(cold).requests == 0


def test_what_the_caller_knows_is_passed_on_and_the_fixed_keys_come_first() -> None:
    verdict = Verdict(code="clean", confidence="high", evidence="nothing found")
    ledger = Ledger(run="r", name="alice", url="http://h:1", rtt_ms=0.4)
    known = {"client_ok": False, "verdicts": (verdict,), "concurrency": 8, "rate": 2.5}
    found = of(shot(0), ledger=ledger, **known)
    assert (found.name, found.url, found.run, found.rtt_ms) == ("alice", "http://h:1", "r", 0.4)
    assert {key: getattr(found, key) for key in known} == known
    assert (of(shot(0)).rtt_ms, of(shot(0)).client_ok) == (None, None)
    assert [field.name for field in fields(HostSummary)][: len(FIXED_KEYS)] == FIXED_KEYS


# what a good request may take

LIMITS = GoodputLimits(ttft_ms=500.0, tpot_ms=50.0, e2e_ms=10_000.0)


def test_goodput_is_good_requests_a_second_of_the_window() -> None:
    # 4 answers in 4 s, of 1, 2, 3, 4 s; up to 3 s is good, and so 3 of 5 planned
    records = [shot(slot, took_ms=1000.0 * (slot + 1)) for slot in range(4)]
    found = of(*records, failed(4, "http_500", took_ms=1.0), limits=GoodputLimits(e2e_ms=3000.0))
    assert (found.goodput, found.good_share) == (0.75, 0.6)
    nothing = of(limits=GoodputLimits(e2e_ms=1.0))
    assert (nothing.goodput, nothing.good_share) == (None, None)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("ttft:500ms,tpot:50ms,e2e:10s", LIMITS),
        ("e2e:250us", GoodputLimits(e2e_ms=0.25)),
        ("e2e:1.5ms", GoodputLimits(e2e_ms=1.5)),
        ("e2e:2m", GoodputLimits(e2e_ms=120_000.0)),
        (" e2e : 2 s ", GoodputLimits(e2e_ms=2000.0)),
    ],
)
def test_limits_are_read_in_milliseconds_whatever_their_unit(
    text: str, limits: GoodputLimits
) -> None:
    assert read_limits(text) == limits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`` is no limit"),
        ("ttft", "`ttft` is no limit"),
        ("ttft:500", "`ttft:500` is no limit"),
        ("ttft:-5ms", "`ttft:-5ms` is no limit"),
        ("ttft:1e9ms", "`ttft:1e9ms` is no limit"),
        ("ttft:5ms tpot:5ms", "`ttft:5ms tpot:5ms` is no limit"),
        ("ttft:5ms,", "`` is no limit"),
        ("itl:5ms", "`itl:5ms` is no limit"),
        ("TTFT:5ms", "`TTFT:5ms` is no limit"),
        ("ttft:5h", "`ttft:5h` is no limit"),
        ("ttft:0ms", "limit `ttft:0ms` lets nothing or everything pass"),
        (f"e2e:{'9' * 400}s", f"limit `e2e:{'9' * 400}s` lets nothing or everything pass"),
        ("ttft:5ms,ttft:6ms", "limit `ttft` stands twice in `ttft:5ms,ttft:6ms`"),
    ],
)
def test_what_is_no_limit_is_refused_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        read_limits(text)
    assert caught.value.message == message
    assert caught.value.hint


WHOLE = {"stream": False, "ttft_ms": None, "tpot_ms": None}
UNTIMED = {"ttft_ms": None, "tpot_ms": None}
"""A whole body where a stream was asked for: its first token came with the last, and it does not escape the limit."""


@pytest.mark.parametrize(
    ("facts", "limits", "expected"),
    [
        ({}, LIMITS, True),
        # a limit itself is still good
        ({"ttft_ms": 500.0, "tpot_ms": 50.0, "e2e_ms": 10_000.0}, LIMITS, True),
        ({"ttft_ms": 501.0}, LIMITS, False),
        ({"tpot_ms": 50.1}, LIMITS, False),
        ({"e2e_ms": 10_001.0}, LIMITS, False),
        ({"ttft_ms": 501.0, "tpot_ms": 50.1, "e2e_ms": 10_001.0}, GoodputLimits(), True),
        ({"ok": False, "error_kind": "cut"}, GoodputLimits(), False),
        (WHOLE, LIMITS, True),
        (WHOLE | {"e2e_ms": 10_001.0}, LIMITS, False),
        ({"tpot_ms": None}, LIMITS, True),  # one token
        (UNTIMED | {"e2e_ms": 500.0}, LIMITS, True),
        (UNTIMED | {"e2e_ms": 600.0}, LIMITS, False),
        # a stream without any token is late for all but what it has no way to have
        (UNTIMED | {"e2e_ms": None}, GoodputLimits(ttft_ms=500.0), False),
        (UNTIMED | {"e2e_ms": None}, GoodputLimits(e2e_ms=500.0), False),
        (UNTIMED | {"e2e_ms": None}, GoodputLimits(tpot_ms=50.0), True),
    ],
)
def test_a_request_is_good_within_every_limit(
    facts: dict[str, Any], limits: GoodputLimits, expected: bool
) -> None:
    one = answered(9_000.0, **{"ttft_ms": 400.0, "tpot_ms": 40.0, **facts})
    assert is_good(one, limits) is expected


# the levels of a sweep


@pytest.mark.parametrize(
    ("shares", "best"),
    [
        ({8: 1.0, 16: 0.95, 32: 0.94}, 16),
        ({32: 0.5, 8: 1.0, 16: 1.0}, 16),  # in any order
        ({8: 1.0, 16: 0.5, 32: 1.0}, 8),  # a level above a failed one does not count
        ({8: 0.9, 16: 1.0}, None),
        ({8: None, 16: None}, None),  # without limits
        ({}, None),
    ],
)
def test_the_best_level_is_the_largest_that_meets_the_limits(
    shares: dict[int, float | None], best: int | None
) -> None:
    levels = [step(at, 1.0, 1000.0, good_share=share) for at, share in shares.items()]
    assert best_level(levels) == best


@pytest.mark.parametrize(
    ("levels", "at"),
    [
        # from 8 on: 10.0 -> 10.4 and 10.5 (+5 %), 800 -> 3,050 ms
        ([(1, 1.9, 520), (2, 3.7, 540), (4, 7, 570), (8, 10, 800), (16, 10.4, 1540), (32, 10.5, 3050)], 8),
        ([(16, 10.2, 1560), (4, 6.0, 660), (8, 10.0, 800)], 8),  # in any order
        ([(8, 10.0, 800), (16, 10.9, 1470)], 8),  # two levels are enough
        ([(8, 10.0, 800), (16, 11.0, 1450)], None),  # +10 %: still a gain, and above 16 nobody looked
        ([(8, 10.0, 800), (16, 6.0, 2600)], 8),  # throughput that falls is past the knee, too
        # 8 and 9 at once lie too close together: +12 % is what a closed loop must show
        ([(8, 10.0, 800), (9, 10.1, 896)], None),
        ([(8, 10.0, 800), (12, 10.0, 1200)], 8),
        ([(8, 10.0, 800), (10, 10.1, 990), (12, 10.0, 1200), (14, 10.1, 1390)], 8),
        # one slow level in the middle is none
        ([(4, 6.0, 660), (8, 4.0, 2000), (16, 12.0, 1330), (32, 24.0, 1340)], None),
        ([(4, 10.0, 400), (8, 10.0, 800), (16, 10.0, 1600)], 4),  # of equal levels the lowest
        # a level without an answer, or with answers of unknown length, is no sign of saturation
        ([(8, 10.0, 800), (16, 0.0, None)], None),
        ([(4, 10.0, 400), (16, 0.0, None), (32, 10.0, 3200)], 4),
        ([(16, 0.0, None), (32, None, None)], None),
        ([(8, 10.0, None), (16, 10.0, 1600)], None),
        ([(8, 10.0, 800)], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_knee_is_where_throughput_ends_and_waiting_begins(
    levels: list[tuple[int, float | None, float | None]], at: int | None
) -> None:
    assert knee([step(*level) for level in levels]) == at
