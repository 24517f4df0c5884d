"""Each alert fires when it should and not a minute before, shown by Debian's promtool; a healthy site, and an idle one, fire none."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from contract.harness.deploys import LAB, deploy_each, rules_test
from contract.harness.programs import run
from contract.harness.site_series import (
    BIG,
    CHAT,
    PROXY,
    QWEN,
    SPARE,
    B,
    Q,
    but,
    grows,
    held,
    histogram,
    then,
    vllm,
)

FIRING = 'sum by (alertname, host, instance) (ALERTS{alertstate="firing"})'
TTFT = "vllm:time_to_first_token_seconds"
PLACE = 'instance="127.0.0.1:8101"'
ADMIN = 'instance="127.0.0.1:8002"'
FLAPPING = "1x9 0x1 1x7 0x1 1x7 0x1 1x27"
GONE = "_"
"""No sample: Prometheus' own mark of what is no more."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A site in trouble, and when its alert is still quiet and when it fires."""

    alert: str
    changes: Mapping[str, str | None]
    quiet: str
    fires: str
    where: str
    """Labels that the alert bears."""


def beyond_last_edge(name: str, labels: str, edge: str, least: str) -> dict[str, str | None]:
    """From 10:00 on all requests take longer than the histogram can say."""
    return {
        **histogram(
            name,
            labels,
            {least: then("0+15", "285+0"), edge: then("0+15", "285+0"), "+Inf": grows(15)},
        )
    }


CASES = {
    # up is 0 from 10:00 on; `for` 2m
    "an engine that is down in both of its places": Case(
        alert="EngineDown",
        changes={f"up{{{QWEN}}}": then("1", "0")},
        quiet="11m30s",
        fires="12m",
        where='host="qwen"',
    ),
    # no series from the very first evaluation at 0; `for` 5m
    "an engine whose targets went with somebody's edit": Case(
        alert="EngineGone",
        changes={f"up{{{QWEN}}}": None, f"up{{{SPARE}}}": None},
        quiet="4m30s",
        fires="5m",
        where='host="qwen"',
    ),
    "an engine that answers without a word of itself": Case(
        alert="EngineBlind",
        changes={f"vllm:{each}": None for each in ("num", "kv", "gen", "prompt", "iter", "prefix")}
        | {f"vllm:{each}": None for each in ("request_success", "time", "request_queue")}
        | vllm(B, busy=False),
        quiet="4m30s",
        fires="5m",
        where='host="qwen"',
    ),
    # the last change is at 9:30; a minute later the window holds none; `for` 1m: 11:30 (Prometheus 3: 11:00)
    "an engine with work under way that makes nothing of it": Case(
        alert="EngineStuck",
        changes={
            f"vllm:generation_tokens_total{{{Q}}}": then("0+1500", "28500+0"),
            f"vllm:prompt_tokens_total{{{Q}}}": then("0+600", "11400+0"),
            f"vllm:iteration_tokens_total_count{{{Q}}}": then("0+375", "7125+0"),
        },
        quiet="10m30s",
        fires="11m30s",
        where=f'host="qwen",{PLACE}',
    ),
    # nobody runs, somebody waits, and two of the signs are not told at all
    "a stuck engine that does not tell its steps and blocks": Case(
        alert="EngineStuck",
        changes={
            f"vllm:num_requests_running{{{Q}}}": held(0),
            f"vllm:num_requests_waiting{{{Q}}}": held(3),
            f"vllm:generation_tokens_total{{{Q}}}": held(28500),
            f"vllm:prompt_tokens_total{{{Q}}}": held(11400),
            f"vllm:iteration_tokens_total_count{{{Q}}}": None,
            f"vllm:kv_cache_usage_perc{{{Q}}}": None,
        },
        quiet="30s",
        fires="1m",
        where=f'host="qwen",{PLACE}',
    ),
    # new start times at 5:00, 10:00 and 15:00: the third is one too many
    "an engine that starts for the third time": Case(
        alert="EngineRestarting",
        changes={f"process_start_time_seconds{{{QWEN}}}": "1x9 2x9 3x9 4x29"},
        quiet="14m30s",
        fires="15m",
        where='host="qwen"',
    ),
    "an engine without a start time whose counters fall again and again": Case(
        alert="EngineRestarting",
        changes={
            "process_start_time_seconds": None,
            f"vllm:generation_tokens_total{{{Q}}}": "0+1500x9 0+1500x9 0+1500x9 0+1500x29",
        },
        quiet="14m30s",
        fires="15m",
        where='host="qwen"',
    ),
    # down for a minute (2 samples) from sample 10, 20 and 30 on; up for the third time with sample 32, at 16:00
    "an engine that is up and down, and tells nothing else": Case(
        alert="EngineRestarting",
        changes={f"up{{{QWEN}}}": FLAPPING, "process_start_time_seconds": None},
        quiet="15m30s",
        fires="16m",
        where='host="qwen"',
    ),
    "KV blocks that are all in use": Case(
        alert="EngineKvCacheFull",
        changes={f"vllm:kv_cache_usage_perc{{{Q}}}": then("0.5", "0.97")},
        quiet="19m30s",
        fires="20m30s",
        where=f'host="qwen",{PLACE}',
    ),
    # 6 in 30 s are 0.2 a second: over the window more than 0.1 once half of it is so, from 12:30 on; `for` 10m
    "requests that are preempted all the time": Case(
        alert="EnginePreempting",
        changes={f"vllm:num_preemptions_total{{{Q}}}": then("0", "0+6")},
        quiet="21m30s",
        fires="24m",
        where=f'host="qwen",{PLACE}',
    ),
    "one more request waiting than a batch holds": Case(
        alert="EngineQueueLong",
        changes={f"vllm:num_requests_waiting{{{Q}}}": then("64", "65")},
        quiet="14m30s",
        fires="15m",
        where=f'host="qwen",{PLACE}',
    ),
    "an engine that the stack does not know": Case(
        alert="EngineQueueLong",
        changes={
            'vllm:num_requests_waiting{job="engine",host="new",instance="n:1",model_name="n"}': then(
                "256", "257"
            ),
            'vllm:generation_tokens_total{job="engine",host="new",instance="n:1"}': grows(1),
        },
        quiet="14m30s",
        fires="15m",
        where='host="new",instance="n:1"',
    ),
    # from 10:00 on one request in ten of the window is beyond the edge, and more: p95 stands on it; `for` 10m
    "first tokens later than the histogram can say": Case(
        alert="EngineTtftSlow",
        changes=beyond_last_edge(TTFT, Q, "2560.0", "0.5")
        | {f'{TTFT}_bucket{{{Q},le="0.25"}}': None},
        quiet="19m30s",
        fires="21m",
        where=f'host="qwen",{PLACE}',
    ),
    "a queue that is longer than 2 s": Case(
        alert="EngineQueueSlow",
        changes=beyond_last_edge("vllm:request_queue_time_seconds", Q, "2.5", "0.3"),
        quiet="19m30s",
        fires="21m",
        where=f'host="qwen",{PLACE}',
    ),
    # 3 of 18 are 17 %; six a minute, of which the window's first minutes show a part: more than one from 1:30 on; `for` 2m
    "answers 5xx": Case(
        alert="EngineErrors",
        changes={f'http_requests_total{{{QWEN},{CHAT},status="5xx"}}': grows(3)},
        quiet="2m",
        fires="4m",
        where=f'host="qwen",{PLACE}',
    ),
    "streams that begin well and are given up": Case(
        alert="EngineErrors",
        changes={f'vllm:request_success_total{{{Q},finished_reason="error"}}': grows(3)},
        quiet="2m",
        fires="4m",
        where=f'host="qwen",{PLACE}',
    ),
    "a proxy that is down": Case(
        alert="ProxyDown",
        changes={f"up{{{PROXY}}}": then("1", "0")},
        quiet="10m30s",
        fires="11m",
        where=ADMIN,
    ),
    "a proxy that is no target": Case(
        alert="ProxyGone",
        changes={f"up{{{PROXY}}}": None},
        quiet="4m30s",
        fires="5m",
        where="",
    ),
    "a proxy that left its engines": Case(
        alert="ProxyWithoutEngine",
        changes={
            f'toolkit_proxy_upstream_state{{{PROXY},upstream="qwen.a",state="up"}}': then("1", "0")
        },
        quiet="10m30s",
        fires="11m",
        where=ADMIN,
    ),
    # 2 of 20, before anybody was ever rejected or left: those series are not there
    "one request in ten that fails": Case(
        alert="ProxyErrors",
        changes={f'toolkit_proxy_errors_total{{{PROXY},kind="connect"}}': grows(2)},
        quiet="2m",
        fires="4m",
        where=ADMIN,
    ),
    # 4 of 200 are 2 %, and of the 120 and the 100 that did not leave or were not rejected no more than 4 %; but they are 4 of 20.
    # The rejections alert from 5:30 on
    "one in five of the requests that were answered": Case(
        alert="ProxyErrors",
        changes={
            f'toolkit_proxy_requests_total{{{PROXY},cache="hit"}}': grows(100),
            f'toolkit_proxy_requests_total{{{PROXY},cache="miss"}}': grows(100),
            f'toolkit_proxy_errors_total{{{PROXY},kind="connect"}}': grows(4),
            f'toolkit_proxy_rejections_total{{{PROXY},reason="queue_full"}}': grows(100),
            f"toolkit_proxy_clients_left_total{{{PROXY}}}": grows(80),
        },
        quiet="2m",
        fires="4m",
        where=ADMIN,
    ),
    # 2 of 20
    "one request in ten that is turned away": Case(
        alert="ProxyRejecting",
        changes={f'toolkit_proxy_rejections_total{{{PROXY},reason="queue_full"}}': grows(2)},
        quiet="5m",
        fires="6m",
        where=ADMIN,
    ),
    "a proxy's queue that is longer than 2 s": Case(
        alert="ProxyQueueSlow",
        changes=beyond_last_edge("toolkit_proxy_queue_seconds", PROXY, "2", "0.1"),
        quiet="19m30s",
        fires="21m",
        where=ADMIN,
    ),
    "a proxy that does without its Redis": Case(
        alert="ProxyRedisLost",
        changes={f"toolkit_proxy_redis_breaker_open{{{PROXY}}}": then("0", "1")},
        quiet="14m30s",
        fires="15m",
        where=ADMIN,
    ),
}

QUIET: dict[str, Mapping[str, str | None]] = {
    "a healthy site": {},
    "clients that ask for a model that nobody serves, and for more than fits": {
        f'toolkit_proxy_rejections_total{{{PROXY},reason="unknown_model"}}': grows(10),
        f'toolkit_proxy_rejections_total{{{PROXY},reason="prompt_too_long"}}': grows(10),
    },
    "a long prefill, through which only the KV blocks move": {
        f"vllm:generation_tokens_total{{{Q}}}": held(1),
        f"vllm:prompt_tokens_total{{{Q}}}": held(1),
        f"vllm:iteration_tokens_total_count{{{Q}}}": held(1),
        f"vllm:kv_cache_usage_perc{{{Q}}}": "0.1+0.001x59",
    },
    "a busy engine whose page comes too late three times, and which did not start anew": {
        f"up{{{QWEN}}}": FLAPPING,
    },
    "a swap to the other place": {
        f"up{{{QWEN}}}": then("1", "0"),
        f"up{{{SPARE}}}": then("0", "1"),
    },
    "a restart, which sets every counter back": {
        f"vllm:generation_tokens_total{{{Q}}}": then("0+1500", "0+1500"),
        f"vllm:prompt_tokens_total{{{Q}}}": then("0+600", "0+600"),
        f"vllm:num_preemptions_total{{{Q}}}": then("900", "0"),
        f'vllm:request_success_total{{{Q},finished_reason="stop"}}': then("0+15", "0+15"),
        f'vllm:request_success_total{{{Q},finished_reason="error"}}': then("900", "0"),
        f"process_start_time_seconds{{{QWEN}}}": then("1", "2"),
    },
    "one slow request of one": histogram(
        TTFT, B, {"0.5": held(0), "2560.0": held(0), "+Inf": then("0", "1")}
    ),
    "one failed request of one": {
        f'http_requests_total{{{BIG},{CHAT},status="5xx"}}': then("0", "1"),
        f'vllm:request_success_total{{{B},finished_reason="error"}}': then("0", "1"),
    },
    "a proxy that was asked nothing yet": {
        "toolkit_proxy_requests_total": None,
        "toolkit_proxy_queue_seconds": None,
    },
    "a proxy that nobody asks any more": {
        f'toolkit_proxy_requests_total{{{PROXY},cache="hit"}}': held(100),
        f'toolkit_proxy_requests_total{{{PROXY},cache="miss"}}': held(100),
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = deploy_each(tmp_path_factory.mktemp("rules"), {"lab": ("prometheus", LAB)})["lab"]
    assert made.code == 0, made.err
    return made.folder


def firing(at: str, *labels: str) -> dict[str, object]:
    samples = [{"labels": f"{{{each}}}", "value": 1} for each in labels]
    return {"expr": FIRING, "eval_time": at, "exp_samples": samples}


def test_each_alert_fires_when_its_time_has_come_and_alone(folder: Path) -> None:
    courses = []
    for case in CASES.values():
        labels = ",".join(filter(None, (f'alertname="{case.alert}"', case.where)))
        checks = [firing(case.quiet), firing(case.fires, labels)]
        courses.append((but(dict(case.changes)), checks))
    assert rules_test(folder, courses) == ""


def test_what_is_no_trouble_fires_nothing(folder: Path) -> None:
    checks = [firing(at) for at in ("1m", "5m", "11m30s", "12m30s", "16m", "22m")]
    assert rules_test(folder, [(but(dict(each)), checks) for each in QUIET.values()]) == ""


# Hits and misses of proxies, two minutes a sample: 195 are 6:30 h in which every second request is a hit. A rate looks back 5 minutes.
COURSES = {
    # of the last 30 minutes fewer than half are as before at 6:50; `for` 15m
    "hits-no-more": ("0+60x194 11640+0x45", "0+60x194 11640+120x45"),
    # after a start there is no series of hits before the first hit, and 11,640 misses are 0 again
    "started-anew": (f"0+60x194 {GONE}x45", "0+60x194 0+120x45"),
    "goes-on": ("0+60x240", "0+60x240"),
    "never-hit": (None, "0+120x240"),
    # 4 % before: a cache that hardly ever hit has nothing to lose
    "hardly-hit": ("0+5x194 970+0x45", "0+115x194 22310+120x45"),
    # one request a minute; the half hour before is out of the window at 7:05, and `for` over at 7:20
    "hardly-asked": ("0+60x194 11640+0x45", "0+60x194 11640+2x45"),
    # a third of them hits instead of a half; a quarter would be enough
    "hits-less": ("0+60x194 11640+40x45", "0+60x194 11640+80x45"),
}


def test_a_cache_that_hits_half_as_often_as_before_is_told_and_no_other(folder: Path) -> None:
    series = {f"up{{{PROXY}}}": "1x240"}
    for name, (hits, misses) in COURSES.items():
        of = f'toolkit_proxy_requests_total{{job="proxy",instance="{name}",cache='
        series |= {f'{of}"miss"}}': misses} | ({f'{of}"hit"}}': hits} if hits else {})
    expr = 'sum by (instance) (ALERTS{alertstate="firing",alertname="ProxyHitRatioFallen"})'
    fallen = [
        {"labels": f'{{instance="{each}"}}', "value": 1}
        for each in ("hits-no-more", "started-anew")
    ]
    checks = [
        {"expr": expr, "eval_time": "6h", "exp_samples": []},
        {"expr": expr, "eval_time": "6h58m", "exp_samples": []},
        {"expr": expr, "eval_time": "7h10m", "exp_samples": fallen},
        {"expr": expr, "eval_time": "7h40m", "exp_samples": fallen},
    ]
    assert rules_test(folder, [(series, checks)], step="2m") == ""


def test_an_alert_says_where_and_what_to_do(folder: Path) -> None:
    series = but({f"vllm:kv_cache_usage_perc{{{Q}}}": held(0.97)})
    told = {
        "summary": "Engine qwen: 97% of the KV blocks are in use",
        "description": "`toolkit diagnose http://127.0.0.1:8101` says which bottleneck it is, and which lever to turn first."
        " `toolkit plan` says what fits: a shorter max-model-len, an FP8 KV cache, fewer requests at once.",
    }
    labels = {"host": "qwen", "instance": "127.0.0.1:8101", "model_name": "q"}
    labels["severity"] = "warning"
    expected = [{"exp_labels": labels, "exp_annotations": told}]
    check = {"eval_time": "11m", "alertname": "EngineKvCacheFull", "exp_alerts": expected}
    assert rules_test(folder, [(series, [])], alerts=[check]) == ""


def alerts_of(folder: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load((folder / "rules/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_an_alert_names_a_verb_that_there_is(folder: Path, tmp_path: Path) -> None:
    lines = []
    for alert in alerts_of(folder):
        told = alert["annotations"]["description"].replace("{{ $labels.instance }}", "h:1")
        verbs = [words.split()[1:] for words in re.findall(r"`(toolkit [^`]+)`", told)]
        assert verbs, alert["alert"]
        lines += verbs
    unlike = sorted({tuple(words) for words in lines})
    # an option or a verb that there is not would be an error, with --help too
    for words in unlike:
        done = run(*words, "--help", cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_every_alert_is_shown_firing_and_its_threshold_stands_at_the_top(folder: Path) -> None:
    names = {each["alert"] for each in alerts_of(folder)}
    assert names == {each.alert for each in CASES.values()} | {"ProxyHitRatioFallen"}
    top = (folder / "rules/alerts.yml").read_text().partition("groups:")[0]
    told = dict(re.findall(r"^#   (\w+) +(.*)$", top, re.MULTILINE))
    assert told["EngineKvCacheFull"] == "more than 95% of the blocks for 10m"
    assert told["EngineTtftSlow"] == "p95 of 5 s and more for 10m"
    # what is no target, or tells nothing, has no threshold but its time
    plain = {"EngineGone", "EngineBlind", "ProxyGone", "ProxyWithoutEngine", "ProxyRedisLost"}
    assert set(told) | plain == names
