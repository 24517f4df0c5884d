"""Which lever comes first and what it saves: the contest's lesson, and each lever's share by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.arrived import arrived

from toolkit.workload import RequestColumns, summarise
from toolkit.workload.levers import Lever

MEASURED = ["response_cache", "single_flight", "prefix_cache"]
SETTINGS = ["max_model_len", "batching", "quantization"]


def levers(
    columns: RequestColumns, latency_s: float | None = None, **more: Any
) -> dict[str, Lever]:
    """By code, in the order of the report."""
    return {one.code: one for one in summarise(columns, latency_s=latency_s, **more).levers}


def headline(columns: RequestColumns, latency_s: float | None = None, **more: Any) -> str:
    return summarise(columns, latency_s=latency_s, **more).headline


def contest(requests: int = 6000, per_s: float = 50.0) -> RequestColumns:
    """Two prompts in turns, max_tokens 256, answers not followed."""
    return arrived(
        ["robot", "capital"] * (requests // 2), ts=(np.arange(requests) / per_s).tolist(),
        prompt_chars=[55, 33] * (requests // 2), max_tokens=256,
    )  # fmt: skip


def chains(prompts: list[int], shared: int, whole: int) -> list[bytes]:
    """Blocks of each prompt: so many that all share, then its own, up to `whole`."""
    return [
        b"".join(
            (place if place < shared else 1000 * (one + 1) + place).to_bytes(8)
            for place in range(whole)
        )
        for one in prompts
    ]


def test_the_winners_lesson_response_cache_then_single_flight_and_512_instead_of_8192() -> None:
    expected = "response cache, then single-flight; max_model_len 512 instead of 8192"
    assert headline(contest(), 3.0, current_max_model_len=8192) == expected
    # the same where nobody knows how long answers take
    assert headline(contest(), current_max_model_len=8192) == expected
    # and in a capture of ten seconds, of which the first three are all misses
    assert headline(contest(500), 3.0, current_max_model_len=8192) == expected


def test_each_share_is_what_is_saved_on_top_of_the_levers_above() -> None:
    # 50 requests/s for 120 s, answers in 3 s. robot: 0, 0.04 ...; a prompt's first answer is there at 3.0 and 3.02.
    # Cache alone: of each prompt's 3,000 the 75 that came in its first 3 s are misses: 2,925 hits.
    # With single-flight all but one: 2,999. All bodies of a prompt cost the same: 14 + 4 * 256 and 9 + 4 * 256
    found = levers(contest(), 3.0)
    assert list(found) == [*MEASURED, *SETTINGS]
    cache, single = found["response_cache"], found["single_flight"]
    assert cache.saved_share == cache.standalone_share == pytest.approx(2925 / 3000)
    assert single.saved_share == single.number == pytest.approx(74 / 3000)
    # alone, single-flight lets one in 75 through: 3,000 / 75 = 40 leaders of each prompt
    assert single.standalone_share == pytest.approx(2960 / 3000)


def test_of_unknown_latency_the_cache_has_both_shares_and_single_flight_says_why_it_has_none() -> (
    None
):
    found = levers(contest())
    assert found["response_cache"].saved_share == pytest.approx(2999 / 3000)
    assert "single-flight's part is in it" in found["response_cache"].caveat
    single = found["single_flight"]
    assert (single.saved_share, single.standalone_share, single.recommended) == (None, None, True)
    # 250 requests of each prompt in its first ten seconds, itself not counted
    assert "8.3 % of requests come within 10 s" in single.caveat  # 2 * 249 / 6000


def test_repeats_hours_apart_are_no_reason_for_single_flight() -> None:
    columns = arrived(["a"] * 20, ts=[3600.0 * n for n in range(20)], max_tokens=64, usage=10)
    assert headline(columns) == "response cache; max_model_len 256"
    single = levers(columns, 2.0)["single_flight"]
    assert (single.saved_share, single.recommended) == (0.0, False)
    assert "no equal requests are under way at once" in single.caveat


def test_a_lever_that_saves_nothing_says_so_and_stays_out_of_the_headline() -> None:
    columns = arrived(range(50), usage=30, max_tokens=100)
    for code, lever in levers(columns, 1.0).items():
        if code in MEASURED:
            assert (lever.saved_share, lever.standalone_share, lever.recommended) == (0, 0, False)
            assert lever.caveat.startswith("saves nothing here: ")
    assert headline(columns, 1.0, current_max_model_len=256) == (
        "nothing repeats enough to save GPU work; max_model_len 256 as it is"
    )


def test_when_all_come_at_the_same_instant_only_single_flight_saves() -> None:
    columns = arrived(["a"] * 10, ts=[5.0] * 10, usage=10, max_tokens=100)
    found = levers(columns, 1.0)
    assert found["response_cache"].saved_share == 0.0
    assert "all under way at once" in found["response_cache"].caveat
    assert found["single_flight"].saved_share == pytest.approx(0.9)
    assert headline(columns, 1.0) == "single-flight; max_model_len 256"


def test_prefixes_count_only_on_what_still_reaches_the_gpu() -> None:
    # 100 requests of 1,024 + 100 tokens, 1,424 of work each, half of them repeats long after; all share the first 512
    prompts = [n // 2 for n in range(100)]
    columns = arrived(
        prompts, ts=(np.arange(100.0) * 60).tolist(), usage=1024, max_tokens=100,
        prompt_tokens=1024, prompt_blocks=chains(prompts, 1, 2), block_tokens=512.0,
    )  # fmt: skip
    found = levers(columns, 1.0)
    assert list(found)[:3] == MEASURED
    assert found["response_cache"].saved_share == pytest.approx(0.5)
    # 50 requests are left, of which the first pays
    prefix = found["prefix_cache"]
    assert prefix.saved_share == pytest.approx(49 * 512 / 142_400)
    assert prefix.standalone_share == pytest.approx(99 * 512 / 142_400)
    assert prefix.number == pytest.approx(99 * 512 / 102_400)
    assert headline(columns, 1.0).startswith("response cache, then prefix cache;")


def test_prefixes_that_save_more_than_repeats_stand_first_and_leave_repeats_their_rest() -> None:
    # 10 requests of 1,024 + 10 tokens, 1,064 each; one repeats, 896 of each prompt but the first are shared
    prompts = [*range(9), 0]
    columns = arrived(
        prompts, ts=(np.arange(10.0) * 60).tolist(), usage=1024, max_tokens=10,
        prompt_tokens=1024, prompt_blocks=chains(prompts, 7, 8), block_tokens=128.0,
    )  # fmt: skip
    found = levers(columns, 1.0)
    assert list(found)[:3] == ["prefix_cache", "response_cache", "single_flight"]
    # 9 * 896 of 10,640; then the repeat's own 128 + 4 * 10
    assert found["prefix_cache"].saved_share == pytest.approx(8064 / 10_640)
    assert found["response_cache"].saved_share == pytest.approx(168 / 10_640)
    assert found["response_cache"].standalone_share == pytest.approx(1064 / 10_640)


def test_prefixes_of_next_to_nothing_are_not_recommended_and_unknown_ones_stop_no_other_lever() -> (
    None
):
    prompts = [0, 1] * 3000
    columns = arrived(
        prompts, usage=1024, max_tokens=256, prompt_tokens=1024,
        prompt_blocks=chains(prompts, 1, 2), block_tokens=512.0,
    )  # fmt: skip
    prefix = levers(columns, 0.5)["prefix_cache"]
    # one of two requests that are left saves 512, of 6,000 * (1,024 + 4 * 256)
    assert prefix.saved_share == pytest.approx(512 / 12_288_000)
    assert not prefix.recommended
    assert "on top of the levers above it is < 0.1 % of all work" in prefix.caveat
    blind = levers(replace(columns, beginnings=False), 0.5)
    assert blind["prefix_cache"].saved_share is None
    assert blind["prefix_cache"].caveat == "prompts' beginnings are unknown"
    assert blind["response_cache"].saved_share == pytest.approx(5998 / 6000)


def test_shares_are_given_for_cheap_and_dear_written_tokens_too() -> None:
    # a: 1000 read, 0 written, once more; b: 0 and 100. Saved 1000 of 2000 + w * 100
    columns = arrived(list("aab"), usage=[1000, 1000, 0], output_tokens=[0, 0, 100])
    lever = levers(columns, 0.0)["response_cache"]
    assert lever.saved_share == pytest.approx(1000 / 2400)
    assert lever.saved_share_low == pytest.approx(1000 / 3000)
    assert lever.saved_share_high == pytest.approx(1000 / 2100)


@pytest.mark.parametrize(
    ("prompts", "fields", "saved", "basis"),
    [
        # 10 + 4 * 5 of it twice, and 20 + 4 * 7
        ("aab", {"usage": [10, 10, 20], "output_tokens": [5, 5, 7]}, 30 / 108, "usage"),
        # a's third is the mean of 4 and 8; b its limit; c the mean of 4, 8, 6 and 256, 68.5
        (
            "aaabc",
            {
                "usage": 10,
                "output_tokens": [4, 8, None, None, None],
                "max_tokens": [None, None, 256, 256, None],
            },
            (20 + 4 * 14) / (50 + 4 * 342.5),
            "mixed",
        ),
        # a limit holds for each of `n` answers
        ("aab", {"usage": 10, "max_tokens": [256, 256, 100], "n": [None, None, 3]}, 1034 / 3278, "max_tokens"),
        # d asks for 2 for each of 128, no more; b and c, whose limits are absurd, are the mean of 100, 100 and 256: 152
        (
            "aabcd",
            {"usage": 10, "max_tokens": [100, 100, 10**18, -5, 2], "n": [1, 1, 1, 1, 10**9]},
            410 / (50 + 4 * 760),
            "max_tokens",
        ),
        ("aab", {"usage": [10, 10, 30]}, 10 / 50, "unknown"),
        ("aab", {}, 1 / 3, "requests"),
        # what failed costs nothing, and its limit counts for nobody
        ("aab", {"usage": 10, "output_tokens": [5, 5, None], "max_tokens": 99, "status": [200, 200, 302]}, 0.5, "mixed"),
    ],
)  # fmt: skip
def test_what_a_request_costs_is_what_it_reads_and_four_times_what_it_writes(
    prompts: str, fields: dict, saved: float, basis: str
) -> None:
    found = summarise(arrived(list(prompts), **fields), latency_s=0.0)
    assert found.output_basis == basis
    # some fields make another body of an equal prompt; to a cache it stays one request
    assert found.levers[0].saved_share == pytest.approx(saved)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"output_tokens": 10}, "are as long as reported"),
        ({"max_tokens": 10}, "as long as max_tokens allows, an upper bound"),
        ({"max_tokens": 10, "output_tokens": [9, None, None, None]}, "their prompt's others or"),
        ({}, "of unknown length and left out"),
        ({"usage": None}, "each request counts the same"),
    ],
)
def test_the_caveat_says_how_answers_lengths_are_known(fields: dict, words: str) -> None:
    caveat = levers(arrived(list("abba"), **{"usage": 10, **fields}), 0.1)["response_cache"].caveat
    assert words in caveat
    assert "answers count 4 a token" in caveat


def test_a_policy_that_allows_nothing_leaves_nothing_to_a_cache() -> None:
    columns = arrived(["a"] * 10, usage=10, max_tokens=10, temperature=0.7)
    found = summarise(columns, latency_s=0.1, policy="declared")
    lever = found.levers[0]
    assert (lever.saved_share, lever.recommended) == (0.0, False)
    assert "no request that the policy allows repeats" in lever.caveat
    assert found.headline.startswith(
        "nothing that the policy allows repeats enough to save GPU work"
    )


def test_the_caveat_of_a_cache_says_how_many_declare_that_they_may_be_repeated() -> None:
    columns = arrived(["a"] * 4, usage=10, max_tokens=10, temperature=[0.0, None, 1.0, 0.7])
    assert "25.0 % of requests declare" in levers(columns, 0.1)["response_cache"].caveat
    trace = levers(replace(columns, identities="prompts"), 0.1)
    assert "whether requests allow that is unknown" in trace["response_cache"].caveat


def test_settings_save_no_work_and_have_a_number_of_their_own() -> None:
    columns = arrived(["a"] * 100, in_flight=[*[3] * 98, 40, 60], usage=100, max_tokens=100)
    found = levers(columns, current_max_model_len=2048, max_num_seqs=32)
    assert all(found[code].saved_share is None for code in SETTINGS)
    assert found["max_model_len"].number == 8.0  # 2048 / 256
    # the 99th of 100 found 40 others; 41 * 2.5 = 102.5
    assert (found["batching"].number, found["batching"].recommended) == (41.0, True)
    assert "103 leaves headroom; max_num_seqs is 32" in found["batching"].caveat
    assert found["quantization"].number == 4.0
    assert headline(columns, max_num_seqs=32).endswith("; higher max_num_seqs")
    assert "higher" not in headline(columns, max_num_seqs=64)


def test_unknown_concurrency_and_length_recommend_nothing() -> None:
    columns = arrived(list("ab"), usage=5)
    found = levers(columns)
    assert found["batching"].number is None
    assert "concurrency is unknown" in found["batching"].caveat
    assert not found["max_model_len"].recommended
    assert found["max_model_len"].caveat.startswith("no recommendation: requests set no max")
    assert headline(columns) == "nothing repeats enough to save GPU work"


@pytest.mark.parametrize(
    ("usage", "max_tokens", "limits", "end"),
    [
        # 4000 * 1.15 = 4600, 18 * 256 = 4608
        (3000, 1000, {"current_max_model_len": 2048}, "max_model_len 4608 instead of 2048"),
        # a limit that serves all that came is not raised for its margin alone
        (3900, 100, {"current_max_model_len": 4096}, "max_model_len 4096 as it is"),
        (3900, 100, {"current_max_model_len": 3999}, "max_model_len 4608 instead of 3999"),
        # what the model can take at most is all there is to advise
        (3900, 100, {"current_max_model_len": 2048, "model_max_len": 2048}, "max_model_len 2048 as it is"),
        (14, 256, {"model_max_len": 300}, "max_model_len 300"),
    ],
)  # fmt: skip
def test_another_limit_is_advised_where_what_came_needs_it(
    usage: int, max_tokens: int, limits: dict, end: str
) -> None:
    columns = arrived(["a"], usage=usage, max_tokens=max_tokens)
    assert headline(columns, **limits).endswith(f"; {end}".replace("4096 as", f"{4096} as"))
    length = levers(columns, **limits)["max_model_len"]
    assert length.recommended is not end.endswith("as it is")
    if end.endswith(" 300"):
        assert "15 % of margin make 512, of which the model takes 300" in length.caveat


def test_max_tokens_far_above_what_answers_need_is_a_lever_of_its_own() -> None:
    generous = {"usage": 100, "max_tokens": 4096, "finish_reason": "stop"}
    found = levers(arrived(range(10), output_tokens=list(range(41, 51)), **generous))
    assert list(found)[3:5] == ["max_model_len", "max_tokens"]
    assert found["max_tokens"].number == pytest.approx(4096 / 50)
    assert "answers end by 50 tokens, max_tokens allows 4,096" in found["max_tokens"].caveat
    # four times as much and no less: 4096 / 1024
    for longest, is_lever in ((1024, True), (1025, False)):
        near = levers(arrived(range(10), output_tokens=longest, **generous))
        assert ("max_tokens" in near) is is_lever
    # half of the answers end at 20 by themselves, half at their limit of 20: those do not make the limit look generous
    columns = arrived(
        range(10), output_tokens=20, usage=10, max_tokens=[20] * 4 + [100] * 6,
        finish_reason=["length"] * 4 + ["stop"] * 5 + ["length"],
    )  # fmt: skip
    assert "max_tokens" not in levers(columns)


# --- Which requests a cache and single-flight would keep from the GPU -----------------------------------


def shares(prompts: str, ts: list[float], latencies: list[float]) -> tuple[float, float, float]:
    """Of equal requests: what a cache alone answers, single-flight alone, and both."""
    columns = arrived(list(prompts), ts=ts, latency_ms=[1e3 * one for one in latencies])
    cache, single = list(levers(columns).values())[:2]
    assert cache.standalone_share is not None
    assert single.standalone_share is not None
    both = (cache.saved_share or 0.0) + (single.saved_share or 0.0)
    return cache.standalone_share, single.standalone_share, both


@pytest.mark.parametrize(
    ("prompts", "ts", "latencies", "answered"),
    [
        # the first answer is there at 1.0. Alone, single-flight forgets: the third finds nobody under way and leads
        ("aaaa", [0.0, 0.5, 1.0, 1.2], [1.0] * 4, (2, 2, 3)),
        # ends 10, 2, 8: from 2 on the answer is there, though the first request still waits
        ("aaaa", [0.0, 1.0, 1.9, 2.0], [10.0, 1.0, 6.1, 1.0], (1, 3, 3)),
        # at no latency every repeat is a hit and nothing is ever joined
        ("abab", [0.0, 0.0, 0.0, 5.0], [0.0] * 4, (2, 0, 2)),
        ("aaabb", [3.0] * 5, [1.0] * 5, (0, 3, 3)),
    ],
)
def test_a_cache_answers_what_comes_after_the_first_answer_and_single_flight_what_comes_before(
    prompts: str, ts: list[float], latencies: list[float], answered: tuple[int, int, int]
) -> None:
    found = shares(prompts, ts, latencies)
    assert found == tuple(pytest.approx(one / len(prompts)) for one in answered)


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_random_requests_end_as_a_plain_replay_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ts = np.sort(rng.integers(0, 300, 1000) / 4).tolist()  # many at the same instant
    keys = "".join(chr(97 + one) for one in (rng.zipf(1.3, 1000) % 26).tolist())
    waits = (rng.integers(0, 12, 1000) / 4).tolist()
    answers: dict[str, float] = {}  # when a key's first answer is there
    calls: dict[str, float] = {}  # until when a key's call is under way, where nothing is ever kept
    cached = joined = 0
    for key, at, wait in zip(keys, ts, waits, strict=True):
        cached += answers.get(key, at + 1) <= at
        answers[key] = min(answers.get(key, at + wait), at + wait)
        if at < calls.get(key, at):
            joined += 1
        else:
            calls[key] = at + wait
    repeats = 1000 - len(set(keys))
    assert shares(keys, ts, waits) == tuple(
        pytest.approx(one / 1000) for one in (cached, joined, repeats)
    )


def test_without_times_only_the_order_counts_and_a_latency_is_of_no_use() -> None:
    found = levers(replace(arrived(list("aba")), arrivals=False), 1.0)
    assert found["response_cache"].saved_share == pytest.approx(1 / 3)
    assert "times are unknown" in found["response_cache"].caveat
    assert found["single_flight"].caveat.startswith("the source has no times")
