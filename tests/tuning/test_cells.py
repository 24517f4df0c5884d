"""Seconds of a blast and waves of a bench, counted by hand."""

from support import shots
from support.tallies import S, shot, sketch, tally

from toolkit.tuning.cells import cells_of_tallies, cells_of_waves


def test_the_parts_of_a_second_add_up_and_other_seconds_stay_out() -> None:
    parts = [
        tally(S, ok=1, output_tokens=5, e2e=sketch(100.0), ttft=sketch(10.0)),
        tally(S, worker="w2", ok=1, output_tokens=7, e2e=sketch(200.0)),
        tally(S + 9, ok=99),
    ]
    [cell, silent] = cells_of_tallies(parts, [S, S + 1])
    assert (silent.ok, silent.errors, silent.elapsed_s) == (0, 0, 1.0)
    assert (cell.ok, cell.output_tokens, cell.e2e.count, cell.ttft.count) == (2, 12, 2, 1)


def test_the_time_per_token_comes_from_unique_canaries_alone() -> None:
    def canary(kind: str, tpot_ms: float, *, ok: bool = True):
        return shot(S + 0.5, kind=kind, ok=ok, tpot_ms=tpot_ms, took_ms=200.0, planned_at=S + 0.5)

    found = [canary("unique", 20.0), canary("twin", 1.0), canary("unique", 30.0, ok=False)]
    [cell] = cells_of_tallies([], [S], found)
    assert (cell.tpot.count, cell.ok) == (1, 0)


def test_a_bench_is_cut_into_waves_of_as_many_as_ran_at_once() -> None:
    # 16 slots at concurrency 8; every answer takes 100 + 99 * 20 = 2,080 ms, the second wave leaves at 2.5 s
    found = cells_of_waves([*shots.uniques(16), shots.shot(99, kind="warmup")])
    assert [each.ok for each in found] == [8, 8]
    assert [round(each.elapsed_s, 3) for each in found] == [2.08, 2.5]
    assert [each.output_tokens for each in found] == [800, 800]
    assert found[0].ttft.quantile(0.5) == found[1].ttft.quantile(0.5)


def test_a_request_that_was_sent_late_is_over_late() -> None:
    # one at a time, both planned for the start; the second, sent after 5 s, takes 2,080 ms, too
    late = [
        shots.shot(slot, concurrency=1, planned_at=shots.AT, sent_at=shots.AT + 5 * slot)
        for slot in range(2)
    ]
    assert [round(each.elapsed_s, 3) for each in cells_of_waves(late)] == [2.08, 5.0]


def test_a_failure_takes_its_place_in_a_wave_and_no_place_among_latencies() -> None:
    wave = [*shots.uniques(7), shots.failed(7, "timeout")]
    [cell] = cells_of_waves(wave)
    assert (cell.ok, cell.errors, cell.e2e.count) == (7, 1, 7)
    assert cell.error_kinds == {"timeout": 1}


def test_an_open_loop_is_cut_by_how_many_were_under_way() -> None:
    # a request each second that takes 2,080 ms: 12 * 2.08 s in 13.08 s are two at once
    open_loop = [
        shots.shot(slot, concurrency=None, planned_at=shots.AT + slot, sent_at=shots.AT + slot)
        for slot in range(12)
    ]
    assert [each.ok for each in cells_of_waves(open_loop)] == [2] * 6


def test_levels_of_a_sweep_follow_one_another() -> None:
    low = [shots.shot(slot, concurrency=2, planned_at=shots.AT + slot) for slot in range(4)]
    high = [shots.shot(slot, concurrency=4, planned_at=shots.AT + 100) for slot in range(4)]
    found = cells_of_waves([*high, *low])
    assert [each.ok for each in found] == [2, 2, 4]
    # the time between the levels belongs to neither
    assert sum(each.elapsed_s for each in found) < 10
