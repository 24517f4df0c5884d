"""What our headers say of an answer, read back by a reader of structured fields (RFC 8941) written for this test alone."""

import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from toolkit.proxy.headers import age, cache_status, key_tag

TCHAR = frozenset("!#$%&'*+-.^_`|~" + string.digits + string.ascii_letters)
KEY_CHARS = frozenset(string.ascii_lowercase + string.digits + "_-.*")


class Token(str):
    """Told apart from a string: RFC 9211 wants tokens in some places."""

    __slots__ = ()


def item(text: str) -> tuple[Any, str]:
    """One bare item at the front of a text, and the rest; a ValueError for what is none."""
    if text[:1] == '"':
        value, place = "", 1
        while text[place] != '"':
            if text[place] == "\\":
                place += 1
                assert text[place] in '"\\'
            assert " " <= text[place] <= "~"
            value += text[place]
            place += 1
        return value, text[place + 1 :]
    if text[:1] in (*string.digits, "-"):
        end = next((i for i, c in enumerate(text) if i and c not in string.digits), len(text))
        assert len(text[:end].lstrip("-")) <= 15
        return int(text[:end]), text[end:]
    assert text[:1] == "*" or text[:1] in string.ascii_letters, text
    end = next((i for i, c in enumerate(text) if c not in TCHAR | {":", "/"}), len(text))
    return Token(text[:end]), text[end:]


def read(field: bytes) -> tuple[Any, dict[str, Any]]:
    """A list of one member: its item and parameters."""
    value, rest = item(field.decode("ascii"))
    parameters: dict[str, Any] = {}
    while rest:
        assert rest[0] == ";", rest
        rest = rest[1:].lstrip(" ")
        end = next((i for i, c in enumerate(rest) if c not in KEY_CHARS), len(rest))
        name, rest = rest[:end], rest[end:]
        assert name[0] in string.ascii_lowercase + "*"
        assert name not in parameters
        parameters[name] = True
        if rest[:1] == "=":
            parameters[name], rest = item(rest[1:])
    return value, parameters


def test_a_hit_says_how_long_it_stays_fresh() -> None:
    assert cache_status(hit=True, ttl_s=59.9) == b"toolkit; hit; ttl=59"
    assert read(cache_status(hit=True, ttl_s=59.9)) == ("toolkit", {"hit": True, "ttl": 59})


def test_a_hit_without_end_has_no_ttl() -> None:
    assert cache_status(hit=True) == b"toolkit; hit"
    assert read(cache_status(hit=True, ttl_s=float("inf")))[1]["ttl"] == 2**31


def test_one_gone_stale_a_moment_ago_is_below_zero() -> None:
    assert read(cache_status(fwd="stale", ttl_s=-0.2))[1] == {"fwd": "stale", "ttl": -1}


def test_a_stored_miss_says_so_with_what_upstream_answered() -> None:
    told = cache_status(fwd="miss", fwd_status=200, stored=True)
    assert told == b"toolkit; fwd=miss; fwd-status=200; stored"
    value, parameters = read(told)
    assert type(value) is Token
    assert type(parameters["fwd"]) is Token
    assert parameters == {"fwd": "miss", "fwd-status": 200, "stored": True}


def test_who_joined_a_call_says_collapsed() -> None:
    assert read(cache_status(fwd="miss", collapsed=True))[1] == {"fwd": "miss", "collapsed": True}


def test_a_bypass_says_why() -> None:
    assert cache_status(fwd="bypass", detail="sampled") == b"toolkit; fwd=bypass; detail=sampled"


def test_a_key_is_a_string_even_where_it_could_be_a_token() -> None:
    _, parameters = read(cache_status(hit=True, key="abc123"))
    assert type(parameters["key"]) is str
    assert parameters["key"] == "abc123"


@pytest.mark.parametrize("told", [{"hit": True, "fwd": "miss"}, {}])
def test_it_is_a_hit_or_was_fetched_and_never_both_or_neither(told: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        cache_status(**told)


@settings(deadline=None)
@given(detail=some.text(), key=some.text())
def test_whatever_it_is_told_its_value_is_one_well_formed_item(detail: str, key: str) -> None:
    value, parameters = read(cache_status(fwd="miss", detail=detail, key=key))
    assert value == "toolkit"
    assert set(parameters) == {"fwd", "key", "detail"}
    for name, told in (("detail", detail), ("key", key)):
        # what is no ASCII stands as a question mark, the rest as it was
        assert parameters[name] == "".join(c if " " <= c <= "~" else "?" for c in told)


@settings(deadline=None)
@given(ttl=some.floats(allow_nan=False), status=some.integers(100, 599), stored=some.booleans())
def test_its_numbers_are_integers_that_a_structured_field_can_hold(
    ttl: float, status: int, stored: bool
) -> None:
    _, parameters = read(cache_status(fwd="stale", ttl_s=ttl, fwd_status=status, stored=stored))
    assert type(parameters["ttl"]) is int
    assert parameters["fwd-status"] == status
    assert ("stored" in parameters) == stored


def test_a_tag_tells_keys_apart_and_not_the_key() -> None:
    one, other = bytes(16), bytes(15) + b"\x01"
    tags = {key_tag(key, secret) for key in (one, other) for secret in (b"s", b"t")}
    assert len(tags) == 4
    assert key_tag(one, b"s") == key_tag(one, b"s")
    assert all(len(tag) == 10 and set(tag) <= set("0123456789abcdef") for tag in tags)
    assert one.hex()[:10] not in tags


def test_a_secret_of_any_length_will_do() -> None:
    assert len(key_tag(b"k", b"s" * 200)) == len(key_tag(b"k", b"")) == 10


def test_age_is_whole_seconds_and_never_below_zero() -> None:
    assert age(1000.0, 1061.9) == b"61"
    assert age(1000.0, 1000.0) == b"0"
    assert age(1000.0, 900.0) == b"0"
    assert age(float("-inf"), 0.0) == b"2147483648"
