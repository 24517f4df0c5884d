"""The whole report: what the contest's capture tells, and what each kind of source leaves unknown."""

import json
import lzma
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arrived import arrived

from toolkit.records import Seen
from toolkit.workload import RequestColumns, columns, read
from toolkit.workload.summary import (
    ReportSettings,
    Workload,
    latencies,
    summarise,
)

ROBOT = "Write a 50-word story about a robot exploring a garden."
CAPITAL = "What is the capital of Singapore?"
TRACE = Path(__file__).parents[1] / "data/traces/mooncake_conversation.jsonl.xz"
FIXED = (
    "requests unique_exact unique_canonical unique_prompts top_share entropy_bits stream_share hit_curve prefix_share"
    " recommended_max_model_len levers"
).split()
"""The keys that are promised: README has them."""


def contest(requests: int = 2000, **told: object) -> RequestColumns:
    texts = [(ROBOT, CAPITAL)[n % 2] for n in range(requests)]
    stream = [n % 4 < 2 for n in range(requests)]
    return arrived(
        texts, ts=(np.arange(requests) / 50).tolist(), prompt_chars=[len(text) for text in texts],
        max_tokens=256, stream=stream, client="locust", **told,
    )  # fmt: skip


def words(found: Workload) -> str:
    return " | ".join((*found.warnings, *found.unknown))


def test_the_contests_report_tells_what_the_winner_saw() -> None:
    found = summarise(contest(), options=ReportSettings(latency_s=3.0, current_max_model_len=8192))
    assert found.headline == (
        "response cache, then single-flight; max_model_len 512 instead of 8192"
    )
    # a streamed and an unstreamed body of each prompt, which are one request to a cache
    assert (found.requests, found.unique_exact) == (2000, 4)
    assert (found.unique_canonical, found.unique_prompts) == (2, 2)
    assert found.top_share == {"1": 0.5, "2": 1.0, "10": 1.0, "100": 1.0}
    assert found.entropy_bits == pytest.approx(1.0, abs=0.001)
    assert found.stream_share == 0.5
    assert found.recommended_max_model_len == 512
    assert found.clients.clients == 1
    assert found.arrivals.requests_per_s == pytest.approx(50)
    assert found.concurrency.mean == pytest.approx(150)


def test_it_becomes_json_with_the_promised_keys_and_plain_values() -> None:
    found = json.loads(json.dumps(asdict(summarise(contest(200)))))
    assert set(FIXED) <= set(found)
    assert set(found["top_share"]) == {"1", "2", "10", "100"}
    assert {"code", "saved_share", "caveat"} <= set(found["levers"][0])
    assert {"size", "ttl_s", "hit_ratio", "coalesced_ratio"} <= set(found["hit_curve"][0])


@pytest.mark.parametrize(
    "one",
    [
        arrived([]),
        arrived(["a"]),
        arrived(range(50), usage=9, max_tokens=9),
        arrived(list("ab"), usage=9, max_tokens=9),
        arrived([("a", "b")[n % 2] if n % 20 else n for n in range(400)], prompt_chars=40),
        arrived(["a", "b"] * 30, ts=[4.0] * 60, max_tokens=9, prompt_chars=9),
        arrived(list("aab"), stream=True, status=200, output_tokens=9, latency_ms=5.0),
        arrived(list("aab"), status=[200, None, 500], output_tokens=[None, 7, None], usage=7),
        arrived(range(30), ts=[0.0] * 15 + [1.8e9] * 15),
        arrived(list("ab"), ts=[-5.0, 1e12], max_tokens=[0, 10**9], prompt_chars=[0, 10**9]),
    ],
    ids="none one all-unique two 95-5 instant streams missing jump absurd".split(),
)
@pytest.mark.parametrize(
    "options", [ReportSettings(), ReportSettings(latency_s=2.0, policy="declared")]
)
def test_every_kind_of_capture_is_told_in_numbers_that_json_knows(
    one: RequestColumns, options: ReportSettings
) -> None:
    found = summarise(one, options=options)
    # NaN and Infinity are no JSON: unknown is null
    json.dumps(asdict(found), allow_nan=False)
    shares = [share for share in found.top_share.values() if share is not None]
    assert all(0 <= share <= 1 for share in shares)
    assert all(lever.saved_share is None or 0 <= lever.saved_share <= 1 for lever in found.levers)
    assert found.headline


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_known_or_not_a_report_comes_out_whole(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 60))

    def some(values: list[Any]) -> list[Any]:
        known = rng.random() ** 2
        return [
            values[rng.integers(len(values))] if rng.random() < known else None
            for _ in range(count)
        ]

    one = arrived(
        rng.integers(0, rng.integers(1, 60), count).tolist(),
        ts=(np.round(rng.random(count) * 10 ** rng.uniform(-3, 6), 3)).tolist(),
        client=some(["x", "y"]), usage=some([0, 1, 700]), prompt_chars=some([0, 3, 5000]),
        max_tokens=some([0, 1, 4096]), n=some([1, 5]), output_tokens=some([0, 1, 300]),
        finish_reason=some(["stop", "length"]), status=some([200, 500]), in_flight=some([0, 90]),
        latency_ms=some([0.0, 0.1, 1e6]), ttft_ms=some([0.0, 50.0]), temperature=some([0.0, 1.0]),
        cache=some(["hit", "miss"]), stream=some([True, False]),
    )  # fmt: skip
    options = ReportSettings(
        latency_s=[None, 0.0, 3.0][rng.integers(3)],
        current_max_model_len=[None, 1, 8192][rng.integers(3)],
        model_max_len=[None, 1, 100_000][rng.integers(3)],
        max_num_seqs=[None, 1][rng.integers(2)],
        policy=(["all", "declared"])[rng.integers(2)],  # type: ignore[arg-type]
    )
    one = replace(
        one,
        identities=["bodies", "prompts", None][rng.integers(3)],  # type: ignore[arg-type]
        arrivals=bool(rng.integers(4)),
    )
    found = summarise(one, options=options)
    json.dumps(asdict(found), allow_nan=False)
    saved = [lever.saved_share for lever in found.levers if lever.saved_share is not None]
    assert all(share >= 0 for share in saved)
    assert sum(saved) <= 1 + 1e-9


def test_nothing_seen_is_all_unknown() -> None:
    found = summarise(arrived([]))
    assert (found.requests, found.headline) == (0, "no request to judge by")
    assert set(found.top_share.values()) == {None}
    assert found.entropy_bits is found.stream_share is found.recommended_max_model_len is None
    assert found.unknown == ("no request asked a model for anything: everything",)


def test_damaged_and_other_requests_are_told_and_many_damaged_ones_warned_of() -> None:
    body = arrived(["a"]).asked[0]
    whole = [Seen(ts=float(n), asked=body) for n in range(98)]
    lost = [Seen(ts=1.0, damaged=True), Seen(ts=2.0, damaged=True)]
    found = summarise(columns([*whole, *lost, Seen(ts=3.0, method="GET", path="/metrics")]))
    assert (found.requests, found.damaged, found.other) == (98, 2, 1)
    assert "2 of 100 requests were damaged" in words(found)
    assert "damaged" not in words(summarise(columns([*whole * 2, lost[0]])))


def test_what_was_not_followed_is_named_with_what_would_tell_it() -> None:
    told = words(summarise(contest()))
    assert "answers were not followed" in told
    assert "capture with --full" in told
    assert "latency is unknown" in told
    assert "100 % of prompts' tokens are an estimate" in told
    full = contest(
        status=200, latency_ms=900.0, output_tokens=60, finish_reason="stop", in_flight=3, usage=20
    )
    assert summarise(full).unknown == ()


def test_a_given_latency_is_used_only_where_none_was_measured() -> None:
    assert latencies(arrived(list("ab")), ReportSettings()) is None
    given = latencies(arrived(list("ab")), ReportSettings(latency_s=2.0))
    partly = arrived(list("abc"), latency_ms=[1000.0, None, 3000.0])
    measured = latencies(partly, ReportSettings(latency_s=9.0))
    assert latencies(replace(partly, arrivals=False), ReportSettings()) is None
    assert given is not None
    assert measured is not None
    assert given.tolist() == [2.0, 2.0]
    assert measured.tolist() == [1.0, 2.0, 3.0]


def test_what_is_known_to_have_failed_fills_no_cache_and_counts_as_no_work() -> None:
    one = arrived(
        list("aaa"), status=[302, 200, 200], latency_ms=1.0, usage=10, output_tokens=[None, 5, 5]
    )
    found = summarise(one, options=ReportSettings(sizes=(None,), ttls_s=(None,)))
    # the second leads, as the first left no answer; one of two that did work is saved
    assert (found.hit_curve[0].hits, found.hit_curve[0].misses) == (1, 2)
    assert found.levers[0].saved_share == 0.5


@pytest.mark.parametrize("latency_s", [0.0, 0.3, 5.0])
def test_levers_and_the_replay_of_an_endless_cache_count_the_same_requests(
    latency_s: float,
) -> None:
    rng = np.random.default_rng(4)
    one = arrived((rng.zipf(1.4, 3000) % 200).tolist(), ts=np.sort(rng.random(3000) * 60).tolist())
    found = summarise(
        one, options=ReportSettings(latency_s=latency_s, sizes=(None,), ttls_s=(None,))
    )
    (cell,) = found.hit_curve
    cache, single_flight, _ = found.levers[:3]
    assert cache.saved_share is not None
    assert single_flight.saved_share is not None
    assert cell.hits + cell.coalesced == 3000 - (found.unique_canonical or 0)
    # all bodies cost the same here; with one latency for all, what the cache alone misses is what joins
    assert cache.saved_share == pytest.approx(cell.hits / 3000)
    assert single_flight.saved_share == pytest.approx(cell.coalesced / 3000)


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


def test_of_unknown_latency_no_share_of_joined_requests_is_told() -> None:
    cells = summarise(contest(100)).hit_curve
    assert all(cell.coalesced_ratio is None and cell.hit_ratio is not None for cell in cells)
    assert all(
        cell.coalesced_ratio is not None
        for cell in summarise(contest(100), options=ReportSettings(latency_s=1.0)).hit_curve
    )


def test_the_policy_is_told_with_the_share_it_allows() -> None:
    one = arrived(["a"] * 4, temperature=[0.0, 0.0, 1.0, 1.0])
    assert summarise(one).eligible_share == 1.0
    declared = summarise(one, options=ReportSettings(policy="declared"))
    assert (declared.policy, declared.eligible_share) == ("declared", 0.5)


def test_statuses_latencies_and_a_cache_in_front_are_told_where_known() -> None:
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


def test_where_nothing_tells_requests_alike_nothing_that_repeats_is_told() -> None:
    # rows of a trace: each has a key of its own, so that none is lost
    rows = arrived(range(500), usage=100, output_tokens=50, body_bytes=0, client="x")
    rows = replace(rows, identities=None)
    found = summarise(rows, options=ReportSettings(current_max_model_len=4096))
    assert found.unique_exact is found.unique_canonical is found.unique_prompts is None
    assert found.entropy_bits is found.prefix_share is found.stream_share is None
    assert set(found.top_share.values()) == {None}
    assert (found.hit_curve, found.forecast) == ((), None)
    assert (found.distribution.requests, found.distribution.zipf) == (500, None)
    assert (found.clients.clients, found.clients.top[0].requests) == (1, 500)
    assert found.clients.top[0].unique_prompts is found.clients.repeats_across_share is None
    assert found.headline == "what repeats is unknown; max_model_len 256 instead of 4096"
    for lever in found.levers[:3]:
        assert (lever.saved_share, lever.recommended) == (None, False)
        assert lever.caveat == "the source does not tell which requests are alike"
    # lengths and arrivals are told all the same: 100 + 50, * 1.15 = 172.5
    assert found.lengths.output_tokens is not None
    assert found.arrivals.requests_per_s == 1.0
    assert "does not tell which requests are alike" in words(found)


def test_where_only_prompts_tell_requests_apart_settings_are_unknown_and_that_is_said() -> None:
    rows = arrived(list("aab"), usage=100, output_tokens=50, body_bytes=0)
    rows = replace(rows, identities="prompts")
    found = summarise(rows)
    assert (found.unique_prompts, found.stream_share, found.mix.declared_share) == (2, None, None)
    assert found.levers[0].saved_share == pytest.approx(1 / 3)
    assert "hit ratios are upper bounds" in words(found)
    # what has no body has no bytes: nothing is told of them
    assert found.unique_exact is None
    assert found.forecast is not None
    assert found.forecast.exact == ()
    strict = summarise(rows, options=ReportSettings(policy="declared"))
    assert (strict.policy, strict.levers[0].saved_share) == ("all", found.levers[0].saved_share)
    assert "declare themselves repeatable is unknown" in words(strict)


def test_a_source_without_times_has_no_rates_no_flights_and_no_times_to_live() -> None:
    rows = replace(arrived(["a", "b"] * 50, usage=10, max_tokens=10), arrivals=False)
    found = summarise(rows, options=ReportSettings(latency_s=5.0))
    assert found.arrivals.requests_per_s is found.arrivals.first_ts is None
    assert found.arrivals.why == "the source tells no times"
    assert (found.concurrency.basis, found.concurrency.p99) == (None, None)
    assert {cell.ttl_s for cell in found.hit_curve} == {None}
    assert found.headline == "response cache; max_model_len 256"
    assert found.levers[0].saved_share == pytest.approx(0.98)
    assert "times are unknown" in found.levers[0].caveat
    assert found.levers[1].caveat.startswith("the source tells no times")
    assert "tells no times" in words(found)
    assert "spans" not in words(found)


def test_few_requests_and_a_short_capture_are_warned_of() -> None:
    short = words(summarise(contest(500)))
    assert "500 requests are few" in short
    # 500 / 50 s: answers that live 600 s have not ended
    assert "the capture spans 10 s: of times to live over 1 s" in short
    two = words(summarise(arrived(list("aa"), ts=[0.0, 3.0])))
    # 3 s / 10
    assert "the capture spans 3 s: of times to live over 0.3 s" in two
    one = words(summarise(arrived(["a"], prompt_chars=40, max_tokens=9)))
    assert "1 request is few" in one
    assert "rests on 1 request:" in one
    long = arrived(["a"] * 1000, ts=(np.arange(1000) * 40.0).tolist())
    assert "spans" not in words(
        summarise(long, options=ReportSettings(ttls_s=(60.0, 3600.0, None)))
    )


def test_times_that_are_all_the_same_are_warned_of() -> None:
    assert "bear the same time" in words(summarise(arrived(["a"] * 5, ts=[3.0] * 5)))


def test_a_part_of_the_requests_keeps_its_bodies_and_numbers() -> None:
    whole = arrived(list("abca"), max_tokens=[1, 2, 3, 1], client=["x", "y", "x", "y"])
    some = whole.part(np.array([False, True, False, True]))
    assert some.ts.tolist() == [1.0, 3.0]
    assert [some.asked[code].max_tokens for code in some.exact.tolist()] == [2, 1]
    assert [some.clients[code] for code in some.client.tolist()] == ["y", "y"]
    assert some.per_request("max_tokens").tolist() == [2, 1]


def test_the_forecast_tells_what_other_keys_would_find_and_the_chance_of_a_repeat() -> None:
    found = summarise(contest(2000)).forecast
    assert found is not None
    # four bodies, as streamed and unstreamed ones differ; two requests; two prompts
    assert found.exact[0].misses == 4
    assert found.canonical[0].misses == found.prompt[0].misses == 2
    assert found.chance.ratio == 1.0
    assert found.recommended_size is not None
    assert all(cell.coalesced_ratio is None for cell in (*found.exact, *found.prompt))


def test_shared_beginnings_are_listed_and_capacities_tried() -> None:
    # 10 prompts of 10 blocks of 16 tokens, all with the same first 8 blocks
    chains = [
        b"".join(bytes([n if n < 8 else 20 + 9 * k + n] * 8) for n in range(10)) for k in range(10)
    ]
    one = arrived(
        range(10), prompt_blocks=chains, block_tokens=16.0, prompt_tokens=160, max_tokens=40
    )
    found = summarise(one, options=ReportSettings(kv_blocks=(4,)))
    # 9 * 8 of 100 blocks
    assert found.prefix_share == pytest.approx(0.72)
    assert found.prefixes.by_volume
    assert [cell.blocks for cell in found.prefixes.by_capacity] == [4]
    # 9 * 128 of 10 * (160 + 4 * 40)
    assert found.headline.startswith("prefix cache; ")
    assert found.levers[0].code == "prefix_cache"
    assert found.levers[0].saved_share == pytest.approx(9 * 128 / 3200)


def test_where_beginnings_are_unknown_no_prefix_share_is_told() -> None:
    laid = contest()
    assert summarise(laid).prefix_share == 0.0
    found = summarise(replace(laid, beginnings=False))
    assert (found.prefix_share, found.prefixes.share) == (None, None)
    [lever] = [one for one in found.levers if one.code == "prefix_cache"]
    assert (lever.saved_share, lever.recommended) == (None, False)
    assert "how prompts begin" in words(found)


def test_sizes_beyond_the_first_that_holds_every_key_are_left_out_unless_asked_for() -> None:
    def sizes(options: ReportSettings) -> list[int | None]:
        return [cell.size for cell in summarise(contest(100), options=options).hit_curve]

    assert sizes(ReportSettings(ttls_s=(None,))) == [10, None]
    assert sizes(ReportSettings(sizes=(1, 2, 500, None), ttls_s=(None,))) == [1, 2, 500, None]
