"""Which headers pass the proxy, either way, and what a client's say about caching."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from toolkit.proxy.headers import (
    NO_CACHE_CONTROL,
    CacheControl,
    back,
    cache_control,
    forward,
    is_json,
    request_id,
)


def said(*values: bytes, name: bytes = b"cache-control") -> CacheControl:
    return cache_control([(name, value) for value in values])


def own(*values: bytes) -> CacheControl:
    return said(*values, name=b"x-toolkit-cache")


@pytest.mark.parametrize(
    "name",
    [
        *(b"authorization", b"proxy-authorization", b"x-api-key", b"api-key", b"cookie", b"host"),
        *(b"accept-encoding", b"content-encoding", b"content-length", b"transfer-encoding", b"te"),
        *(b"trailer", b"connection", b"keep-alive", b"upgrade", b"proxy-connection", b"expect"),
        *(b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"forwarded", b"via"),
        *(b"x-real-ip", b"origin", b"referer", b"range", b"if-none-match", b"cache-control"),
        *(b"x-toolkit-cache", b"accept", b"user-agent", b"openai-organization", b"x-data-parallel-rank"),
        *(b"content_type", b"content-type ", b"x-request-id", b"", b"x-http-method-override"),
    ],
)  # fmt: skip
def test_nothing_else_of_a_client_goes_upstream(name: bytes) -> None:
    assert forward([(name, b"1")]) == []


@pytest.mark.parametrize(
    "spelling",
    [b"application/json", b"Application/JSON; charset=utf-8", b"application/json;x=\xff", b" application/json "],
)  # fmt: skip
def test_every_spelling_of_json_goes_upstream_as_one_so_that_who_joins_gets_the_same(
    spelling: bytes,
) -> None:
    assert forward([(b"content-type", spelling)]) == [(b"content-type", b"application/json")]
    assert is_json([(b"content-type", spelling)])


@pytest.mark.parametrize(
    "other", [b"text/plain", b"application/jsonl", b"application/json+x", b"application/x-www-form-urlencoded", b""]
)  # fmt: skip
def test_what_is_not_said_to_be_json_is_not(other: bytes) -> None:
    assert not is_json([(b"content-type", other)])
    assert not is_json([(b"accept", b"application/json")])


@pytest.mark.parametrize(
    "bad", [b"a\r\nx: y", b"a\nb", b"a\x00b", b"a\x7fb", b"\xc3\xa9", b"a" * 600]
)
def test_a_value_that_might_end_a_line_or_fill_one_passes_neither_way(bad: bytes) -> None:
    for name in (b"content-type", b"traceparent", b"tracestate"):
        assert forward([(name, bad)]) == []
    assert back([(b"content-type", bad), (b"retry-after", bad)]) == []


def test_a_long_trace_passes_up_to_what_w3c_wants_at_least() -> None:
    fits = [(b"tracestate", b"a" * 512)]
    assert forward(fits) == fits
    assert forward([(b"tracestate", b"a" * 513)]) == []


def test_of_equal_names_the_first_goes_upstream() -> None:
    twice = [(b"tracestate", b"a"), (b"tracestate", b"b")]
    assert forward(twice) == [(b"tracestate", b"a")]


@pytest.mark.parametrize(
    "unsafe", [b"", b"a" * 129, b"a b", b"a\n", b'"a"', b"a;b", b"a,b", b"\xff", b"<a>", b"a\\b", b"{a}"]
)  # fmt: skip
def test_any_other_request_id_is_as_none(unsafe: bytes) -> None:
    assert request_id([(b"x-request-id", unsafe)]) is None


def test_what_the_body_is_and_how_long_to_wait_come_back() -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"retry-after", b"17")]
    assert back(headers) == headers
    dated = [(b"retry-after", b"Wed, 21 Oct 2026 07:28:00 GMT")]
    assert back(dated) == dated
    assert back([(b"retry-after", b"soon")]) == []


@pytest.mark.parametrize(
    "name",
    [
        *(b"set-cookie", b"transfer-encoding", b"content-length", b"content-encoding", b"date", b"server"),
        *(b"connection", b"keep-alive", b"x-request-id", b"x-litellm-model-api-base", b"location", b"via"),
        *(b"x-ratelimit-remaining-requests", b"www-authenticate", b"proxy-authenticate", b"age", b"etag"),
        *(b"cache-status", b"cache-control", b"access-control-allow-origin", b"openai-organization", b"trailer"),
    ],
)  # fmt: skip
def test_nothing_else_of_an_upstream_comes_back(name: bytes) -> None:
    assert back([(name, b"1")]) == []


def test_without_a_word_nothing_special_is_wanted() -> None:
    assert cache_control([(b"content-type", b"application/json")]) is NO_CACHE_CONTROL
    assert CacheControl() == NO_CACHE_CONTROL


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b"no-cache", CacheControl(no_cache=True)),
        (b"no-store", CacheControl(no_store=True)),
        (b"No-Cache, NO-STORE", CacheControl(no_cache=True, no_store=True)),
        (b"only-if-cached", CacheControl(only_if_cached=True)),
        (b"max-age=60", CacheControl(max_age_s=60)),
        (b'max-age="60"', CacheControl(max_age_s=60)),
        (b"max-age = 0", CacheControl(max_age_s=0)),
        (b"min-fresh=5", CacheControl(min_fresh_s=5)),
        (b"max-age=9, max-age=7, max-age=8", CacheControl(max_age_s=7)),
        (b"min-fresh=7, min-fresh=9, min-fresh=8", CacheControl(min_fresh_s=9)),
        (b"max-age=2147483648", CacheControl(max_age_s=2**31)),
        (b"max-age=2147483647", CacheControl(max_age_s=2**31 - 1)),
        (b"max-age=9999999999", CacheControl(max_age_s=2**31)),
        (b"max-age=99999999999999999999999999", CacheControl(max_age_s=2**31)),
        (b'private="no-store, x", no-cache', CacheControl(no_cache=True)),
        (b",, ,no-cache ,", CacheControl(no_cache=True)),
        (b"no-cache junk, no-store", CacheControl(no_cache=True, no_store=True)),
        (b"no-cache=1", CacheControl(no_cache=True)),
    ],
)  # fmt: skip
def test_cache_control_asks_for(value: bytes, wanted: CacheControl) -> None:
    assert said(value) == wanted


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b",", b"=", b"=5", b"max-stale", b"max-stale=1000", b"public", b"private", b"s-maxage=5"),
        *(b"stale-if-error=60", b"stale-while-revalidate=60", b"immutable", b"no-transform", b"no_cache"),
        *(b"\xff\xfe", b"\x00", b'"no-cache"', b"nocache", b"no-cache2", b"x-no-store", b"max-age2=0"),
        *(b'x="no-cache, no-store"', b'x="a\\", no-cache"', b"(no-store)"),
    ],
)  # fmt: skip
def test_what_is_no_wish_of_a_request_changes_nothing(value: bytes) -> None:
    assert said(value) == NO_CACHE_CONTROL


@pytest.mark.parametrize(
    "number", [b"", b"=", b"=-1", b"=x", b"=1.5", b"=1e9", b'="', b"=0x10", b"=+5", b"=\xb2"]
)
def test_a_number_that_cannot_be_read_counts_as_the_strictest(number: bytes) -> None:
    assert said(b"max-age" + number) == CacheControl(max_age_s=0)
    assert said(b"max-age=60, max-age" + number) == CacheControl(max_age_s=0)
    assert said(b"min-fresh" + number) == CacheControl(min_fresh_s=float("inf"))
    assert own(b"ttl" + number).ttl_s == 0


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b"off", CacheControl(no_cache=True, no_store=True)),
        (b"OFF", CacheControl(no_cache=True, no_store=True)),
        (b"no-cache", CacheControl(no_cache=True)),
        (b"no-store, ttl=30s", CacheControl(no_store=True, ttl_s=30)),
        (b"ttl=2m", CacheControl(ttl_s=120)),
        (b"ttl=45", CacheControl(ttl_s=45)),
        (b"ttl=1h, ttl=30s", CacheControl(ttl_s=30)),
        (b"on", NO_CACHE_CONTROL),
        (b"of", CacheControl(no_cache=True, no_store=True)),
        (b"ttl30s", CacheControl(no_cache=True, no_store=True)),
        (b"ttl:30s", CacheControl(no_cache=True, no_store=True, ttl_s=0)),
        (b'"no-store"', CacheControl(no_cache=True, no_store=True)),
        (b"on because", CacheControl(no_cache=True, no_store=True)),
        (b", on,, ", NO_CACHE_CONTROL),
        (b"", NO_CACHE_CONTROL),
        (b"on, off", CacheControl(no_cache=True, no_store=True)),
    ],
)
def test_our_own_header_asks_for(value: bytes, wanted: CacheControl) -> None:
    assert own(value) == wanted


def test_both_headers_add_up() -> None:
    both = [(b"x-toolkit-cache", b"ttl=30s"), (b"cache-control", b"max-age=5, no-store")]
    assert cache_control(both) == CacheControl(ttl_s=30, max_age_s=5, no_store=True)


def test_a_long_list_takes_no_longer_than_its_length() -> None:
    # quadratic reading of either would take minutes
    assert said(b'a="' + b"\\" * 30_000) == NO_CACHE_CONTROL
    assert said(b"," * 30_000 + b"no-store") == CacheControl(no_store=True)
    assert said(b" " * 30_000 + b"=no-cache") == NO_CACHE_CONTROL


NAMES = some.sampled_from(
    [b"cache-control", b"x-toolkit-cache", b"content-type", b"connection", b"x-request-id", b"traceparent"]
)  # fmt: skip
PIECES = some.sampled_from(
    [b"no-store", b"max-age", b"=", b"5", b'"', b"\\", b",", b" ", b"ttl", b"\xff", b"\r\n", b"off", b"1h", b";"]
)  # fmt: skip
LINES = some.lists(
    some.tuples(NAMES, some.one_of(some.lists(PIECES).map(b"".join), some.binary())), max_size=4
)


@settings(deadline=None)
@given(LINES)
def test_no_headers_make_it_raise_and_nothing_that_passes_could_end_a_line(
    headers: list[tuple[bytes, bytes]],
) -> None:
    wanted = cache_control(headers)
    limits = (wanted.max_age_s, wanted.min_fresh_s, wanted.ttl_s)
    assert all(limit >= 0 for limit in limits)
    for passed in (forward(headers), back(headers)):
        assert len({name for name, _ in passed}) == len(passed)
        assert all(value and set(value) <= {9, *range(32, 127)} for _, value in passed)
    told = request_id(headers)
    assert told is None or (told.isascii() and told.isprintable() and " " not in told)
