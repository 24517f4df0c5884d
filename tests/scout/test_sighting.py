"""Pages -> one sighting: every field by hand, every status with its reason."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raw_server import recorded

from toolkit.proxy.telemetry.metrics import Counters, Gauges, LastMinute, Served, page
from toolkit.records import Host, Sighting
from toolkit.scout import answers as pages
from toolkit.scout.answers import PageAnswer, Scrape
from toolkit.scout.findings import findings
from toolkit.scout.sighting import HostEvidence, examine, sight

ALICE = Host(name="alice", url="http://h:1")


def ok(body: bytes = b"", content_type: str = "application/json") -> PageAnswer:
    return PageAnswer(status=200, body=body, content_type=content_type, elapsed_ms=2.5)


VLLM: dict[str, PageAnswer] = {
    pages.HEALTH: ok(),
    pages.VERSION: ok(recorded("version.json")),
    pages.MODELS: ok(recorded("v1_models.json")),
    pages.METRICS: ok(recorded("metrics_after_load.txt"), "text/plain; version=1.0.0"),
}


def looked(answers: Mapping[str, PageAnswer], asked_at: float = 0.0) -> HostEvidence:
    """One look, its metrics answered at this moment of the monotonic clock."""
    metrics_then = replace(answers[pages.METRICS], answered_at=asked_at)
    return examine(Scrape(host=ALICE, at=1000.0, answers={**answers, pages.METRICS: metrics_then}))


def seen(**changed: PageAnswer) -> Sighting:
    """Sight the recorded vLLM with some of its answers changed, named as in `pages`."""
    return sight(looked(VLLM | {getattr(pages, name): answer for name, answer in changed.items()}))


def metrics(*lines: str) -> PageAnswer:
    return ok("\n".join([*lines, ""]).encode(), "text/plain")


def test_a_recorded_vllm_is_read_field_by_field() -> None:
    sighting = seen()
    expected = {
        "name": "alice",
        "url": "http://h:1",
        "at": 1000.0,
        "status": "ok",
        "error": None,
        "latency_ms": 2.5,
        "engine": "vllm",
        "dialect": "v1",
        "version": "0.32.0",
        "model": "tiny",
        "models": ("tiny",),
        "max_model_len": 512,
        "gpu_memory_utilization": 0.92,
        "cache_dtype": "auto",
        "block_size": 128,
        "num_gpu_blocks": 16384,
        "swap_space_gib": None,
        "kv_cache_tokens": 2_097_152,  # = 16384 * 128
        "kv_cache_max_concurrency": 4096.0,  # = 2097152 / 512
        "engines": 1,
        "prefix_caching": True,
        "running": 0.0,
        "waiting": 0.0,
        "kv_cache_usage": 0.0,
        "prefix_hit_ratio": pytest.approx(6016 / 98917),
        "preemptions_total": 0.0,
        "prompt_tokens_total": 98917.0,
        "generation_tokens_total": 108878.0,
        "requests_total": 1022.0,
        # rank 511 of 1022 in (0.25, 0.5] s, where 473 become 546: 0.25 + 0.25 * 38 / 73 s
        "ttft_p50_ms": pytest.approx(380.137, abs=1e-3),
        "ttft_p50_below_ms": None,
        "ttft_p50_above_ms": None,
        # rank 970.9 in (1, 2.5] s, where 770 become 990: 1 + 1.5 * 200.9 / 220 s
        "ttft_p95_ms": pytest.approx(2369.773, abs=1e-3),
        "ttft_p95_below_ms": None,
        "ttft_p95_above_ms": None,
        "queue_mean_ms": pytest.approx(566.772, abs=1e-3),  # = 579.2413398 s / 1022
        "requests_per_s": None,
        "output_tokens_per_s": None,
        "interval_s": None,
        "started_at": 1795200963.11,
        "findings": (),
    }
    for field, value in expected.items():
        assert getattr(sighting, field) == value, field
    assert {reading.name for reading in sighting.readings} >= {"vllm:prompt_tokens_total"}


def test_between_two_looks_rates_and_quantiles_describe_that_time() -> None:
    first = """\
process_start_time_seconds 5
vllm:request_success_total{engine="0",finished_reason="stop"} 10
vllm:request_success_total{engine="0",finished_reason="length"} 90
vllm:generation_tokens_total{engine="0"} 1000
vllm:prefix_cache_queries_total{engine="0"} 400
vllm:prefix_cache_hits_total{engine="0"} 400
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 100
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.2"} 100
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 100
vllm:time_to_first_token_seconds_sum{engine="0"} 5
vllm:time_to_first_token_seconds_count{engine="0"} 100
vllm:request_queue_time_seconds_sum{engine="0"} 1
vllm:request_queue_time_seconds_count{engine="0"} 100
"""
    second = (
        first.replace('"stop"} 10', '"stop"} 30')
        .replace("1000\n", "1640\n")
        .replace('queries_total{engine="0"} 400', 'queries_total{engine="0"} 600')
        .replace('hits_total{engine="0"} 400', 'hits_total{engine="0"} 450')
        .replace('le="0.2"} 100', 'le="0.2"} 120')
        .replace('le="+Inf"} 100', 'le="+Inf"} 120')
        .replace('seconds_sum{engine="0"} 5', 'seconds_sum{engine="0"} 8')
        .replace('seconds_count{engine="0"} 100', 'seconds_count{engine="0"} 120')
        .replace('time_seconds_sum{engine="0"} 1\n', 'time_seconds_sum{engine="0"} 1.5\n')
    )
    before = looked(VLLM | {pages.METRICS: metrics(first)}, asked_at=50.0)
    now = sight(looked(VLLM | {pages.METRICS: metrics(second)}, asked_at=54.0), before)
    assert now.interval_s == 4.0
    assert now.requests_per_s == 5.0  # (120 - 100) / 4 s
    assert now.output_tokens_per_s == 160.0  # (1640 - 1000) / 4 s
    assert now.prefix_hit_ratio == 0.25  # (450 - 400) / (600 - 400); since start it is 0.75
    assert now.ttft_p50_ms == pytest.approx(150)  # all 20 in (0.1, 0.2] s: its middle
    assert now.queue_mean_ms == pytest.approx(25)  # (1.5 - 1) s / 20


def test_an_interval_in_which_nothing_happened_has_rate_zero_and_no_quantile() -> None:
    before = looked(VLLM, asked_at=50.0)
    now = sight(looked(VLLM, asked_at=55.0), before)
    assert (now.requests_per_s, now.output_tokens_per_s) == (0.0, 0.0)
    assert (now.ttft_p50_ms, now.ttft_p50_below_ms, now.queue_mean_ms, now.prefix_hit_ratio) == (
        None,
    ) * 4
    assert now.requests_total == 1022.0


@pytest.mark.parametrize(
    "reset", ["process_start_time_seconds 9", 'vllm:request_success_total{engine="0"} 1']
)
def test_a_reset_between_two_looks_gives_no_rate(reset: str) -> None:
    name = re.match(r"[\w:]+", reset)[0]
    lines = {
        "vllm:request_success_total": 'vllm:request_success_total{engine="0"} 7',
        "vllm:generation_tokens_total": 'vllm:generation_tokens_total{engine="0"} 100',
    }
    if name == "process_start_time_seconds":
        lines[name] = "process_start_time_seconds 5"
    before = looked(VLLM | {pages.METRICS: metrics(*lines.values())}, asked_at=0.0)
    after = lines | {
        name: reset,
        "vllm:generation_tokens_total": 'vllm:generation_tokens_total{engine="0"} 101',
    }
    now = sight(looked(VLLM | {pages.METRICS: metrics(*after.values())}, asked_at=4.0), before)
    assert (now.requests_per_s, now.output_tokens_per_s) == (None, None)
    assert now.interval_s == 4.0
    old = sight(before)
    assert next(f.code for f in findings(now, looked(VLLM), old)) == "restarted"


def test_quantiles_in_the_outer_buckets_are_told_as_bounds() -> None:
    def ttft(first: int, second: int, last: int) -> Sighting:
        name = "vllm:time_to_first_token_seconds"
        counts = (("0.001", first), ("0.005", second), ("+Inf", last))
        buckets = [f'{name}_bucket{{engine="0",le="{edge}"}} {count}' for edge, count in counts]
        return seen(
            METRICS=metrics(
                *buckets, f'{name}_count{{engine="0"}} {last}', f'{name}_sum{{engine="0"}} 1'
            )
        )

    fast = ttft(96, 100, 100)  # ranks 50 and 95 both among the first 96
    assert (fast.ttft_p50_ms, fast.ttft_p50_below_ms) == (None, 1.0)
    assert (fast.ttft_p95_ms, fast.ttft_p95_below_ms) == (None, 1.0)
    slow = ttft(0, 10, 100)
    assert (slow.ttft_p50_ms, slow.ttft_p50_above_ms) == (None, 5.0)


REFUSED = PageAnswer(status=401, body=b'{"error":"Unauthorized"}', elapsed_ms=1.0)
NOT_FOUND = PageAnswer(status=404, body=b'{"detail":"Not Found"}', elapsed_ms=1.0)
LATE = PageAnswer(problem="`/metrics` did not finish within 5 s")


@pytest.mark.parametrize(
    ("changed", "status", "error"),
    [
        ({}, "ok", None),
        ({"MODELS": REFUSED}, "ok", None),  # a key on /v1 is no flaw
        ({"METRICS": LATE}, "degraded", "`/metrics` did not finish within 5 s"),
        ({"METRICS": NOT_FOUND}, "degraded", "`/metrics` answers 404"),
        ({"METRICS": ok(b"<html>hello</html>")}, "degraded", "`/metrics` is not Prometheus text"),
        (
            {"METRICS": metrics("python_info 1")},
            "degraded",
            "`/metrics` has no engine's numbers (vLLM: `--disable-log-stats`)",
        ),
        (
            {"HEALTH": PageAnswer(status=503)},
            "down",
            "`/health` answers 503: the engine is dead or still loading",
        ),
        (
            {"VERSION": PageAnswer(problem="`/version` is larger than 1 MiB")},
            "degraded",
            "`/version` is larger than 1 MiB",
        ),
    ],
)
def test_a_vllms_status_has_its_reason(
    changed: dict[str, PageAnswer], status: str, error: str | None
) -> None:
    sighting = seen(**changed)
    assert (sighting.status, sighting.error) == (status, error)


def sight_only(**answers: PageAnswer) -> Sighting:
    nothing = dict.fromkeys(pages.FIRST_ROUND, NOT_FOUND)
    return sight(
        looked(nothing | {getattr(pages, name): answer for name, answer in answers.items()})
    )


def test_a_web_server_is_not_an_engine() -> None:
    sighting = sight_only(HEALTH=ok(b"<html>"), METRICS=ok(b"<html>"))
    assert (sighting.status, sighting.engine) == ("not_an_engine", None)
    assert sighting.error == "answers HTTP, but no page of an LLM engine"


def test_a_host_whose_other_pages_did_not_come_may_be_an_engine_and_is_degraded() -> None:
    sighting = sight_only(HEALTH=ok(), METRICS=LATE)
    assert sighting.status == "degraded"
    assert sighting.error == "answers HTTP, but `/metrics` did not finish within 5 s"


def test_a_host_where_every_page_is_refused_says_what_to_do() -> None:
    sighting = sight_only(**dict.fromkeys(["HEALTH", "VERSION", "MODELS", "METRICS"], REFUSED))
    assert sighting.status == "degraded"
    assert "api_key_env" in sighting.error


def test_a_cache_in_front_that_lists_models_is_degraded_not_foreign() -> None:
    sighting = sight_only(MODELS=ok(b'{"object":"list","data":[{"id":"m","object":"model"}]}'))
    assert (sighting.status, sighting.model) == ("degraded", "m")
    assert sighting.error == "serves models, but `/metrics` answers 404"


def behind_our_proxy(engine: bytes) -> bytes:
    counters = Counters()
    counters.take(Served(ts=0.0, model="tiny", status=200, cache="miss", ttft_ms=50, latency_ms=90))
    counters.tally("", "tiny", "chat/completions", stream=True).hit(0.00002, 900, 10, 16)
    lately = LastMinute().indicators()
    return page(counters, Gauges(version="0.1.0"), lately, engine.decode())


RECORDED = recorded("metrics_after_load.txt")
OF_RUST = b"\n".join(line for line in RECORDED.split(b"\n") if b"cache_config" not in line)
"""As vLLM's front end in Rust ends its page; it has no configuration there either."""


@pytest.mark.parametrize(
    ("page", "dialect"), [(RECORDED, "v1"), (OF_RUST + b"# EOF\n", "rust"), (OF_RUST, "v1")]
)
def test_an_engine_behind_our_proxy_is_read_as_before_and_the_cache_beside_it(
    page: bytes, dialect: str
) -> None:
    direct = looked(VLLM | {pages.METRICS: ok(page, "text/plain")})
    through = looked(VLLM | {pages.METRICS: ok(behind_our_proxy(page), "text/plain")})
    assert sight(direct).dialect == dialect
    assert replace(sight(through), readings=()) == replace(sight(direct), readings=())
    assert set(sight(direct).readings) < set(sight(through).readings)
    told = {finding.code: finding.text for finding in findings(sight(through), through, None)}
    assert told.pop("response_cache") == (
        "a response cache answers: hit ratio 50.0 % of 2 cacheable requests"
    )
    assert told == {each.code: each.text for each in findings(sight(direct), direct, None)}


def test_our_proxy_whose_engine_tells_nothing_is_seen_all_the_same() -> None:
    alone = looked(VLLM | {pages.METRICS: ok(behind_our_proxy(b""), "text/plain")})
    sighting = sight(alone)
    assert (sighting.status, sighting.engine) == ("degraded", "vllm")
    assert sighting.error == "`/metrics` has the response cache's numbers and no engine's"
    assert [finding.code for finding in findings(sighting, alone, None)] == ["response_cache"]


def test_our_proxy_without_an_engine_is_no_foreign_server() -> None:
    sighting = sight_only(HEALTH=ok(), METRICS=ok(behind_our_proxy(b""), "text/plain"))
    assert (sighting.status, sighting.engine) == ("degraded", None)
    assert sighting.error == "a response cache answers, but no engine behind it does"


def test_a_dead_host_keeps_its_most_common_reason() -> None:
    refused = PageAnswer(problem="connection refused")
    answers = dict.fromkeys(pages.FIRST_ROUND, refused) | {pages.VERSION: PageAnswer(problem="odd")}
    sighting = sight(looked(answers))
    assert (sighting.status, sighting.error) == ("down", "connection refused")
    assert sighting.latency_ms is None


def test_a_router_is_a_gateway() -> None:
    page = metrics(
        'vllm:num_requests_running{server="http://e1:8000"} 3',
        'vllm:healthy_pods_total{server="http://e1:8000"} 1',
        'vllm:current_qps{server="http://e1:8000"} 2',
    )
    sighting = sight_only(HEALTH=ok(), METRICS=page, MODELS=ok(recorded("v1_models.json")))
    assert (sighting.status, sighting.engine) == ("ok", "production-stack-router")
    idle = ok(b"# TYPE vllm:healthy_pods_total gauge\n")
    down = sight_only(HEALTH=ok(), METRICS=idle, MODELS=PageAnswer(status=503))
    assert (down.status, down.engine) == ("degraded", "production-stack-router")
    assert down.error is not None
    assert "no engine behind it does" in down.error


def test_behind_a_key_the_model_comes_from_metrics_and_the_length_from_tokenize() -> None:
    sighting = seen(MODELS=REFUSED, TOKENIZE=ok(b'{"count":1,"max_model_len":512,"tokens":[64]}'))
    assert (sighting.model, sighting.max_model_len) == ("tiny", 512)


def test_lora_cards_are_models_and_lend_no_length() -> None:
    cards = (
        b'{"data":[{"id":"sql-lora","owned_by":"vllm","root":"/a","parent":"base","max_model_len":null},'
        b'{"id":"base","owned_by":"vllm","max_model_len":4096}]}'
    )
    sighting = seen(MODELS=ok(cards))
    assert (sighting.models, sighting.max_model_len) == (("sql-lora", "base"), 4096)


@pytest.mark.parametrize(
    ("metrics_line", "about", "page", "engine", "version", "model", "length"),
    [
        (
            "tgi_queue_size 0",
            "TGI",
            b'{"model_id":"org/m","version":"3.3.7","max_total_tokens":4096}',
            "tgi", "3.3.7", "org/m", 4096,
        ),
        (
            "llamacpp:requests_processing 0",
            "LLAMA_CPP",
            b'{"model_alias":"m","build_info":"b8681","default_generation_settings":{"n_ctx":8192}}',
            "llama.cpp", "b8681", "m", 8192,
        ),
    ],
)  # fmt: skip
def test_peers_tell_about_themselves_on_their_own_pages(
    metrics_line: str, about: str, page: bytes, engine: str, version: str, model: str, length: int
) -> None:
    path = {"TGI": pages.ABOUT["tgi"], "LLAMA_CPP": pages.ABOUT["llama.cpp"]}[about]
    nothing = dict.fromkeys(pages.FIRST_ROUND, NOT_FOUND)
    answers = nothing | {pages.HEALTH: ok(), pages.METRICS: metrics(metrics_line), path: ok(page)}
    sighting = sight(looked(answers))
    assert (sighting.status, sighting.engine) == ("ok", engine)
    assert (sighting.version, sighting.model, sighting.max_model_len) == (version, model, length)


def test_equal_settings_hash_equally_and_a_changed_one_does_not() -> None:
    page = recorded("metrics_after_load.txt")
    same = seen(METRICS=ok(page.replace(b'num_gpu_blocks="16384"', b'num_gpu_blocks="16380"')))
    other = seen(METRICS=ok(page.replace(b'cache_dtype="auto"', b'cache_dtype="fp8"')))
    assert seen().config_hash == same.config_hash  # measured at start, not chosen
    assert seen().config_hash != other.config_hash
    assert seen().config_hash != seen(VERSION=ok(b'{"version":"0.33.0"}')).config_hash


@pytest.mark.parametrize("name", ["VERSION", "MODELS", "METRICS"])
@pytest.mark.parametrize(
    "failure",
    [PageAnswer(problem="too late"), PageAnswer(status=503), PageAnswer(status=200, problem="cut")],
)
def test_a_look_that_was_cut_short_claims_no_settings(name: str, failure: PageAnswer) -> None:
    assert seen(**{name: failure}).config_hash is None


def test_a_page_that_is_always_closed_or_missing_leaves_the_other_settings_known() -> None:
    assert seen(MODELS=REFUSED).config_hash == seen(MODELS=NOT_FOUND).config_hash is not None


def test_a_byte_order_mark_spoils_no_line() -> None:
    evidence = looked(VLLM | {pages.METRICS: ok(b"\xef\xbb\xbf" + recorded("metrics_idle.txt"))})
    assert evidence.page is not None
    assert (evidence.page.bad_lines, sight(evidence).status) == (0, "ok")


def test_labels_are_told_as_they_are() -> None:
    page = recorded("metrics_after_load.txt").replace(b'"tiny"', b'"t\x1b[2J\\nx"')
    page = page.replace(b'cache_dtype="auto"', b'cache_dtype="\x1b[31mfp8"')
    sighting = seen(MODELS=NOT_FOUND, METRICS=ok(page))
    assert (sighting.model, sighting.cache_dtype) == ("t\x1b[2J\nx", "\x1b[31mfp8")


def test_a_port_that_wants_tls_says_so() -> None:
    # as nginx and Go's server answer plain HTTP
    asked = PageAnswer(status=400, body=b"The plain HTTP request was sent to HTTPS port")
    sighting = sight_only(**dict.fromkeys(["HEALTH", "VERSION", "MODELS", "METRICS"], asked))
    assert sighting.error == "wants TLS; write `https://` before the address"
    # as uvicorn does
    closed = PageAnswer(problem="`/health`: closed without an answer")
    sighting = sight(looked(dict.fromkeys(pages.FIRST_ROUND, closed)))
    assert (sighting.status, sighting.error) == (
        "down", "every connection was closed without an answer; does the port want `https://`?",
    )  # fmt: skip


def test_a_name_is_told_as_it_is_but_for_half_a_character() -> None:
    cards = b'{"data":[{"id":"m\\u001b[2Jx\\n\\ud800","owned_by":"vllm"}]}'
    assert seen(MODELS=ok(cards)).model == "m\x1b[2Jx\n\ufffd"


JSON_NONSENSE = [
    b"[]",
    b"null",
    b"{",
    b'"x"',
    b'{"data":{}}',
    b'{"data":[1,null,{"id":7}]}',
    b"[" * 100_000,
    b"9" * 5000,
]


@pytest.mark.parametrize("body", JSON_NONSENSE, ids=range(len(JSON_NONSENSE)))
def test_nonsense_instead_of_json_is_unknown(body: bytes) -> None:
    sighting = seen(MODELS=ok(body), VERSION=ok(body))
    assert (sighting.version, sighting.max_model_len) == (None, None)
    assert sighting.model == "tiny"  # from the metrics


@given(st.dictionaries(st.sampled_from(pages.FIRST_ROUND), st.builds(
    PageAnswer, status=st.sampled_from([None, 200, 301, 401, 404, 405, 500, 503]), body=st.binary(),
    problem=st.none() | st.just("odd"), elapsed_ms=st.none() | st.floats(0, 1e6), allow=st.text(),
)))  # fmt: skip
def test_no_answers_make_scout_stumble(answers: dict[str, PageAnswer]) -> None:
    evidence = looked(dict.fromkeys(pages.FIRST_ROUND, PageAnswer(problem="odd")) | answers)
    sighting = sight(evidence)
    assert sighting.status in ("ok", "degraded", "down", "not_an_engine")
    assert (sighting.status == "ok") == (sighting.error is None)
    assert findings(sighting, evidence, replace(sighting, config_hash="other")) is not None
