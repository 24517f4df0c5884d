"""Which lever comes first and what it saves: the contest's lesson, and each lever's share by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.arrived import arrived

from toolkit.workload import RequestColumns
from toolkit.workload.arrivals import concurrency
from toolkit.workload.distribution import mix
from toolkit.workload.forecast import reuse
from toolkit.workload.lengths import lengths, model_length, prompt_tokens
from toolkit.workload.levers import Lever, adjustments, headline, savings, work

MEASURED = ["response_cache", "single_flight", "prefix_cache"]
SETTINGS = ["max_model_len", "batching", "quantization"]


def evidence(
    columns: RequestColumns,
    latency_s: float | None = None,
    prefix_share: Callable[[np.ndarray], float | None] = lambda _: 0.0,
    **settings: object,
) -> dict[str, Any]:
    told = {"current": None, "model_max": None, "max_num_seqs": None, "allowed": None, **settings}
    prompts = prompt_tokens(columns)
    waits = None if latency_s is None else np.full(len(columns), latency_s)
    allowed = np.ones(len(columns), dtype=bool) if told["allowed"] is None else told["allowed"]
    spoken = lengths(columns, prompts)
    return {
        "work": work(columns, prompts),
        "reuse": reuse(columns.request, columns.ts, waits, allowed),
        "prefix_share": prefix_share,
        "declared_share": mix(columns).declared_share,
        "policy": "all" if told["allowed"] is None else "declared",
        "length": model_length(
            columns, prompts, current=told["current"], model_max=told["model_max"]
        ),
        "concurrency": concurrency(columns, 1.0, latency_s),
        "output": spoken.output_tokens,
        "max_tokens": spoken.max_tokens,
        "max_num_seqs": told["max_num_seqs"],
    }


def levers(judged_by: dict[str, Any]) -> tuple[Lever, ...]:
    limits = ("length", "concurrency", "output", "max_tokens", "max_num_seqs")
    adjusted = {name: judged_by[name] for name in limits}
    saved = {name: value for name, value in judged_by.items() if name not in limits}
    return (*savings(**saved), *adjustments(**adjusted))


def told(found: tuple[Lever, ...], code: str) -> Lever:
    return next(lever for lever in found if lever.code == code)


def said(told_evidence: dict[str, Any]) -> str:
    return headline(levers(told_evidence), told_evidence["length"])


def contest(requests: int = 6000, per_s: float = 50.0) -> RequestColumns:
    """Two prompts in turns, max_tokens 256, answers not followed."""
    asked = ["robot", "capital"] * (requests // 2)
    return arrived(
        asked, ts=(np.arange(requests) / per_s).tolist(), prompt_chars=[55, 33] * (requests // 2),
        max_tokens=256,
    )  # fmt: skip


def test_the_winners_lesson_response_cache_then_single_flight_and_512_instead_of_8192() -> None:
    expected = "response cache, then single-flight; max_model_len 512 instead of 8192"
    assert said(evidence(contest(), 3.0, current=8192)) == expected
    # the same where nobody knows how long answers take
    assert said(evidence(contest(), current=8192)) == expected
    # and in a capture of ten seconds, of which the first three are all misses
    assert said(evidence(contest(500), 3.0, current=8192)) == expected


def test_levers_with_a_measured_saving_stand_first_and_the_settings_after_them() -> None:
    assert [lever.code for lever in levers(evidence(contest(), 3.0))] == [*MEASURED, *SETTINGS]


def test_where_only_the_policy_forbids_to_answer_from_memory_the_headline_says_so() -> None:
    forbidden = evidence(contest(), 3.0, allowed=np.zeros(6000, dtype=bool))
    assert headline(levers(forbidden), forbidden["length"], "declared").startswith(
        "nothing that the policy allows repeats enough to save GPU work"
    )


def test_a_model_that_takes_less_than_is_wanted_is_told_beside_it() -> None:
    # 14 + 256 = 270; with 15 % 310.5; rounded up 512
    length = told(levers(evidence(contest(), 3.0, model_max=300)), "max_model_len")
    assert "15 % of margin make 512, of which the model takes 300" in length.caveat


def test_each_share_is_what_is_saved_on_top_of_the_levers_above() -> None:
    # 50 requests/s for 120 s, answers in 3 s. robot: 0, 0.04 ...; a prompt's first answer is there at 3.0 and 3.02.
    # Cache alone: of each prompt's 3,000 the 75 that came in its first 3 s are misses: 2,925 hits.
    # With single-flight all but one: 2,999. All bodies of a prompt cost the same: 14 + 4 * 256 and 9 + 4 * 256
    found = levers(evidence(contest(), 3.0))
    assert told(found, "response_cache").saved_share == pytest.approx(2925 / 3000)
    assert told(found, "single_flight").saved_share == pytest.approx(74 / 3000)
    # alone, single-flight lets one in 75 through: 3,000 / 75 = 40 leaders of each prompt
    assert told(found, "single_flight").standalone_share == pytest.approx(2960 / 3000)
    assert told(found, "response_cache").standalone_share == pytest.approx(2925 / 3000)
    assert told(found, "single_flight").number == pytest.approx(74 / 3000)


def test_of_unknown_latency_the_cache_has_both_shares_and_single_flight_says_why_it_has_none() -> (
    None
):
    found = levers(evidence(contest()))
    assert told(found, "response_cache").saved_share == pytest.approx(2999 / 3000)
    assert "single-flight's part is in it" in told(found, "response_cache").caveat
    single = told(found, "single_flight")
    assert (single.saved_share, single.standalone_share, single.recommended) == (None, None, True)
    # 250 requests of each prompt in its first ten seconds, itself not counted
    assert "8.3 % of requests come within 10 s" in single.caveat  # 2 * 249 / 6000


def test_repeats_hours_apart_are_no_reason_for_single_flight() -> None:
    columns = arrived(["a"] * 20, ts=[3600.0 * n for n in range(20)], max_tokens=64, usage=10)
    assert said(evidence(columns)) == "response cache; max_model_len 256"
    found = levers(evidence(columns, 2.0))
    assert told(found, "single_flight").saved_share == 0.0
    assert not told(found, "single_flight").recommended
    assert "no equal requests are under way at once" in told(found, "single_flight").caveat


def test_a_lever_that_saves_nothing_says_so_and_stays_out_of_the_headline() -> None:
    columns = arrived(range(50), usage=30, max_tokens=100)
    found = levers(evidence(columns, 1.0))
    for code in MEASURED:
        lever = told(found, code)
        assert (lever.saved_share, lever.standalone_share, lever.recommended) == (0.0, 0.0, False)
        assert lever.caveat.startswith("saves nothing here: ")
    assert said(evidence(columns, current=256)) == (
        "nothing repeats enough to save GPU work; max_model_len 256 as it is"
    )


def test_when_all_come_at_the_same_instant_only_single_flight_saves() -> None:
    columns = arrived(["a"] * 10, ts=[5.0] * 10, usage=10, max_tokens=100)
    found = levers(evidence(columns, 1.0))
    assert told(found, "response_cache").saved_share == 0.0
    assert "all under way at once" in told(found, "response_cache").caveat
    assert told(found, "single_flight").saved_share == pytest.approx(0.9)
    assert said(evidence(columns, 1.0)) == "single-flight; max_model_len 256"


def test_prefixes_count_only_on_what_still_reaches_the_gpu() -> None:
    # 100 requests of 1000 + 100 tokens, half of them repeats long after; all prompts share a half. 1,400 a request
    columns = arrived(
        [n // 2 for n in range(100)], ts=np.arange(100.0) * 60, usage=1000, max_tokens=100
    )

    def prefix_share(which: np.ndarray) -> float:
        return 0.5 * (1 - 1 / which.sum())  # the first of them pays

    found = levers(evidence(columns, 1.0, prefix_share))
    assert [lever.code for lever in found[:3]] == MEASURED
    assert told(found, "response_cache").saved_share == pytest.approx(0.5)
    # 50 requests are left: 49 * 500 of 140,000
    assert told(found, "prefix_cache").saved_share == pytest.approx(49 * 500 / 140_000)
    assert told(found, "prefix_cache").standalone_share == pytest.approx(99 * 500 / 140_000)
    assert told(found, "prefix_cache").number == pytest.approx(0.495)
    assert said(evidence(columns, 1.0, prefix_share)).startswith(
        "response cache, then prefix cache;"
    )


def test_prefixes_that_save_more_than_repeats_stand_first_and_leave_repeats_their_rest() -> None:
    # 10 requests of 1000 + 10 tokens, 1,040 each; one repeats, 900 of each prompt but the first are shared
    columns = arrived([*range(9), 0], ts=np.arange(10.0) * 60, usage=1000, max_tokens=10)
    found = levers(evidence(columns, 1.0, lambda which: 0.9 * (1 - 1 / which.sum())))
    assert [lever.code for lever in found[:3]] == [
        "prefix_cache",
        "response_cache",
        "single_flight",
    ]
    # 9 * 900 of 10,400; then the repeat's own 100 + 4 * 10
    assert told(found, "prefix_cache").saved_share == pytest.approx(8100 / 10_400)
    assert told(found, "response_cache").saved_share == pytest.approx(140 / 10_400)
    assert told(found, "response_cache").standalone_share == pytest.approx(1040 / 10_400)


def test_a_prefix_share_of_next_to_nothing_is_not_recommended() -> None:
    found = levers(evidence(contest(), 3.0, lambda _: 0.3))
    assert told(found, "prefix_cache").saved_share is not None
    assert 0 < (told(found, "prefix_cache").saved_share or 0.0) < 1e-4
    assert not told(found, "prefix_cache").recommended
    assert (
        "on top of the levers above it is < 0.1 % of all work" in told(found, "prefix_cache").caveat
    )


def test_unknown_prefixes_are_unknown_and_stop_no_other_lever() -> None:
    found = levers(evidence(contest(), 3.0, lambda _: None))
    assert told(found, "prefix_cache").saved_share is None
    assert told(found, "prefix_cache").caveat == "prompts' beginnings are unknown"
    assert told(found, "response_cache").saved_share == pytest.approx(2925 / 3000)


def test_shares_are_told_for_cheap_and_dear_written_tokens_too() -> None:
    # a: 1000 read, 0 written, once more; b: 0 and 100. Saved 1000 of 2000 + w * 100
    columns = arrived(list("aab"), usage=[1000, 1000, 0], output_tokens=[0, 0, 100])
    lever = told(levers(evidence(columns, 0.0)), "response_cache")
    assert lever.saved_share == pytest.approx(1000 / 2400)
    assert lever.saved_share_low == pytest.approx(1000 / 3000)
    assert lever.saved_share_high == pytest.approx(1000 / 2100)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"output_tokens": 10}, "are as long as told"),
        ({"max_tokens": 10}, "as long as max_tokens allows, an upper bound"),
        ({"max_tokens": 10, "output_tokens": [9, None, None, None]}, "their prompt's others or"),
        ({}, "of unknown length and left out"),
        ({"usage": None}, "each request counts the same"),
    ],
)
def test_the_caveat_says_how_answers_lengths_are_known(fields: dict, words: str) -> None:
    found = told(
        levers(evidence(arrived(list("abba"), **{"usage": 10, **fields}), 0.1)), "response_cache"
    )
    assert words in found.caveat
    assert "answers count 4 a token" in found.caveat


def test_a_policy_that_allows_nothing_leaves_nothing_to_a_cache() -> None:
    columns = arrived(["a"] * 10, usage=10, max_tokens=10, temperature=0.7)
    lever = told(levers(evidence(columns, 0.1, allowed=np.zeros(10, dtype=bool))), "response_cache")
    assert (lever.saved_share, lever.recommended) == (0.0, False)
    assert "no request that the policy allows repeats" in lever.caveat


def test_the_caveat_of_a_cache_tells_how_many_declare_that_they_may_be_repeated() -> None:
    columns = arrived(["a"] * 4, usage=10, max_tokens=10, temperature=[0.0, None, 1.0, 0.7])
    caveat = told(levers(evidence(columns, 0.1)), "response_cache").caveat
    assert "25.0 % of requests declare" in caveat
    trace = evidence(columns, 0.1) | {"declared_share": None}
    assert "whether requests allow that is unknown" in told(levers(trace), "response_cache").caveat


def test_settings_save_no_work_and_have_a_number_of_their_own() -> None:
    columns = arrived(["a"] * 100, in_flight=[*[3] * 98, 40, 60], usage=100, max_tokens=100)
    found = levers(evidence(columns, current=2048, max_num_seqs=32))
    assert all(told(found, code).saved_share is None for code in SETTINGS)
    assert told(found, "max_model_len").number == 8.0  # 2048 / 256
    # the 99th of 100 found 40 others
    assert told(found, "batching").number == 41.0
    assert told(found, "batching").recommended
    # 41 * 2.5 = 102.5
    assert "103 leaves headroom; max_num_seqs is 32" in told(found, "batching").caveat
    assert told(found, "quantization").number == 4.0
    assert said(evidence(columns, current=2048, max_num_seqs=32)).endswith("; higher max_num_seqs")
    assert "higher" not in said(evidence(columns, current=2048, max_num_seqs=64))


def test_unknown_concurrency_and_length_recommend_nothing() -> None:
    found = levers(evidence(arrived(list("ab"), usage=5)))
    assert told(found, "batching").number is None
    assert "concurrency is unknown" in told(found, "batching").caveat
    assert not told(found, "max_model_len").recommended
    assert told(found, "max_model_len").caveat.startswith("no recommendation: requests set no max")
    assert said(evidence(arrived(list("ab"), usage=5))) == "nothing repeats enough to save GPU work"


def test_a_limit_too_small_is_not_praised_as_less() -> None:
    columns = arrived(["a"], usage=3000, max_tokens=1000)
    # 4000 * 1.15 = 4600, 18 * 256 = 4608
    assert said(evidence(columns, current=2048)).endswith("max_model_len 4608 instead of 2048")


def test_a_limit_that_serves_all_that_came_is_not_raised_for_its_margin_alone() -> None:
    columns = arrived(["a"], usage=3900, max_tokens=100)
    # 4000 * 1.15 = 4600, 4608; 4096 holds the 4000 that were asked for, 3999 does not
    assert said(evidence(columns, current=4096)).endswith("; max_model_len 4096 as it is")
    assert not told(levers(evidence(columns, current=4096)), "max_model_len").recommended
    assert said(evidence(columns, current=3999)).endswith("; max_model_len 4608 instead of 3999")
    # what the model can take at most is all there is to advise
    assert said(evidence(columns, current=2048, model_max=2048)).endswith(
        "max_model_len 2048 as it is"
    )


def test_max_tokens_far_above_what_answers_need_is_a_lever_of_its_own() -> None:
    generous = {"usage": 100, "max_tokens": 4096, "finish_reason": "stop"}
    found = levers(evidence(arrived(range(10), output_tokens=list(range(41, 51)), **generous)))
    assert [lever.code for lever in found[3:5]] == ["max_model_len", "max_tokens"]
    assert told(found, "max_tokens").number == pytest.approx(4096 / 50)
    assert "answers end by 50 tokens, max_tokens allows 4,096" in told(found, "max_tokens").caveat
    # four times as much and no less: 4096 / 1024
    for longest, is_lever in ((1024, True), (1025, False)):
        near = levers(evidence(arrived(range(10), output_tokens=longest, **generous)))
        assert any(lever.code == "max_tokens" for lever in near) is is_lever


def test_answers_that_their_limit_ended_do_not_make_the_limit_look_generous() -> None:
    # half of the answers end at 20 by themselves, half at their limit of 20
    columns = arrived(
        range(10), output_tokens=20, usage=10, max_tokens=[20] * 4 + [100] * 6,
        finish_reason=["length"] * 4 + ["stop"] * 5 + ["length"],
    )  # fmt: skip
    assert all(lever.code != "max_tokens" for lever in levers(evidence(columns)))


@pytest.mark.parametrize("latency_s", [None, 1.0])
def test_no_requests_give_levers_without_figures(latency_s: float | None) -> None:
    found = levers(evidence(arrived([]), latency_s))
    assert [lever.code for lever in found] == [*MEASURED, *SETTINGS]
    assert all(lever.saved_share is None and not lever.recommended for lever in found)
    assert said(evidence(arrived([]), latency_s)) == "what repeats is unknown"


def test_one_request_saves_nothing() -> None:
    found = levers(evidence(arrived(["a"], usage=10, max_tokens=10), 1.0))
    assert told(found, "response_cache").saved_share == 0.0


def test_95_of_100_requests_for_two_prompts_are_worth_a_cache() -> None:
    rng = np.random.default_rng(0)
    asked = [("a", "b")[n % 2] if rng.random() < 0.95 else f"tail {n}" for n in range(2000)]
    found = levers(evidence(arrived(asked, usage=15, max_tokens=256), 0.5))
    repeats = 1 - len(set(asked)) / 2000
    assert told(found, "response_cache").saved_share == pytest.approx(repeats)
    assert 0.93 < repeats < 0.97
