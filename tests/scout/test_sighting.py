"""Pages -> one sighting; tests/contract/scout has each engine's numbers, and each status that a server can show.

Here is what needs two moments, an earlier scrape, or pages that no server of those has.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raw_server import recorded

from toolkit.proxy.telemetry.metrics import Counters, Gauges, LastMinute, Served, page
from toolkit.records import Host, Sighting
from toolkit.scout import pages
from toolkit.scout.findings import findings
from toolkit.scout.pages import PageAnswer, Scrape
from toolkit.scout.sighting import HostEvidence, describe, examine, numbers_only

ALICE = Host(name="alice", url="http://h:1")
RECORDED = recorded("metrics_after_load.txt")


def ok(body: bytes = b"", content_type: str = "application/json") -> PageAnswer:
    return PageAnswer(status=200, body=body, content_type=content_type, elapsed_ms=2.5)


def metrics(*lines: str) -> PageAnswer:
    return ok("\n".join([*lines, ""]).encode(), "text/plain")


VLLM: dict[str, PageAnswer] = {
    pages.HEALTH: ok(),
    pages.VERSION: ok(recorded("version.json")),
    pages.MODELS: ok(recorded("v1_models.json")),
    pages.METRICS: ok(RECORDED, "text/plain; version=1.0.0"),
}
REFUSED = PageAnswer(status=401, body=b'{"error":"Unauthorized"}', elapsed_ms=1.0)
NOT_FOUND = PageAnswer(status=404, body=b'{"detail":"Not Found"}', elapsed_ms=1.0)
LATE = PageAnswer(problem="`/metrics` did not finish within 5 s")
CLOSED = PageAnswer(problem="`/health`: closed without an answer")


def scraped(answers: Mapping[str, PageAnswer], asked_at: float = 0.0) -> HostEvidence:
    """One scrape, its metrics answered at this moment of the monotonic clock."""
    metrics_then = replace(answers[pages.METRICS], answered_at=asked_at)
    return examine(Scrape(host=ALICE, at=1000.0, answers={**answers, pages.METRICS: metrics_then}))


def named(changed: Mapping[str, PageAnswer]) -> dict[str, PageAnswer]:
    """Answers by their pages' names, as in `pages`."""
    return {getattr(pages, name): answer for name, answer in changed.items()}


def seen(**changed: PageAnswer) -> Sighting:
    """The recorded vLLM with some of its answers changed."""
    return describe(scraped(VLLM | named(changed)))


def seen_only(**answers: PageAnswer) -> Sighting:
    """A host that has no other page."""
    return describe(scraped(dict.fromkeys(pages.FIRST_ROUND, NOT_FOUND) | named(answers)))


# --- two scrapes ----------------------------------------------------------------------------------------


def counted(requests: int, tokens: int, queries: int, hits: int, queued_s: float) -> PageAnswer:
    """A page on which the first 100 requests had a TTFT up to 0.1 s, and all others up to 0.2 s."""
    ttft = "vllm:time_to_first_token_seconds"
    return metrics(
        "process_start_time_seconds 5",
        f'vllm:request_success_total{{engine="0",finished_reason="stop"}} {requests - 90}',
        'vllm:request_success_total{engine="0",finished_reason="length"} 90',
        f'vllm:generation_tokens_total{{engine="0"}} {tokens}',
        f'vllm:prefix_cache_queries_total{{engine="0"}} {queries}',
        f'vllm:prefix_cache_hits_total{{engine="0"}} {hits}',
        f'{ttft}_bucket{{engine="0",le="0.1"}} 100',
        f'{ttft}_bucket{{engine="0",le="0.2"}} {requests}',
        f'{ttft}_bucket{{engine="0",le="+Inf"}} {requests}',
        f'{ttft}_sum{{engine="0"}} 5',
        f'{ttft}_count{{engine="0"}} {requests}',
        f'vllm:request_queue_time_seconds_sum{{engine="0"}} {queued_s}',
        f'vllm:request_queue_time_seconds_count{{engine="0"}} {requests}',
    )


def test_between_two_scrapes_rates_and_quantiles_describe_that_time() -> None:
    first, second = counted(100, 1000, 400, 400, 1.0), counted(120, 1640, 600, 450, 1.5)
    before = scraped(VLLM | {pages.METRICS: first}, asked_at=50.0)
    # what the next one is compared with holds no page: a hostile host's takes 16 MB
    kept = numbers_only(before)
    assert [answer.body for answer in kept.scrape.answers.values()] == [b""] * 4
    for earlier in (before, kept):
        now = describe(scraped(VLLM | {pages.METRICS: second}, asked_at=54.0), earlier)
        assert now.interval_s == 4.0
        assert now.requests_per_s == 5.0  # (120 - 100) / 4 s
        assert now.output_tokens_per_s == 160.0  # (1640 - 1000) / 4 s
        assert now.prefix_hit_ratio == 0.25  # (450 - 400) / (600 - 400); since start it is 0.75
        assert now.ttft_p50_ms == pytest.approx(150)  # all 20 in (0.1, 0.2] s: its middle
        assert now.queue_mean_ms == pytest.approx(25)  # (1.5 - 1) s / 20


def test_an_interval_in_which_nothing_happened_has_rate_zero_and_no_quantile() -> None:
    now = describe(scraped(VLLM, asked_at=55.0), scraped(VLLM, asked_at=50.0))
    assert (now.requests_per_s, now.output_tokens_per_s) == (0.0, 0.0)
    assert (now.ttft_p50_ms, now.ttft_p50_below_ms, now.queue_mean_ms) == (None, None, None)
    assert (now.prefix_hit_ratio, now.requests_total) == (None, 1022.0)


@pytest.mark.parametrize(
    "reset", ["process_start_time_seconds 9", 'vllm:request_success_total{engine="0"} 1']
)
def test_a_reset_between_two_scrapes_gives_no_rate(reset: str) -> None:
    lines = {
        "process_start_time_seconds": "process_start_time_seconds 5",
        "vllm:request_success_total": 'vllm:request_success_total{engine="0"} 7',
    }
    if not reset.startswith("process"):
        del lines["process_start_time_seconds"]
    before = scraped(VLLM | {pages.METRICS: metrics(*lines.values())}, asked_at=0.0)
    after = lines | {re.match(r"[\w:]+", reset)[0]: reset}
    now = describe(scraped(VLLM | {pages.METRICS: metrics(*after.values())}, asked_at=4.0), before)
    assert (now.requests_per_s, now.output_tokens_per_s, now.interval_s) == (None, None, 4.0)
    assert findings(now, scraped(VLLM), describe(before))[0].code == "restarted"


# --- what it is, and why it is not well -------------------------------------------------------------------


def behind_our_proxy(engine: bytes) -> PageAnswer:
    counters = Counters()
    counters.take(Served(ts=0.0, model="tiny", status=200, cache="miss", ttft_ms=50, latency_ms=90))
    counters.tally("", "tiny", "chat/completions", stream=True).hit(0.00002, 900, 10, 16)
    lately = LastMinute().indicators()
    return ok(page(counters, Gauges(version="0.1.0"), lately, engine.decode()), "text/plain")


@pytest.mark.parametrize(
    ("changed", "status", "engine", "error"),
    [
        ({}, "ok", "vllm", None),
        ({"MODELS": REFUSED}, "ok", "vllm", None),  # a key on /v1 is no flaw
        ({"METRICS": LATE}, "degraded", "vllm", LATE.problem),
        ({"METRICS": NOT_FOUND}, "degraded", "vllm", "`/metrics` answers 404"),
        (
            {"METRICS": metrics("python_info 1")}, "degraded", "vllm",
            "`/metrics` has no engine's numbers (vLLM: `--disable-log-stats`)",
        ),
        (
            {"VERSION": PageAnswer(problem="`/version` is larger than 1 MiB")}, "degraded", "vllm",
            "`/version` is larger than 1 MiB",
        ),
        (
            {"METRICS": behind_our_proxy(b"")}, "degraded", "vllm",
            "`/metrics` has the response cache's numbers and no engine's",
        ),
    ],
)  # fmt: skip
def test_a_vllms_status_has_its_reason(
    changed: dict[str, PageAnswer], status: str, engine: str, error: str | None
) -> None:
    found = seen(**changed)
    assert (found.status, found.engine, found.error) == (status, engine, error)


CARDS = ok(b'{"object":"list","data":[{"id":"m","object":"model"}]}')
TLS = PageAnswer(status=400, body=b"The plain HTTP request was sent to HTTPS port")
EVERY = ("HEALTH", "VERSION", "MODELS", "METRICS")


@pytest.mark.parametrize(
    ("answers", "status", "error"),
    [
        ({"HEALTH": ok(), "METRICS": LATE}, "degraded", f"answers HTTP, but {LATE.problem}"),
        ({"MODELS": CARDS}, "degraded", "serves models, but `/metrics` answers 404"),
        (
            {"HEALTH": ok(), "METRICS": behind_our_proxy(b"")}, "degraded",
            "a response cache answers, but no engine behind it does",
        ),
        # as nginx and Go's server answer plain HTTP, and as uvicorn does
        (dict.fromkeys(EVERY, TLS), "not_an_engine", "wants TLS; write `https://` before the address"),
        (
            dict.fromkeys(EVERY, CLOSED), "down",
            "every connection was closed without an answer; does the port want `https://`?",
        ),
        # the most common reason of one that gives no page
        (
            dict.fromkeys(EVERY, PageAnswer(problem="refused")) | {"VERSION": PageAnswer(problem="odd")},
            "down", "refused",
        ),
    ],
)  # fmt: skip
def test_what_is_no_whole_engine_is_said_to_be(
    answers: dict[str, PageAnswer], status: str, error: str
) -> None:
    found = seen_only(**answers)
    assert (found.status, found.error) == (status, error)


OF_RUST = b"\n".join(line for line in RECORDED.split(b"\n") if b"cache_config" not in line)
"""As vLLM's front end in Rust ends its page; it has no configuration there either."""


@pytest.mark.parametrize(
    ("page", "dialect"), [(RECORDED, "v1"), (OF_RUST + b"# EOF\n", "rust"), (OF_RUST, "v1")]
)
def test_an_engine_behind_our_proxy_is_read_as_before_and_the_cache_beside_it(
    page: bytes, dialect: str
) -> None:
    direct = scraped(VLLM | {pages.METRICS: ok(page, "text/plain")})
    through = scraped(VLLM | {pages.METRICS: behind_our_proxy(page)})
    assert describe(direct).dialect == dialect
    assert replace(describe(through), readings=()) == replace(describe(direct), readings=())
    found = {finding.code: finding.text for finding in findings(describe(through), through, None)}
    assert found.pop("response_cache") == (
        "a response cache answers: hit ratio 50.0 % of 2 cacheable requests"
    )
    assert found == {each.code: each.text for each in findings(describe(direct), direct, None)}


# --- names and lengths ------------------------------------------------------------------------------------


def test_behind_a_key_the_model_comes_from_metrics_and_the_length_from_tokenize() -> None:
    found = seen(MODELS=REFUSED, TOKENIZE=ok(b'{"count":1,"max_model_len":512,"tokens":[64]}'))
    assert (found.model, found.max_model_len) == ("tiny", 512)


def test_lora_cards_are_models_and_lend_no_length() -> None:
    cards = (
        b'{"data":[{"id":"sql-lora","owned_by":"vllm","root":"/a","parent":"base","max_model_len":null},'
        b'{"id":"base","owned_by":"vllm","max_model_len":4096}]}'
    )
    found = seen(MODELS=ok(cards))
    assert (found.models, found.max_model_len) == (("sql-lora", "base"), 4096)


@pytest.mark.parametrize(
    ("line", "engine", "about", "expected"),
    [
        (
            "tgi_queue_size 0", "tgi",
            b'{"model_id":"org/m","version":"3.3.7","max_total_tokens":4096}', ("3.3.7", "org/m", 4096),
        ),
        (
            "llamacpp:requests_processing 0", "llama.cpp",
            b'{"model_alias":"m","build_info":"b8681","default_generation_settings":{"n_ctx":8192}}',
            ("b8681", "m", 8192),
        ),
    ],
)  # fmt: skip
def test_peers_tell_about_themselves_on_their_own_pages(
    line: str, engine: str, about: bytes, expected: tuple[str, str, int]
) -> None:
    first = dict.fromkeys(pages.FIRST_ROUND, NOT_FOUND) | {pages.HEALTH: ok()}
    found = describe(
        scraped(first | {pages.METRICS: metrics(line), pages.ABOUT[engine]: ok(about)})
    )
    assert (found.status, found.engine) == ("ok", engine)
    assert (found.version, found.model, found.max_model_len) == expected


# --- settings ---------------------------------------------------------------------------------------------


def test_equal_settings_hash_equally_and_a_changed_one_does_not() -> None:
    def hash_with(old: bytes, new: bytes) -> str | None:
        return seen(METRICS=ok(RECORDED.replace(old, new))).config_hash

    # measured at start, not chosen
    assert seen().config_hash == hash_with(b'num_gpu_blocks="16384"', b'num_gpu_blocks="16380"')
    assert seen().config_hash != hash_with(b'cache_dtype="auto"', b'cache_dtype="fp8"')
    assert seen().config_hash != seen(VERSION=ok(b'{"version":"0.33.0"}')).config_hash
    # a page that is always closed or missing leaves the other settings known
    assert seen(MODELS=REFUSED).config_hash == seen(MODELS=NOT_FOUND).config_hash is not None


@pytest.mark.parametrize("name", ["VERSION", "MODELS", "METRICS"])
@pytest.mark.parametrize(
    "failure",
    [PageAnswer(problem="too late"), PageAnswer(status=503), PageAnswer(status=200, problem="cut")],
)
def test_a_scrape_that_was_cut_short_claims_no_settings(name: str, failure: PageAnswer) -> None:
    assert seen(**{name: failure}).config_hash is None


# --- nonsense ---------------------------------------------------------------------------------------------


def test_a_byte_order_mark_spoils_no_line() -> None:
    evidence = scraped(VLLM | {pages.METRICS: ok(b"\xef\xbb\xbf" + recorded("metrics_idle.txt"))})
    assert evidence.page is not None
    assert (evidence.page.bad_lines, describe(evidence).status) == (0, "ok")


@pytest.mark.parametrize(
    "body",
    [
        *(b"[]", b"null", b"{", b'"x"', b'{"data":{}}', b'{"data":[1,null,{"id":7}]}'),
        *(b"[" * 100_000, b"9" * 5000),
    ],
    ids=range(8),
)
def test_nonsense_instead_of_json_is_unknown(body: bytes) -> None:
    found = seen(MODELS=ok(body), VERSION=ok(body))
    assert (found.version, found.max_model_len) == (None, None)
    assert found.model == "tiny"  # from the metrics


@given(st.dictionaries(st.sampled_from(pages.FIRST_ROUND), st.builds(
    PageAnswer, status=st.sampled_from([None, 200, 301, 401, 404, 405, 500, 503]), body=st.binary(),
    problem=st.none() | st.just("odd"), elapsed_ms=st.none() | st.floats(0, 1e6), allow=st.text(),
)))  # fmt: skip
def test_no_answers_make_scout_stumble(answers: dict[str, PageAnswer]) -> None:
    evidence = scraped(dict.fromkeys(pages.FIRST_ROUND, PageAnswer(problem="odd")) | answers)
    found = describe(evidence)
    assert found.status in ("ok", "degraded", "down", "not_an_engine")
    assert (found.status == "ok") == (found.error is None)
    assert findings(found, evidence, replace(found, config_hash="other")) is not None
