"""Findings: what a person should know about a host, and when it is not said; and where its history is cut."""

from dataclasses import replace

import pytest

from toolkit.records import Host, Sighting
from toolkit.scout.findings import chapters, findings, full_length_requests
from toolkit.scout.pages import METRICS, PageAnswer, Scrape
from toolkit.scout.sighting import HostEvidence, examine

HEALTHY = Sighting(
    name="alice", url="http://h:1", at=1000.0, status="ok", engine="vllm", version="0.32.0",
    model="tiny", models=("tiny",), max_model_len=512, gpu_memory_utilization=0.92,
    kv_cache_tokens=2048, kv_cache_max_concurrency=4.0, prefix_caching=True, running=2.0,
    waiting=0.0, preemptions_total=0.0, requests_total=10.0, config_hash="aaa", started_at=900.0,
)  # fmt: skip
DOWN = Sighting(name="alice", url="http://h:1", at=0, status="down")


def evidence(**answers: PageAnswer) -> HostEvidence:
    found = {METRICS: PageAnswer(status=404)} | {f"/{path}": each for path, each in answers.items()}
    return examine(Scrape(host=Host(name="alice", url="http://h:1"), at=0, answers=found))


def found(
    now: Sighting, before: Sighting | None = None, **answers: PageAnswer
) -> list[tuple[str, str]]:
    return [(each.code, each.text) for each in findings(now, evidence(**answers), before)]


MANY = tuple(f"lora-{number}" for number in range(2000))


@pytest.mark.parametrize(
    ("changed", "earlier", "code", "text"),
    [
        ({"waiting": 18.0, "running": 14.0}, None, "waiting", "18 requests wait while 14 run"),
        # a number no host can mean
        ({"waiting": 1e300}, None, "waiting", "1e+300 requests wait while 2 run"),
        (
            {"preemptions_total": 1234.0}, None, "preemptions",
            "1,234 preemptions: the KV cache ran out and work was redone",
        ),
        (
            {"prefix_caching": False}, None, "prefix_caching_off",
            "prefix caching is off: equal prompt starts are recomputed",
        ),
        (
            {"gpu_memory_utilization": 0.84}, None, "low_gpu_memory_utilization",
            "gpu_memory_utilization 0.84: the rest of the GPU's memory holds no KV cache",
        ),
        (
            # the contest's first-token host: 661 blocks of 16 = 10,576 tokens; at 8,192 a request that is 1.29
            {"kv_cache_tokens": 661 * 16, "max_model_len": 8192, "kv_cache_max_concurrency": None},
            None, "few_kv_tokens", "10,576 KV tokens hold only 1.3 requests of 8,192 tokens",
        ),
        (
            # a hybrid's tokens are an equivalent: 4,096 / 512 = 8, but the server itself says 3
            {"kv_cache_tokens": 4096, "kv_cache_max_concurrency": 3.0},
            None, "few_kv_tokens", "4,096 KV tokens hold only 3.0 requests of 512 tokens",
        ),
        (
            {"started_at": 1700000000.0}, {}, "restarted",
            "restarted at 2023-11-14 22:13:20 UTC: its counters began anew",
        ),
        (
            {"started_at": None, "requests_total": 3.0}, {"started_at": None}, "restarted",
            "counters began anew since the last sighting: another process answers",
        ),
        (
            {"config_hash": "b", "max_model_len": 8192, "kv_cache_max_concurrency": 9.0, "models": ("tiny", "lora")},
            {"prefix_caching": False}, "config_changed",
            "models tiny -> tiny,lora; max_model_len 512 -> 8192; prefix_caching off -> on",
        ),
        (
            {"config_hash": "b"}, {}, "config_changed",
            "a setting changed that the table does not show (see the raw labels)",
        ),
        (
            # thousands of models do not fill the screen
            {"config_hash": "b", "models": (*MANY, "new")}, {"models": MANY}, "config_changed",
            "models lora-0,lora-1,lora-2,lora-3 and 1,996 more -> lora-0,lora-1,lora-2,lora-3 and 1,997 more",
        ),
    ],
)  # fmt: skip
def test_what_a_sighting_shows_is_said(
    changed: dict[str, object], earlier: dict[str, object] | None, code: str, text: str
) -> None:
    before = None if earlier is None else replace(HEALTHY, **earlier)
    assert found(replace(HEALTHY, **changed), before) == [(code, text)]


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (HEALTHY, HEALTHY),
        (DOWN, HEALTHY),
        (replace(HEALTHY, prefix_caching=None), None),
        (replace(HEALTHY, gpu_memory_utilization=0.85), None),
        # a counter that stands, and a clock that was put right, are no restart
        (replace(HEALTHY, started_at=None), replace(HEALTHY, started_at=None)),
        (replace(HEALTHY, started_at=900.4), HEALTHY),
        # nor is a page that was closed once a change
        (replace(HEALTHY, config_hash=None, model=None), HEALTHY),
    ],
)
def test_what_is_well_or_unknown_is_no_finding(now: Sighting, before: Sighting | None) -> None:
    assert found(now, before) == []


def test_vllms_own_concurrency_counts_before_tokens_by_length() -> None:
    assert full_length_requests(replace(HEALTHY, kv_cache_max_concurrency=3.0)) == 3.0
    assert full_length_requests(replace(HEALTHY, kv_cache_max_concurrency=None)) == 4.0
    assert full_length_requests(DOWN) is None


# --- pages ----------------------------------------------------------------------------------------------

LOAD = PageAnswer(status=200, body=b'vllm:num_requests_running{engine="0",model_name="m"} 1\n')
KEYED = replace(LOAD, with_key=True)
LONG = "vllm:num_requests_waiting 0\n" + "".join(
    f'vllm:num_requests_running{{engine="{n}",model_name="m"}} 1\n' for n in range(60_000)
)


@pytest.mark.parametrize(
    ("answers", "codes"),
    [
        ({"metrics": LOAD}, ["metrics_open"]),
        ({"metrics": KEYED}, []),
        ({"invocations": PageAnswer(status=405, allow="POST")}, ["inference_open"]),
        ({"invocations": PageAnswer(status=405, allow="GET, POST")}, ["inference_open"]),
        ({"invocations": PageAnswer(status=401, allow="POST")}, []),
        ({"invocations": PageAnswer(status=405)}, []),
        ({"invocations": PageAnswer(status=200)}, []),
        ({"metrics": replace(KEYED, body=LONG.encode())}, ["metrics_cut"]),
    ],
)
def test_what_is_open_to_anyone_or_too_long_is_said(
    answers: dict[str, PageAnswer], codes: list[str]
) -> None:
    assert [code for code, _ in found(HEALTHY, **answers)] == codes


def test_lines_that_could_not_be_read_are_counted_and_the_first_is_shown_clean() -> None:
    page = replace(KEYED, body=LOAD.body + b"}garbage{ \x1b[31m\nmore garbage =\n")
    ((code, text),) = found(HEALTHY, metrics=page)
    assert code == "bad_metric_lines"
    assert text.startswith("2 lines of `/metrics` could not be read, the first: }garbage{")
    assert "\x1b" not in text


def proxied(*lines: str, **requests: int) -> PageAnswer:
    page = ['toolkit_proxy_build_info{version="0.1.0"} 1.0', *lines]
    for cache, count in requests.items():
        labels = f'{{cache="{cache}",code="2xx",model="tiny"}}'
        page.append(f"toolkit_proxy_requests_total{labels} {count}")
    return PageAnswer(status=200, body="\n".join([*page, ""]).encode())


OFF = 'toolkit_proxy_bypasses_total{reason="off"} 12.0'
HITS = "a response cache answers: hit ratio"
UNASKED = "a response cache stands in front; no request has asked it yet"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (
            # 1,120 of 1,204 are 93.02 %; what went past the cache is not of them
            proxied(hit=1120, miss=84, bypass=5000),
            f"{HITS} 93.0 % of 1,204 cacheable requests",
        ),
        (
            proxied(hit=1, coalesced=2, miss=1),
            f"{HITS} 25.0 % of 4 cacheable requests, and 2 shared another one's answer as it came",
        ),
        (proxied(miss=1), f"{HITS} 0 % of 1 cacheable request"),
        (proxied(), UNASKED),
        (proxied(bypass=12), UNASKED),
        (proxied(hit=9, miss=-5), "a response cache answers"),
        # one that is off is none; one that was off for a team, or merely looked at, is one all the same
        (proxied(OFF, bypass=12), None),
        (
            proxied(OFF, bypass=12, hit=1),
            f"{HITS} 100 % of 1 cacheable request",
        ),
        # not without the proxy's own name on the page
        (PageAnswer(status=200, body=b'toolkit_proxy_requests_total{cache="hit"} 5\n'), None),
    ],
)  # fmt: skip
def test_a_response_cache_is_said_with_its_hit_ratio(page: PageAnswer, text: str | None) -> None:
    assert found(HEALTHY, metrics=page) == ([("response_cache", text)] if text else [])


# --- history: cut where something changed, nowhere else ------------------------------------------------------------

FIRST = replace(HEALTHY, at=1.0, version="0.31.0", config_hash="a", started_at=0.0)
OUTAGE = replace(DOWN, at=2.0, error="refused")
SHORT = replace(FIRST, status="degraded", error="slow", started_at=None, config_hash=None)
RESTARTED = replace(FIRST, started_at=2.5, requests_total=0.0)
NEWER = replace(RESTARTED, version="0.32.0", config_hash="b")


@pytest.mark.parametrize(
    ("sightings", "cuts"),
    [
        ([], []),
        ([FIRST] * 5, [(5, ("first seen",))]),
        (
            # compared with the last sighting that had settings, not with the outage between
            [FIRST, OUTAGE, OUTAGE, NEWER, NEWER],
            [
                (1, ("first seen",)), (2, ("ok -> down: refused",)),
                (2, ("down -> ok", "restarted", "version 0.31.0 -> 0.32.0")),
            ],
        ),
        ([FIRST, OUTAGE, FIRST], [(1, ("first seen",)), (1, ("ok -> down: refused",)), (1, ("down -> ok",))]),
        # one that was cut short neither hides nor invents a change
        ([FIRST, SHORT, FIRST], [(1, ("first seen",)), (1, ("ok -> degraded: slow",)), (1, ("degraded -> ok",))]),
        (
            [FIRST, SHORT, RESTARTED],
            [(1, ("first seen",)), (1, ("ok -> degraded: slow",)), (1, ("degraded -> ok", "restarted"))],
        ),
    ],
)  # fmt: skip
def test_a_chapter_begins_where_something_changed(
    sightings: list[Sighting], cuts: list[tuple[int, tuple[str, ...]]]
) -> None:
    at = [replace(each, at=float(place)) for place, each in enumerate(sightings)]
    cut = chapters(at)
    assert [(chapter.sightings, chapter.changes) for chapter in cut] == cuts
    assert [chapter.last.at - chapter.first.at + 1 for chapter in cut] == [n for n, _ in cuts]
