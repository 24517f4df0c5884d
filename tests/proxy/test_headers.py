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
    "bad", [b"a\r\nx: y", b"a\nb", b"a\x00b", b"a\x7fb", b"\xc3\xa9", b"a" * 600]
)
def test_a_value_that_might_end_a_line_or_fill_one_passes_neither_way(bad: bytes) -> None:
    for name in (b"content-type", b"traceparent", b"tracestate"):
        assert forward([(name, bad)]) == []
    assert back([(b"content-type", bad), (b"retry-after", bad)]) == []


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
