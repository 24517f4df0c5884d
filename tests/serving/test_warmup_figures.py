"""Whether two rounds agree, what cold and warm are, and which load is told."""

from typing import Any

import pytest
from support.shots import shot

from toolkit.serving.warmup import (
    Round,
    Warmed,
    agree,
    compilations,
    doubling,
    levels_of,
    median,
    round_of,
)


def a_round(**changes: Any) -> Round:
    plain: dict[str, Any] = {
        "phase": "cold",
        "kind": "plain",
        "concurrency": 1,
        "requests": 1,
        "ok": 1,
        "took_s": 1.0,
    }
    return Round(**(plain | changes))


# --- which loads ------------------------------------------------------------------------------------------


def test_levels_double_up_to_the_last_one() -> None:
    assert doubling(64) == (1, 2, 4, 8, 16, 32, 64)
    assert doubling(48) == (1, 2, 4, 8, 16, 32, 48)
    assert doubling(1) == (1,)
    assert doubling(2) == (1, 2)


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (None, (1, 2, 64)),
        (64, (1, 2, 64)),
        (100, (1, 2, 64)),
        (16, (1, 2, 16)),
        (2, (1, 2)),
        (1, (1,)),
    ],
)
def test_no_level_is_above_what_the_engine_runs_at_once(
    most: int | None, expected: tuple[int, ...]
) -> None:
    assert levels_of((2, 64, 1, 2), most) == expected


def test_levels_that_make_no_sense_leave_one() -> None:
    assert levels_of((), None) == levels_of((0, -3), None) == (1,)


# --- one round --------------------------------------------------------------------------------------------


def test_a_round_sums_up_its_requests() -> None:
    shots = [
        shot(stream=True, ttft_ms=30.0, e2e_ms=300.0),
        shot(stream=True, ttft_ms=10.0, e2e_ms=100.0),
        shot(stream=False, ttft_ms=None, e2e_ms=250.0),
        shot(ok=False, error_kind="http_500", error="it said 500", ttft_ms=None, e2e_ms=None),
        shot(ok=False, error_kind="timeout", error="late", ttft_ms=None, e2e_ms=None),
        shot(ok=False, error_kind="http_500", error="again", ttft_ms=None, e2e_ms=None),
    ]
    told = round_of(shots, "cold", "plain", 6, 2.0)
    assert (told.requests, told.ok, told.took_s) == (6, 3, 2.0)
    assert told.ttft_ms == 30.0, "of two the higher: the cold one"
    assert told.e2e_ms == 250.0, "of whole answers alone"
    assert told.error_kinds == {"http_500": 2, "timeout": 1}
    assert told.error == "it said 500"


def test_a_round_of_streams_alone_has_an_e2e_all_the_same() -> None:
    told = round_of([shot(stream=True, ttft_ms=1.0, e2e_ms=9.0)], "cold", "plain", 1, 1.0)
    assert (told.ttft_ms, told.e2e_ms) == (1.0, 9.0)


def test_medians_of_none_one_two_and_three() -> None:
    assert median([]) is None
    assert median([None, None]) is None
    assert median([5.0, None]) == 5.0
    assert median([1.0, 9.0]) == 9.0
    assert median([9.0, 1.0, 5.0]) == 5.0


# --- agreement ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (100.0, 119.0, True),  # 19 <= 0.2 * 100
        (119.0, 100.0, True),  # whichever came first
        (100.0, 121.0, False),
        (121.0, 100.0, False),
        (1.0, 5.9, True),  # below 5 ms apart: a client's own noise
        (1.0, 6.1, False),
        (89_000.0, 219.0, False),
    ],
)
def test_two_rounds_agree_within_a_fifth_of_the_lower(
    before: float, after: float, *, expected: bool
) -> None:
    one, other = a_round(ttft_ms=before), a_round(ttft_ms=after)
    assert agree(one, other, 0.2) is expected


def test_rounds_agree_by_ttft_where_both_have_one_whatever_their_e2e() -> None:
    assert agree(a_round(ttft_ms=10.0, e2e_ms=1.0), a_round(ttft_ms=10.0, e2e_ms=999.0), 0.2)
    assert agree(a_round(e2e_ms=10.0), a_round(e2e_ms=11.0), 0.2)


def test_a_round_without_an_answer_agrees_with_none() -> None:
    assert not agree(a_round(), a_round(), 0.2)
    assert not agree(a_round(ttft_ms=1.0), a_round(ok=0), 0.2)


# --- cold against warm ----------------------------------------------------------------------------------------


def report(rounds: list[Round]) -> Warmed:
    found = Warmed(name="alice", url="u", rounds=rounds)
    found.sum_up()
    return found


def test_a_last_round_that_failed_leaves_the_one_before_it() -> None:
    rounds = [
        a_round(ttft_ms=10.0),
        a_round(phase="settle", ttft_ms=5.0),
        a_round(phase="probe", ok=0),
    ]
    assert report(rounds).levels[0].warm_ms == 5.0


def test_a_load_that_was_never_answered_has_no_ratio() -> None:
    _, found = report([a_round(ttft_ms=1.0), a_round(concurrency=8, ok=0)]).levels
    assert (found.cold_ms, found.warm_ms, found.ratio) == (None, None, None)


def test_the_load_that_is_shown_is_the_lowest_whatever_being_cold_cost_elsewhere() -> None:
    rounds = [
        a_round(ttft_ms=40.0),
        a_round(concurrency=8, ttft_ms=9_000.0),
        a_round(phase="probe", requests=4, ok=3, ttft_ms=20.0),
        a_round(phase="probe", concurrency=8, ttft_ms=10.0),
        a_round(kind="long", ttft_ms=8_000.0),
        a_round(phase="seed", kind="seed", requests=4, ok=2, ttft_ms=1.0),
    ]
    found = report(rounds)
    shown = (found.concurrency, found.cold_ttft_ms, found.warm_ttft_ms, found.ratio)
    assert shown == (1, 40, 20, 2)
    assert [each.ratio for each in found.levels] == [2.0, 900.0, None]
    assert (found.requests, found.errors, found.seeded) == (12, 3, 2)
    assert found.sentence() == "cold TTFT 40 ms, warm TTFT 20 ms"


def test_without_a_warm_figure_no_figure_is_put_in_words() -> None:
    for rounds in ([], [a_round(ttft_ms=5.0)], [a_round(e2e_ms=5.0)]):
        found = report(rounds)
        assert found.ratio is None
        assert found.sentence() == "not warm: no figure"


# --- the server's log -----------------------------------------------------------------------------------------

JIT = (
    "(EngineCore pid=77) WARNING 11-21 14:32:10 [jit_monitor.py:137] Triton kernel JIT compilation during inference:"
    " _fwd_kernel (BLOCK=64). This causes a latency spike; consider extending warmup to cover this shape/config."
)
"""As vLLM 0.32's vllm/utils/jit_monitor.py words it."""


@pytest.mark.parametrize(
    "line",
    [
        "",
        "INFO [jit_monitor.py:101] Kernel JIT monitor activated; JIT compilations during inference will use mode=warn.",
        "INFO something during inference: nothing",
        "This causes a latency spike",
    ],
)
def test_other_lines_are_no_compilation(line: str) -> None:
    assert compilations([line]) == []


def test_the_monitor_s_error_mode_is_read_too() -> None:
    line = "RuntimeError: TileLang JIT compilation during inference: f. This causes a latency spike; consider"
    assert compilations([line]) == ["RuntimeError: TileLang JIT compilation during inference: f"]
