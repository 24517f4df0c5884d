"""What requests cost in tokens, and which of them a cache and single-flight would keep from the GPU."""

import numpy as np
import pytest
from support.arrived import arrived

from toolkit.workload import RequestColumns
from toolkit.workload.forecast import Reuse, reuse
from toolkit.workload.lengths import prompt_tokens
from toolkit.workload.levers import work


def replayed(
    prompts: str, ts: list[float], latency_s: float | list[float] | None, allowed: str | None = None
) -> Reuse:
    columns = arrived(list(prompts), ts=ts)
    waits = None if latency_s is None else np.broadcast_to(np.array(latency_s, float), len(ts))
    eligible = np.array([one == "y" for one in allowed or "y" * len(ts)])
    return reuse(columns.request, columns.ts, waits, eligible)


def flags(mask: np.ndarray | None) -> str:
    assert mask is not None
    return "".join("y" if one else "-" for one in mask)


def costs(columns: RequestColumns) -> list[tuple[float, float]]:
    found = work(columns, prompt_tokens(columns))
    return [(read, written) for read, written in found.tokens.tolist()]


def test_told_answers_are_what_was_written() -> None:
    columns = arrived(list("ab"), usage=[10, 20], output_tokens=[5, 7], max_tokens=256)
    assert costs(columns) == [(10, 5), (20, 7)]
    assert work(columns, prompt_tokens(columns)).basis == "usage"


def test_an_untold_answer_is_its_prompts_mean_then_its_limit_then_the_mean_of_all() -> None:
    columns = arrived(
        list("aaabc"), usage=10, output_tokens=[4, 8, None, None, None],
        max_tokens=[None, None, 256, 256, None],
    )  # fmt: skip
    # a's third: (4 + 8) / 2; b: 256; c: the mean of 4, 8, 6, 256
    assert [written for _, written in costs(columns)] == [4, 8, 6, 256, 68.5]
    assert work(columns, prompt_tokens(columns)).basis == "mixed"


def test_without_answers_max_tokens_is_the_bound_for_each_of_n_choices() -> None:
    columns = arrived(list("ab"), usage=10, max_tokens=[256, 100], n=[None, 3])
    assert costs(columns) == [(10, 256), (10, 300)]
    assert work(columns, prompt_tokens(columns)).basis == "max_tokens"


def test_one_absurd_number_does_not_outweigh_all_other_requests() -> None:
    columns = arrived(
        list("abcd"), usage=10, max_tokens=[100, 10**18, -5, 2], n=[None, 1, 1, 10**9]
    )
    # d: 2 for each of 128; b and c, whose limits say nothing: the mean of 100 and 256
    assert costs(columns) == [(10, 100), (10, 178), (10, 178), (10, 256)]


def test_with_neither_prompts_alone_are_counted() -> None:
    columns = arrived(list("ab"), usage=[10, 30])
    assert costs(columns) == [(10, 0), (30, 0)]
    assert work(columns, prompt_tokens(columns)).basis == "unknown"
    assert costs(arrived([])) == []


def test_what_failed_cost_nothing_and_nobody_counts_its_limit() -> None:
    columns = arrived(list("aab"), usage=10, output_tokens=[5, None, None], max_tokens=256)
    failed = np.array([False, True, True])
    found = work(columns, prompt_tokens(columns), failed)
    assert found.tokens.tolist() == [[10, 5], [0, 0], [0, 0]]


def test_with_no_length_known_at_all_each_request_counts_as_one() -> None:
    columns = arrived(list("ab"))
    assert costs(columns) == [(1, 0), (1, 0)]
    assert work(columns, prompt_tokens(columns)).basis == "requests"


def test_a_cache_answers_what_comes_after_the_first_answer_and_single_flight_what_comes_before() -> (
    None
):
    # answers take 1 s: the first is there at 1.0
    found = replayed("aaaa", [0.0, 0.5, 1.0, 1.2], 1.0)
    assert flags(found.repeats) == "-yyy"
    assert flags(found.cached) == "--yy"
    # alone, single-flight forgets: the third finds nobody under way and leads, the fourth joins it
    assert flags(found.joined) == "-y-y"


def test_of_several_at_once_the_one_that_ends_first_fills_the_cache() -> None:
    # ends 10, 2, 8: from 2 on the answer is there, though the first request still waits
    found = replayed("aaaa", [0.0, 1.0, 1.9, 2.0], [10.0, 1.0, 6.1, 1.0])
    assert flags(found.cached) == "---y"
    assert flags(found.joined) == "-yyy"


def test_at_no_latency_every_repeat_is_a_hit_and_nothing_is_ever_joined() -> None:
    found = replayed("abab", [0.0, 0.0, 0.0, 5.0], 0.0)
    assert flags(found.cached) == flags(found.repeats) == "--yy"
    assert flags(found.joined) == "----"


def test_all_at_the_same_instant_no_cache_helps_and_single_flight_sends_one_each() -> None:
    found = replayed("aaabb", [3.0] * 5, 1.0)
    assert flags(found.cached) == "-----"
    assert flags(found.joined) == flags(found.repeats) == "-yy-y"


def test_requests_that_are_not_allowed_neither_fill_the_cache_nor_use_it() -> None:
    found = replayed("aaaa", [0.0, 2.0, 4.0, 6.0], 1.0, allowed="-yy-")
    assert flags(found.repeats) == flags(found.cached) == "--y-"
    assert flags(replayed("aa", [0.0, 2.0], 1.0, allowed="--").repeats) == "--"


def test_of_unknown_latency_only_repeats_and_those_soon_after_the_first_are_told() -> None:
    found = replayed("aaab", [1.79e9, 1.79e9 + 9.9, 1.79e9 + 10.0, 1.79e9 + 10.5], None)
    assert (flags(found.repeats), flags(found.soon)) == ("-yy-", "-y--")
    assert found.cached is found.joined is None


def test_without_times_only_the_order_counts_and_a_latency_is_of_no_use() -> None:
    columns = arrived(list("aba"))
    found = reuse(columns.request, None, np.ones(3), np.ones(3, dtype=bool))
    assert flags(found.repeats) == "--y"
    assert found.soon is found.cached is found.joined is None


@pytest.mark.parametrize("latency_s", [None, 1.0])
def test_nothing_is_replayed_without_error(latency_s: float | None) -> None:
    assert flags(replayed("", [], latency_s).repeats) == ""


def replayed_by_events(
    keys: list[int], ts: list[float], waits: list[float], *, single_flight: bool
) -> str:
    """A cache as a dictionary of answers, event by event: the oracle."""
    ends: dict[int, list[float]] = {}
    found = ""
    for key, at, wait in zip(keys, ts, waits, strict=True):
        answered = any(end <= at for end in ends.get(key, []))
        waiting = single_flight and key in ends
        found += "y" if answered or waiting else "-"
        if not answered and not waiting:
            ends.setdefault(key, []).append(at + wait)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_thousand_random_requests_end_as_a_plain_replay_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ts = np.sort(rng.integers(0, 300, 1000) / 4)  # many at the same instant
    keys = rng.zipf(1.3, 1000) % 50
    waits = rng.integers(0, 12, 1000) / 4
    columns = arrived(keys.tolist(), ts=ts.tolist())
    found = reuse(columns.request, columns.ts, waits, np.ones(1000, dtype=bool))
    plain = (keys.tolist(), ts.tolist(), waits.tolist())
    assert flags(found.cached) == replayed_by_events(*plain, single_flight=False)
    assert flags(found.repeats) == replayed_by_events(*plain, single_flight=True)
