"""Logs of requests, whatever wrote them: found out by their first lines, read into the facts of a capture."""

import base64
import json
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.capture.lines import NumberedRequest, line
from toolkit.errors import ToolkitError
from toolkit.protocol.request import asked
from toolkit.records import Asked, Seen
from toolkit.workload import RequestSource, lines_of, read, readers

HI = b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"max_tokens":8,"stream":true}'
# the same request, spelled otherwise
HI_TOO = b'{"messages": [{"role": "user", "content": "Hi"}], "model": "tiny", "max_tokens": 8}'
HO = b'{"model":"tiny","messages":[{"role":"user","content":"Ho"}],"max_tokens":8}'
CHAT = "/v1/chat/completions"
T = 1_750_000_000.25


def hidden(address: str) -> str:
    return f"<{address}>"


def source(
    *lines: bytes | dict | str,
    name: str = "log",
    keep_text: bool = False,
    client: Callable[[str], str] = hidden,
) -> RequestSource:
    return read(map(as_line, lines), name, client=client, keep_text=keep_text)


def as_line(one: bytes | dict | str) -> bytes:
    text = (
        one
        if isinstance(one, bytes)
        else json.dumps(one).encode()
        if isinstance(one, dict)
        else one.encode()
    )
    return text + b"\n"


def all_of(found: RequestSource) -> list[Seen]:
    return list(found.seen)


# --- Our own capture ----------------------------------------------------------------------------


def captured(seen: Seen, **more: object) -> bytes:
    return line(NumberedRequest(seen, new=True, unique_so_far=1), **more).rstrip()


FULL = Seen(
    ts=T,
    took_ms=0.5,
    client="0a1b2c3d4e5f",
    server="10.0.0.4:8000",
    method="POST",
    path=CHAT,
    asked=asked(HI, path=CHAT),
    status=200,
    ttft_ms=12.5,
    latency_ms=100.25,
    prompt_tokens=9,
    cached_tokens=0,
    output_tokens=8,
    finish_reason="length",
    in_flight=2,
)


def test_a_captures_lines_come_back_but_for_what_they_do_not_hold():
    scrape = Seen(ts=T + 1, method="GET", path="/metrics", client="c")
    lost = Seen(ts=T + 2, method="POST", path=CHAT, damaged=True, problem="1,448 bytes lost")
    odd = Seen(ts=T + 3, asked=asked(b'{"a"', path=CHAT))
    found = source(*map(captured, (FULL, scrape, lost, odd)), {"summary": {"gaps": 1}})
    assert (found.kind, found.identities, found.arrivals) == ("capture", "bodies", True)
    assert not found.beginnings
    first, *rest = all_of(found)
    # blocks are in no line, and how many tokens a server counted is the answer's word
    assert first.asked.prompt_blocks == b""
    for name in (
        "exact_key",
        "request_key",
        "prompt_key",
        "model",
        "stream",
        "max_tokens",
        "body_bytes",
    ):
        assert getattr(first.asked, name) == getattr(FULL.asked, name)
    assert (first.asked.messages, first.asked.prompt_chars) == (1, 2)
    assert [getattr(first, name) for name in Seen.__slots__ if name != "asked"] == [
        getattr(FULL, name) for name in Seen.__slots__ if name != "asked"
    ]
    assert rest == [scrape, lost, odd]
    assert found.summary == {"gaps": 1}


def test_a_captures_bodies_are_read_again_byte_for_byte():
    broken = b'{"prompt":"\xff"}'
    lines = []
    for body in (HI, broken):
        told = json.loads(captured(Seen(ts=T, path=CHAT, asked=asked(body, path=CHAT))))
        told["body"] = body.decode(errors="replace")
        if body is broken:
            told["body_base64"] = base64.b64encode(body).decode()
        lines.append(told)
    assert source(*lines).beginnings
    found = [one.asked for one in source(*lines).seen]
    assert found == [asked(HI, path=CHAT), asked(broken, path=CHAT)]


def test_a_preview_that_is_the_whole_prompt_is_its_text_where_texts_are_wanted():
    whole = Asked(
        exact_key="aa", prompt_key="bb", body_bytes=1, prompt_chars=2, prompt_text="a: Hi"
    )
    cut = Asked(
        exact_key="ab", prompt_key="bc", body_bytes=1, prompt_chars=80, prompt_text="x" * 80
    )
    lines = [captured(Seen(ts=T, asked=one)) for one in (whole, cut)]
    assert [one.asked.prompt_text for one in source(*lines, keep_text=True).seen] == ["a: Hi", None]
    assert [one.asked.prompt_text for one in source(*lines).seen] == [None, None]


def test_equal_bodies_share_one_object():
    first, second = source(captured(FULL), captured(FULL)).seen
    assert first.asked is second.asked


def test_a_killed_captures_half_lines_are_told_and_left_out():
    whole = captured(FULL)
    # the rest of a line, then one that its writer left unfinished and the next began anew, then the last
    found = source(whole[40:], whole, whole[:50], whole, whole[:30])
    assert len(all_of(found)) == 2
    assert found.notes == ["3 lines cut off in the midst and left out"]


# --- Proxies ------------------------------------------------------------------------------------

PROXIED = {
    "ts": T,
    "request_id": "r1",
    "team": "red",
    "model": "tiny",
    "prompt_tokens": 15,
    "completion_tokens": 5,
    "ttft_ms": 40.0,
    "tpot_ms": 10.0,
    "cache": "coalesced",
    "finish_reason": "stop",
    "new": False,
}


def test_a_proxys_log_tells_answers_teams_and_the_cache():
    found = source(PROXIED, PROXIED | {"request_id": "r2", "cache": "hit", "latency_ms": 7})
    assert (found.kind, found.identities, found.beginnings) == ("proxy", None, False)
    first, second = all_of(found)
    assert (first.ts, first.client, first.asked.model) == (T, "red", "tiny")
    assert (first.prompt_tokens, first.output_tokens, first.finish_reason) == (15, 5, "stop")
    # 40 ms to the first token and 10 for each of the 4 that follow
    assert (first.ttft_ms, first.latency_ms, first.cache) == (40.0, 80.0, "coalesced")
    assert (second.cache, second.latency_ms) == ("hit", 7.0)
    assert first.asked.prompt_key != second.asked.prompt_key
    assert found.notes == ["the log itself calls 2 requests a repeat"]


def test_a_proxys_keys_tell_which_requests_are_alike():
    keys = {"prompt_key": "aa", "request_key": "bb"}
    found = source(
        PROXIED | keys, PROXIED | keys, PROXIED | {"prompt_key": "aa", "request_key": "cc"}
    )
    assert found.identities == "bodies"
    rows = all_of(found)
    assert [(one.asked.prompt_key, one.asked.request_key) for one in rows] == [
        ("aa", "bb"),
        ("aa", "bb"),
        ("aa", "cc"),
    ]
    assert rows[0].asked is rows[1].asked
    sized = source(PROXIED | {"prompt_key": "aa", "body_bytes": 7})
    assert sized.identities == "prompts"
    assert next(sized.seen).asked.body_bytes == 7


def test_a_request_without_a_prompt_is_none_of_those_that_a_proxys_keys_tell_apart():
    keys = {"prompt_key": "aa", "request_key": "bb"}
    page = {"request_id": "1", "ts": T, "cache": None, "method": "GET", "path": "/v1/models"}
    found = source(page | {"prompt_key": None, "request_key": None}, PROXIED | keys)
    assert found.identities == "bodies"
    assert [one.asked is None for one in all_of(found)] == [True, False]
    # a log that never names a prompt has only its lines to tell requests apart
    assert all_of(source(page))[0].asked is not None


def test_what_happened_beside_the_requests_is_left_out_but_a_request_with_an_event_is_not():
    event = {"event": "upstream_left", "ts": T, "upstream": "a"}
    row = {"request_id": "1", "ts": T, "cache": "hit", "request_key": "r", "prompt_key": "p"}
    rejected = {"event": "rejection", **row, "status": 429}
    assert len(all_of(source(*[event] * 30, row, event, rejected, event))) == 2
    assert source(event, row).identities == "bodies"
    # a body may have such a field, too
    own = {"event": "done", "ts": T, "prompt": "Hi"}
    assert len(all_of(source(own, own))) == 2
    with pytest.raises(ToolkitError, match="holds no request"):
        source(event)


# --- nginx --------------------------------------------------------------------------------------

NGINX = {
    "msec": T + 2.5,
    "remote_addr": "10.0.0.9",
    "request_method": "POST",
    "request_uri": f"{CHAT}?x=1",
    "status": 200,
    "request_time": 2.5,
    "request_body": HI.decode(),
}


def test_nginx_tells_when_a_request_was_done_and_so_when_it_came():
    found = source(NGINX, NGINX | {"msec": None, "time_iso8601": "2025-06-15T17:06:42+02:00"})
    assert (found.kind, found.identities, found.beginnings) == ("nginx", "bodies", True)
    first, second = all_of(found)
    assert (first.ts, first.latency_ms, first.status, first.took_ms) == (T, 2500.0, 200, None)
    # 15:06:42 UTC is 1,750,000,002 s since 1970
    assert second.ts == 1_750_000_002 - 2.5
    assert (first.client, first.method, first.path) == ("<10.0.0.9>", "POST", CHAT)
    assert first.asked == asked(HI, path=CHAT)


def test_an_nginx_log_without_bodies_says_what_is_not_known():
    bare = {name: value for name, value in NGINX.items() if name != "request_body"}
    combined = {
        "time_iso8601": "2025-06-15T15:06:42Z",
        "request_time": "0.1",
        "remote_addr": "::1",
        "request": f"POST {CHAT}?a HTTP/1.1",
        "status": "200",
    }
    short = combined | {"request": "GET"}
    assert [(one.method, one.path) for one in source(combined, short).seen][1] == ("GET", None)
    found = source(bare, bare, combined, combined | {"request": "GET /metrics HTTP/1.1"})
    assert found.identities is None
    rows = all_of(found)
    assert len({one.asked.prompt_key for one in rows[:3]}) == 3
    assert (rows[2].method, rows[2].path, rows[2].status) == ("POST", CHAT, 200)
    assert rows[3].asked is None
    [note] = found.notes
    assert note.startswith(
        "3 requests POST without `request_body` in the log: nginx keeps it only up to "
    )


def test_bytes_that_are_no_utf_8_pass_through_an_nginx_log():
    body = b'{"prompt":"\xff\xc3("}'
    row = (
        json.dumps(NGINX | {"request_body": "@"}).encode().replace(b"@", body.replace(b'"', b'\\"'))
    )
    [one] = source(row).seen
    assert one.asked.exact_key == asked(body).exact_key


# --- Bodies -------------------------------------------------------------------------------------


def test_plain_bodies_are_read_by_their_bytes_and_have_no_times():
    found = source(HI, b"", HO, HI_TOO, name="bodies.jsonl")
    assert (found.kind, found.identities, found.arrivals) == ("bodies", "bodies", False)
    assert found.beginnings
    rows = all_of(found)
    assert [one.ts for one in rows] == [0.0, 1.0, 2.0]
    assert [one.asked for one in rows] == [asked(HI), asked(HO), asked(HI_TOO)]
    assert rows[0].asked.request_key == rows[2].asked.request_key


def test_a_batch_file_holds_a_body_and_its_path():
    batch = {"custom_id": "1", "method": "POST", "url": CHAT, "body": json.loads(HI)}
    found = source(batch, batch | {"body": HO.decode()})
    assert (found.kind, found.arrivals) == ("bodies", False)
    first, second = all_of(found)
    assert (first.method, first.path) == ("POST", CHAT)
    assert first.asked.request_key == asked(HI, path=CHAT).request_key
    assert second.asked == asked(HO, path=CHAT)


def test_bodies_with_times_are_arrivals_and_each_needs_one():
    row = {"ts": T, "client": "10.0.0.9", "body": json.loads(HI)}
    found = source(row, row | {"ts": T * 1e3 + 1000})
    assert found.arrivals
    first, second = all_of(found)
    # the second's number is too large for seconds
    assert (first.ts, first.client, second.ts) == (T, "<10.0.0.9>", T + 1)
    with pytest.raises(ToolkitError, match="`log` line 2 has no time that can be read"):
        all_of(source(row, row | {"ts": "soon"}))


@pytest.mark.parametrize("space", [b"", b"\n ", b"\r\n\t"])
def test_a_json_list_is_read_like_its_entries(space):
    text = b"[" + space + HI + b"," + space + HO + space + b"]"
    found = read(text.splitlines(keepends=True), "a.json", client=hidden)
    assert (found.kind, found.arrivals) == ("bodies", False)
    assert [one.asked.prompt_key for one in found.seen] == [
        asked(HI).prompt_key,
        asked(HO).prompt_key,
    ]


# --- What is wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "`x` holds no request"),
        (b"\n \n", "`x` holds no request"),
        (b"hello\n", "`x` line 1 is of no log or trace that is known"),
        (b'\n{"a": 1}\n', "`x` line 2 is of no log or trace that is known"),
        (b"a,b\n1,2\n", "`x` line 1 is of no log or trace that is known"),
        (b"[1, 2]", "`x` is no JSON list of objects"),
        (b"[", "`x` is no JSON list of objects"),
        (b"[]", "`x` is a list of nothing that is known"),
        (b'[{"a": 1}]', "`x` is a list of nothing that is known"),
        (HI + b"\nhello\n" + HI, "`x` line 2 is not a JSON object"),
        (HI + b"\n5\n" + HI, "`x` line 2 is not a JSON object"),
        (HI + b"\n" + HI[:20] + b"\n" + HI, "`x` line 2 is not a JSON object"),
        (b"hello\n" + HI, "`x` line 1 is not a JSON object"),
        (b'{"body": 5}', "`x` line 1: `body` is neither an object nor a text"),
        (b'{"request_id": "1", "team": "a"}', "`x` line 1 has no time that can be read"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text, message):
    with pytest.raises(ToolkitError) as caught:
        list(read(text.splitlines(keepends=True), "x", client=hidden).seen)
    assert caught.value.message == message
    assert caught.value.hint


def test_a_torn_last_line_is_told_and_a_first_line_with_a_mark_of_its_encoding_is_read():
    found = source(b"\xef\xbb\xbf" + HI, HO, HI[:-1])
    assert len(all_of(found)) == 2
    assert found.notes == ["1 line cut off in the midst and left out"]


def test_a_deep_or_a_long_line_is_bounded():
    deep = b'{"prompt": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    long = b'{"prompt": "' + b"x" * 10_000_000 + b'"}'
    with pytest.raises(ToolkitError, match="line 2 is not a JSON object"):
        all_of(source(HI, deep, HI))
    [_, one] = source(HI, long).seen
    assert one.asked.prompt_chars == 10_000_000


def test_a_line_beyond_all_bounds_is_refused_before_it_fills_the_memory(monkeypatch):
    monkeypatch.setattr(readers, "LINE_BYTES", 100)
    asked_for: list[int] = []

    def endless(limit: int) -> bytes:
        asked_for.append(limit)
        return b"x" * limit

    with pytest.raises(ToolkitError, match="`x` line 1 is longer than"):
        read(lines_of(endless), "x", client=hidden)
    assert asked_for == [102]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    sorted(
        {
            *PROXIED,
            *NGINX,
            *json.loads(captured(FULL)),
            *("body", "messages", "prompt", "hash_ids", "input_length", "timestamp", "summary"),
        }
    )
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(NAMES, JSON, max_size=8), min_size=1, max_size=3))
def test_whatever_a_line_holds_is_read_or_refused_in_our_own_words(rows):
    lines = [json.dumps(row).encode() for row in rows]
    try:
        found = all_of(read(lines, "x", client=hidden))
    except ToolkitError:
        return
    assert all(isinstance(one, Seen) for one in found)


def test_lines_are_taken_as_they_are_needed():
    def growing() -> Iterable[bytes]:
        yield HI
        yield HO
        yield HI
        raise AssertionError("nobody asked for a fourth line")

    assert next(source_of(growing()).seen).asked == asked(HI)


def source_of(lines: Iterable[bytes]) -> RequestSource:
    return read(lines, "log", client=hidden)
