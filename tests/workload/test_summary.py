"""The whole report: what the contest's capture says, and what each kind of source leaves unknown."""

import json
import lzma
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arrived import arrived, body

from toolkit.records import Asked, Seen
from toolkit.workload import RequestColumns, Workload, columns, read, summarise

TRACE = Path(__file__).parents[1] / "data/traces/mooncake_conversation.jsonl.xz"


def contest(requests: int = 2000, **more: object) -> RequestColumns:
    """Two prompts in turns, each streamed and not, 50 a second."""
    return arrived(
        [n % 2 for n in range(requests)], ts=(np.arange(requests) / 50).tolist(), prompt_chars=[55, 33] * (requests // 2),
        max_tokens=256, stream=[n % 4 < 2 for n in range(requests)], client="locust", **more,
    )  # fmt: skip


def words(found: Workload) -> str:
    return " | ".join((*found.warnings, *found.unknown))


# --- Columns --------------------------------------------------------------------------------------------


def test_requests_stand_in_the_order_of_their_arrival_and_equal_keys_have_equal_numbers() -> None:
    first, spaced = body("a", 1), body("a", 2)
    raw = Asked(exact_key="c", prompt_key="q", body_bytes=10)  # a body without a canonical form
    laid = columns(
        Seen(ts=ts, asked=one) for ts, one in ((4.0, raw), (1.0, first), (3.0, raw), (2.0, spaced))
    )
    assert laid.ts.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert [laid.asked[code] for code in laid.exact.tolist()] == [first, spaced, raw, raw]
    assert laid.exact.tolist() == [0, 1, 2, 2]
    assert laid.request.tolist() == laid.prompt.tolist() == [0, 0, 1, 1]
    some = laid.part(np.array([False, True, False, True]))
    assert (some.ts.tolist(), some.exact.tolist()) == ([2.0, 4.0], [1, 2])


def test_what_is_damaged_asks_no_model_or_was_refused_is_counted_and_not_laid_out() -> None:
    one = body("a")
    unread = Asked(exact_key="d", body_bytes=9, problem="not JSON")
    laid = columns(
        [
            Seen(ts=1.0, damaged=True, asked=one),
            Seen(ts=2.0, method="GET", path="/metrics"),
            Seen(ts=3.0, asked=unread),
            # a client that left did ask
            *(Seen(ts=4.0, asked=one, status=status) for status in (200, 400, 499, 503, 503)),
        ]
    )
    assert (laid.damaged, laid.other, laid.refused) == (1, 2, {400: 1, 503: 2})
    assert laid.status.tolist() == [200, 499]


def test_usage_goes_before_what_the_request_says_and_unknown_is_nan_or_minus_one() -> None:
    one = body("a", prompt_tokens=7)
    whole = Seen(
        ts=1.0, asked=one, prompt_tokens=9, client="x", latency_ms=1500.0, finish_reason="length", cache="hit"
    )  # fmt: skip
    other = Seen(ts=3.0, asked=body("b", max_tokens=256), client="x")
    laid = columns([whole, Seen(ts=2.0, asked=one, client="y", finish_reason="stop"), other])
    nan = float("nan")
    for found, expected in (
        (laid.prompt_tokens, [9.0, 7.0, nan]),
        (laid.latency_s, [1.5, nan, nan]),
        (laid.per_request("max_tokens"), [nan, nan, 256.0]),
        (laid.finish_length, [1, 0, -1]),
        (laid.cache, [1, -1, -1]),
        (laid.client, [0, 1, 0]),
    ):
        np.testing.assert_array_equal(found, expected)
    assert laid.clients == ("x", "y")
    assert (len(columns([])), columns([]).per_request("n").tolist()) == (0, [])


# --- The report -----------------------------------------------------------------------------------------


def test_the_contests_report_says_what_the_winner_saw() -> None:
    found = summarise(contest(), latency_s=3.0, current_max_model_len=8192)
    assert found.headline == (
        "response cache, then single-flight; max_model_len 512 instead of 8192"
    )
    # a streamed and an unstreamed body of each prompt, which are one request to a cache
    assert (found.requests, found.unique_exact) == (2000, 4)
    assert (found.unique_canonical, found.unique_prompts) == (2, 2)
    assert found.top_share == {"1": 0.5, "2": 1.0, "10": 1.0, "100": 1.0}
    assert found.entropy_bits == pytest.approx(1.0, abs=0.001)
    assert (found.stream_share, found.recommended_max_model_len) == (0.5, 512)
    assert found.clients.clients == 1
    assert found.arrivals.requests_per_s == pytest.approx(50)
    assert found.concurrency.mean == pytest.approx(150)
    # four bodies, as streamed and unstreamed ones differ; two requests; two prompts
    assert found.forecast is not None
    assert found.forecast.exact[0].misses == 4
    assert found.hit_curve[0].misses == found.forecast.prompt[0].misses == 2
    assert all(cell.coalesced_ratio is not None for cell in found.hit_curve)


def some(values: list[Any]) -> st.SearchStrategy[Any]:
    return st.sampled_from([None, *values])


SEEN = st.builds(
    Seen,
    ts=st.sampled_from([-5.0, 0.0, 0.001, 7.5, 60.0, 1.8e9, 1e12]),
    client=some(["x", "y"]),
    status=some([200, 302, 500]),
    ttft_ms=some([0.0, 50.0]),
    latency_ms=some([0.0, 0.1, 1e6]),
    prompt_tokens=some([0, 1, 700]),
    output_tokens=some([0, 1, 300]),
    finish_reason=some(["stop", "length"]),
    in_flight=some([0, 90]),
    cache=some(["hit", "miss", "coalesced"]),
    asked=st.builds(
        body,
        st.sampled_from("abc"),
        st.sampled_from("xyz"),
        prompt_chars=some([0, 3, 10**9]),
        max_tokens=some([-1, 0, 4096, 10**18]),
        n=some([1, 10**9]),
        temperature=some([0.0, 1.0]),
        stream=some([True, False]),
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(SEEN, max_size=40),
    some([0.0, 3.0]),
    some([1, 8192]),
    some([1, 100_000]),
    st.sampled_from(["all", "declared"]),
    st.sampled_from(["bodies", "prompts", None]),
    st.booleans(),
)
def test_whatever_is_known_or_not_a_report_comes_out_whole(
    seen: list[Seen], latency_s: Any, current: Any, most: Any, policy: Any, identities: Any, timed: bool
) -> None:  # fmt: skip
    laid = columns(seen, identities=identities, arrivals=timed)
    found = summarise(
        laid, latency_s=latency_s, current_max_model_len=current, model_max_len=most, policy=policy
    )
    # NaN and Infinity are no JSON: unknown is null
    json.dumps(asdict(found), allow_nan=False)
    saved = [lever.saved_share for lever in found.levers if lever.saved_share is not None]
    assert all(share >= 0 for share in saved)
    assert sum(saved) <= 1 + 1e-9
    assert all(share is None or 0 <= share <= 1 for share in found.top_share.values())
    assert found.headline


def test_nothing_seen_is_all_unknown() -> None:
    found = summarise(arrived([]))
    assert (found.requests, found.headline) == (0, "no request to judge by")
    assert set(found.top_share.values()) == {None}
    assert found.entropy_bits is found.stream_share is found.recommended_max_model_len is None
    assert found.unknown == ("no request asked a model for anything: everything",)


def test_damaged_and_other_requests_are_counted_and_many_damaged_ones_warned_of() -> None:
    whole = [Seen(ts=float(n), asked=body("a")) for n in range(98)]
    lost = [Seen(ts=1.0, damaged=True), Seen(ts=2.0, damaged=True)]
    found = summarise(columns([*whole, *lost, Seen(ts=3.0, method="GET", path="/metrics")]))
    assert (found.requests, found.damaged, found.other) == (98, 2, 1)
    assert "2 of 100 requests were damaged" in words(found)
    assert "damaged" not in words(summarise(columns([*whole * 2, lost[0]])))


def test_what_was_not_followed_is_named_with_what_would_help() -> None:
    found = summarise(contest())
    for part in (
        "answers were not followed",
        "capture with --full",
        "latency is unknown",
        "100 % of prompts' tokens are an estimate",
    ):
        assert part in words(found)
    # of unknown latency no share of joined requests is known
    assert all(cell.coalesced_ratio is None and cell.hit_ratio for cell in found.hit_curve)
    full = contest(
        status=200, latency_ms=900.0, output_tokens=60, finish_reason="stop", in_flight=3, usage=20
    )
    assert summarise(full).unknown == ()


def test_a_given_latency_is_used_only_where_none_was_measured() -> None:
    def joined(latencies: list[float | None], latency_s: float) -> int:
        """Of requests at 0, 1, 2 and 3 s."""
        one = arrived(list("aaaa"), latency_ms=latencies)
        cells = summarise(one, latency_s=latency_s, sizes=(None,), ttls_s=(None,)).hit_curve
        return cells[0].coalesced

    assert joined([None] * 4, 2.5) == 2
    # the first answer's is the mean of those that were measured, 1.5 s
    assert joined([None, 1000.0, None, 2000.0], 9.0) == 1


def test_what_is_known_to_have_failed_fills_no_cache_and_counts_as_no_work() -> None:
    one = arrived(
        list("aaa"), status=[302, 200, 200], latency_ms=1.0, usage=10, output_tokens=[None, 5, 5]
    )
    found = summarise(one, sizes=(None,), ttls_s=(None,))
    # the second leads, as the first left no answer; one of two that did work is saved
    assert (found.hit_curve[0].hits, found.hit_curve[0].misses) == (1, 2)
    assert found.levers[0].saved_share == 0.5


@pytest.mark.slow
def test_of_conversations_the_report_says_prefix_cache_and_no_response_cache() -> None:
    # Mooncake's trace: 12,031 requests, 37.34 % of prompt tokens in whole blocks seen before, next to no equal requests
    with lzma.open(TRACE) as lines:
        source = read(lines, TRACE.name, client=str)
        found = summarise(columns(source.seen, identities=source.identities))
    assert found.prefix_share == pytest.approx(0.3734, abs=0.0001)
    assert found.headline.startswith("prefix cache; max_model_len ")
    prefix = found.levers[0]
    # of all work, reading 12,035 tokens a request on average and writing 343 that count 4 each: 0.3734 * 12,035 / 13,406
    assert prefix.code == "prefix_cache"
    assert prefix.saved_share == pytest.approx(
        0.3734 * 12_035.06 / (12_035.06 + 4 * 342.62), abs=1e-4
    )
    assert not found.levers[1].recommended
    assert found.arrivals.burstiness == "burstier"


def test_the_policy_comes_with_the_share_it_allows() -> None:
    one = arrived(["a"] * 4, temperature=[0.0, 0.0, 1.0, 1.0])
    assert summarise(one).eligible_share == 1.0
    declared = summarise(one, policy="declared")
    assert (declared.policy, declared.eligible_share) == ("declared", 0.5)


def test_statuses_latencies_and_a_cache_in_front_are_given_where_known() -> None:
    one = arrived(
        list("aaaab"), status=[200, 200, 302, 500, None], ttft_ms=[10.0, None, None, None, None],
        latency_ms=[100.0, 300.0, None, None, None], cache=["miss", "hit", "coalesced", "miss", None],
    )  # fmt: skip
    found = summarise(one).answers
    # what was refused is counted here, and nowhere else
    assert found.statuses == {"200": 2, "302": 1, "500": 1}
    assert found.error_share == pytest.approx(1 / 2)
    assert found.latency_ms is not None
    assert (found.latency_ms.p50, found.latency_ms.max) == (100, 300)
    assert found.ttft_ms is not None
    assert found.ttft_ms.count == 1
    assert (found.cache_told, found.cache_hit_ratio) == (3, pytest.approx(1 / 3))
    assert found.cache_coalesced_ratio == pytest.approx(1 / 3)
    assert "a cache in front answered 50.0 % of requests already" in words(summarise(one))
    assert "cache in front" not in words(summarise(arrived(list("ab"), cache="miss")))
    unseen = summarise(arrived(list("ab"))).answers
    assert (unseen.statuses, unseen.error_share, unseen.latency_ms) == ({}, None, None)


def test_where_nothing_says_which_requests_are_alike_nothing_that_repeats_is_known() -> None:
    # rows of a trace: each has a key of its own, so that none is lost
    rows = arrived(range(500), usage=100, output_tokens=50, body_bytes=0, client="x")
    found = summarise(replace(rows, identities=None), current_max_model_len=4096)
    assert found.unique_exact is found.unique_canonical is found.unique_prompts is None
    assert found.entropy_bits is found.prefix_share is found.stream_share is None
    assert set(found.top_share.values()) == {None}
    assert (found.hit_curve, found.forecast, found.distribution.zipf) == ((), None, None)
    assert (found.clients.clients, found.clients.top[0].requests) == (1, 500)
    assert found.clients.top[0].unique_prompts is found.clients.repeats_across_share is None
    assert found.headline == "what repeats is unknown; max_model_len 256 instead of 4096"
    for lever in found.levers[:3]:
        assert (lever.saved_share, lever.recommended) == (None, False)
        assert lever.caveat == "the source does not say which requests are alike"
    # lengths and arrivals are known all the same: 100 + 50, * 1.15 = 172.5
    assert found.lengths.output_tokens is not None
    assert found.arrivals.requests_per_s == 1.0
    assert "does not say which requests are alike" in words(found)


def test_where_only_prompts_tell_requests_apart_settings_are_unknown_and_that_is_said() -> None:
    rows = replace(arrived(list("aab"), usage=100, output_tokens=50), identities="prompts")
    found = summarise(rows)
    assert (found.unique_prompts, found.stream_share, found.mix.declared_share) == (2, None, None)
    assert found.levers[0].saved_share == pytest.approx(1 / 3)
    assert "hit ratios are upper bounds" in words(found)
    # what has no body has no bytes: nothing is said of them
    assert found.unique_exact is None
    assert found.forecast is not None
    assert found.forecast.exact == ()
    strict = summarise(rows, policy="declared")
    assert (strict.policy, strict.levers[0].saved_share) == ("all", found.levers[0].saved_share)
    assert "declare themselves repeatable is unknown" in words(strict)


def test_a_source_without_times_has_no_rates_no_calls_under_way_and_no_times_to_live() -> None:
    rows = replace(arrived(["a", "b"] * 50, usage=10, max_tokens=10), arrivals=False)
    found = summarise(rows, latency_s=5.0)
    assert found.arrivals.requests_per_s is found.arrivals.first_ts is None
    assert found.arrivals.why == "the source has no times"
    assert (found.concurrency.basis, found.concurrency.p99) == (None, None)
    assert {cell.ttl_s for cell in found.hit_curve} == {None}
    assert found.headline == "response cache; max_model_len 256"
    assert "has no times" in words(found)
    assert "spans" not in words(found)


def test_few_requests_and_a_short_capture_are_warned_of() -> None:
    short = words(summarise(contest(500)))
    assert "500 requests are few" in short
    # 500 / 50 s: answers that live 600 s have not ended
    assert "the capture spans 10 s: of times to live over 1 s" in short
    assert "spans 3 s: of times to live over 0.3 s" in words(
        summarise(arrived(list("aa"), ts=[0.0, 3.0]))
    )
    one = words(summarise(arrived(["a"], prompt_chars=40, max_tokens=9)))
    assert "1 request is few" in one
    assert "rests on 1 request:" in one
    long = arrived(["a"] * 1000, ts=(np.arange(1000) * 40.0).tolist())
    assert "spans" not in words(summarise(long, ttls_s=(60.0, 3600.0, None)))
    assert "bear the same time" in words(summarise(arrived(["a"] * 5, ts=[3.0] * 5)))


def test_shared_beginnings_are_listed_and_capacities_tried_where_beginnings_are_known() -> None:
    # 10 prompts of 10 blocks of 16 tokens, all with the same first 8 blocks
    blocks = [
        b"".join((n if n < 8 else 20 + 9 * k + n).to_bytes(8) for n in range(10)) for k in range(10)
    ]
    one = arrived(
        range(10), prompt_blocks=blocks, block_tokens=16.0, prompt_tokens=160, max_tokens=40
    )
    found = summarise(one, kv_blocks=(4,))
    # 9 * 8 of 100 blocks
    assert found.prefix_share == pytest.approx(0.72)
    assert found.prefixes.by_volume
    assert [cell.blocks for cell in found.prefixes.by_capacity] == [4]
    found = summarise(replace(one, beginnings=False), kv_blocks=(4,))
    assert (found.prefix_share, found.prefixes.share, found.prefixes.by_capacity) == (
        None,
        None,
        (),
    )
    assert "how prompts begin" in words(found)


def test_sizes_beyond_the_first_that_holds_every_key_are_left_out_unless_asked_for() -> None:
    def sizes(**more: Any) -> list[int | None]:
        return [cell.size for cell in summarise(contest(100), ttls_s=(None,), **more).hit_curve]

    assert sizes() == [10, None]
    assert sizes(sizes=(1, 2, 500, None)) == [1, 2, 500, None]
