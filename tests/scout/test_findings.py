"""Findings: what a person should know about a host, and when it is not said."""

from dataclasses import replace

import pytest

from toolkit.records import Host, Sighting
from toolkit.scout.answers import INVOCATIONS, METRICS, PageAnswer, Scrape
from toolkit.scout.findings import chapters, findings, full_length_requests
from toolkit.scout.sighting import HostEvidence, examine

HEALTHY = Sighting(
    name="alice",
    url="http://h:1",
    at=1000.0,
    status="ok",
    engine="vllm",
    version="0.32.0",
    model="tiny",
    models=("tiny",),
    max_model_len=512,
    gpu_memory_utilization=0.92,
    kv_cache_tokens=2048,
    kv_cache_max_concurrency=4.0,
    prefix_caching=True,
    running=2.0,
    waiting=0.0,
    preemptions_total=0.0,
    requests_total=10.0,
    config_hash="aaa",
    started_at=900.0,
)


def evidence(**answers: PageAnswer) -> HostEvidence:
    pages = {METRICS: PageAnswer(status=404)} | {
        f"/{path}": answer for path, answer in answers.items()
    }
    return examine(Scrape(host=Host(name="alice", url="http://h:1"), at=0, answers=pages))


def codes(now: Sighting, before: Sighting | None = None, **answers: PageAnswer) -> list[str]:
    return [finding.code for finding in findings(now, evidence(**answers), before)]


def text(now: Sighting, before: Sighting | None = None, **answers: PageAnswer) -> str:
    (finding,) = findings(now, evidence(**answers), before)
    return finding.text


def test_a_healthy_host_has_no_findings() -> None:
    assert codes(HEALTHY, HEALTHY) == []


def test_what_is_unknown_is_no_finding() -> None:
    assert codes(Sighting(name="bob", url="http://h:2", at=0, status="down"), HEALTHY) == []


def test_a_queue_is_told_with_its_length() -> None:
    assert text(replace(HEALTHY, waiting=18.0, running=14.0)) == "18 requests wait while 14 run"


def test_preemptions_are_told_with_their_number() -> None:
    assert text(replace(HEALTHY, preemptions_total=1234.0)).startswith("1,234 preemptions")


def test_prefix_caching_off_is_told_and_unknown_is_not() -> None:
    assert codes(replace(HEALTHY, prefix_caching=False)) == ["prefix_caching_off"]
    assert codes(replace(HEALTHY, prefix_caching=None)) == []


@pytest.mark.parametrize(
    ("share", "told"), [(0.46, True), (0.84, True), (0.85, False), (0.9, False)]
)
def test_memory_left_unused_is_told(share: float, told: bool) -> None:
    assert (
        codes(replace(HEALTHY, gpu_memory_utilization=share))
        == ["low_gpu_memory_utilization"] * told
    )


def test_few_kv_tokens_are_told_by_the_contests_figures() -> None:
    # the first-token host: 661 blocks of 16 = 10,576 tokens; at 8,192 a request that is 1.29
    host = replace(
        HEALTHY, kv_cache_tokens=661 * 16, max_model_len=8192, kv_cache_max_concurrency=None
    )
    assert text(host) == "10,576 KV tokens hold only 1.3 requests of 8,192 tokens"


def test_vllms_own_concurrency_counts_before_tokens_by_length() -> None:
    # a hybrid's tokens are an equivalent: 4,096 / 512 = 8, but the server itself says 3
    host = replace(HEALTHY, kv_cache_tokens=4096, kv_cache_max_concurrency=3.0)
    assert full_length_requests(host) == 3.0
    assert codes(host) == ["few_kv_tokens"]


def test_a_restart_is_seen_by_the_start_time() -> None:
    now = replace(HEALTHY, started_at=1700000000.0)
    assert text(now, HEALTHY) == "restarted at 2023-11-14 22:13:20 UTC: its counters began anew"


def test_a_restart_is_seen_by_a_counter_that_went_back() -> None:
    before = replace(HEALTHY, started_at=None)
    assert codes(replace(before, requests_total=3.0), before) == ["restarted"]
    assert codes(replace(before, requests_total=10.0), before) == []


def test_a_clock_correction_is_no_restart() -> None:
    assert codes(replace(HEALTHY, started_at=900.4), HEALTHY) == []


def test_a_changed_configuration_names_each_setting_old_and_new() -> None:
    now = replace(
        HEALTHY, config_hash="bbb", max_model_len=8192, prefix_caching=True, models=("tiny", "lora")
    )
    before = replace(HEALTHY, prefix_caching=False)
    found = {finding.code: finding.text for finding in findings(now, evidence(), before)}
    assert found["config_changed"] == (
        "models tiny -> tiny,lora; max_model_len 512 -> 8192; prefix_caching off -> on"
    )


def test_a_setting_that_is_not_shown_still_counts_as_changed() -> None:
    assert text(replace(HEALTHY, config_hash="bbb"), HEALTHY).startswith("a setting changed")


def test_a_page_that_was_closed_once_is_no_change() -> None:
    assert codes(replace(HEALTHY, config_hash=None, model=None), HEALTHY) == []


def test_a_host_with_thousands_of_models_does_not_fill_the_screen() -> None:
    many = tuple(f"lora-{number}" for number in range(2000))
    now = replace(HEALTHY, config_hash="bbb", models=(*many, "new"))
    assert text(now, replace(HEALTHY, models=many)) == (
        "models lora-0,lora-1,lora-2,lora-3 and 1,996 more -> lora-0,lora-1,lora-2,lora-3 and 1,997 more"
    )


def test_a_number_no_host_can_mean_is_told_in_short() -> None:
    now = replace(HEALTHY, waiting=1e300, running=999.0)
    assert text(now) == "1e+300 requests wait while 999 run"


def test_metrics_that_answer_anyone_are_told() -> None:
    page = PageAnswer(status=200, body=b'vllm:num_requests_running{engine="0",model_name="m"} 1\n')
    assert codes(HEALTHY, metrics=page) == ["metrics_open"]
    assert codes(HEALTHY, metrics=replace(page, with_key=True)) == []


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (PageAnswer(status=405, allow="POST"), True),
        (PageAnswer(status=405, allow="GET, POST"), True),
        (PageAnswer(status=401), False),
        (PageAnswer(status=404), False),
        (PageAnswer(status=405), False),
        (PageAnswer(status=200), False),
    ],
)
def test_a_door_beside_the_key_is_told(answer: PageAnswer, told: bool) -> None:
    door = {INVOCATIONS.removeprefix("/"): answer}
    assert codes(HEALTHY, **door) == ["inference_open"] * told


def test_lines_that_could_not_be_read_are_told_with_the_first() -> None:
    page = PageAnswer(
        status=200,
        with_key=True,
        body=b'vllm:num_requests_running{engine="0",model_name="m"} 1\n}garbage{ \x1b[31m\nmore garbage =\n',
    )
    found = text(HEALTHY, metrics=page)
    assert found.startswith("2 lines of `/metrics` could not be read, the first: }garbage{")
    assert "\x1b" not in found


def test_a_page_too_long_to_be_read_whole_is_told() -> None:
    lines = "".join(
        f'vllm:num_requests_running{{engine="{number}",model_name="m"}} 1\n'
        for number in range(60_000)
    )
    page = PageAnswer(
        status=200, with_key=True, body=b"vllm:num_requests_waiting 0\n" + lines.encode()
    )
    assert codes(HEALTHY, metrics=page) == ["metrics_cut"]


def proxied(*lines: str) -> PageAnswer:
    page = ['toolkit_proxy_build_info{version="0.1.0"} 1.0', *lines, ""]
    return PageAnswer(status=200, body="\n".join(page).encode())


def by_cache(**requests: int) -> list[str]:
    return [
        f'toolkit_proxy_requests_total{{cache="{cache}",code="2xx",model="tiny"}} {count}'
        for cache, count in requests.items()
    ]


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        (
            # 1,120 of 1,204 are 93.02 %; what went past the cache is not of them
            {"hit": 1120, "miss": 84, "bypass": 5000},
            "a response cache answers: hit ratio 93.0 % of 1,204 cacheable requests",
        ),
        (
            {"hit": 1, "coalesced": 2, "miss": 1},
            (
                "a response cache answers: hit ratio 25.0 % of 4 cacheable requests,"
                " and 2 shared another one's answer as it came"
            ),
        ),
        ({"miss": 1}, "a response cache answers: hit ratio 0 % of 1 cacheable request"),
        ({}, "a response cache stands in front; no request has asked it yet"),
        ({"hit": 9, "miss": -5}, "a response cache answers"),
    ],
)
def test_a_response_cache_is_told_with_its_hit_ratio(requests: dict[str, int], said: str) -> None:
    (finding,) = findings(HEALTHY, evidence(metrics=proxied(*by_cache(**requests))), None)
    assert (finding.code, finding.text) == ("response_cache", said)


def test_a_proxy_whose_cache_is_off_is_no_response_cache() -> None:
    off = 'toolkit_proxy_bypasses_total{reason="off"} 12.0'
    assert codes(HEALTHY, metrics=proxied(off, *by_cache(bypass=12))) == []
    # one that was off for a team, or merely looked at, is one all the same
    assert codes(HEALTHY, metrics=proxied(off, *by_cache(bypass=12, hit=1))) == ["response_cache"]
    assert codes(HEALTHY, metrics=proxied(*by_cache(bypass=12))) == ["response_cache"]


def test_an_engine_without_a_proxy_has_no_response_cache() -> None:
    lines = "\n".join(by_cache(hit=5)).encode()  # not without the proxy's own name on the page
    assert codes(HEALTHY, metrics=PageAnswer(status=200, body=lines)) == []


# --- history: cut where something changed, nowhere else ------------------------------------------------------------

FIRST = Sighting(
    name="alice", url="http://h:1", at=1.0, status="ok", version="0.31.0", config_hash="a", started_at=0.0,
    requests_total=5.0,
)  # fmt: skip


def test_no_sightings_are_no_chapters() -> None:
    assert chapters([]) == []


def test_sightings_without_a_change_are_one_chapter() -> None:
    (chapter,) = chapters([replace(FIRST, at=float(at)) for at in range(1, 6)])
    assert (chapter.first.at, chapter.last.at, chapter.sightings) == (1.0, 5.0, 5)
    assert chapter.changes == ("first seen",)


def test_an_outage_a_restart_and_a_new_version_each_start_a_chapter() -> None:
    down = Sighting(
        name="alice", url="http://h:1", at=2.0, status="down", error="connection refused"
    )
    new = replace(
        FIRST, at=3.0, started_at=2.5, version="0.32.0", config_hash="b", requests_total=0.0
    )
    told = chapters([FIRST, down, replace(down, at=2.5), new, replace(new, at=4.0)])
    assert [chapter.sightings for chapter in told] == [1, 2, 2]
    assert told[1].changes == ("ok -> down: connection refused",)
    # compared with the last sighting that had settings, not with the outage between
    assert told[2].changes == ("down -> ok", "restarted", "version 0.31.0 -> 0.32.0")


def test_a_look_that_was_cut_short_neither_hides_nor_invents_a_change() -> None:
    short = replace(
        FIRST, at=2.0, status="degraded", error="slow", started_at=None, config_hash=None
    )
    same, other = replace(FIRST, at=3.0), replace(FIRST, at=3.0, started_at=2.5)
    assert chapters([FIRST, short, same])[2].changes == ("degraded -> ok",)
    assert chapters([FIRST, short, other])[2].changes == ("degraded -> ok", "restarted")


def test_a_short_outage_without_a_restart_is_no_restart() -> None:
    down = replace(
        FIRST, at=2.0, status="down", started_at=None, config_hash=None, requests_total=None
    )
    back = replace(FIRST, at=3.0, requests_total=9.0)
    assert [chapter.changes for chapter in chapters([FIRST, down, back])][2] == ("down -> ok",)
