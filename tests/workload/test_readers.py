"""Logs, bodies and traces of requests, whatever wrote them: found out by their first lines, read into the facts of a capture."""

import base64
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.capture.jsonl import NumberedRequest, line
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


def source(*lines: bytes | dict | str, name: str = "log", keep_text: bool = False) -> RequestSource:
    """Each client's address in angle brackets."""
    texts = (json.dumps(one) if isinstance(one, dict) else one for one in lines)
    data = (one if isinstance(one, bytes) else one.encode() for one in texts)
    return read((one + b"\n" for one in data), name, client="<{}>".format, keep_text=keep_text)


def seen(*lines: bytes | dict | str, **more: Any) -> list[Seen]:
    return list(source(*lines, **more).seen)


# --- Our own capture ------------------------------------------------------------------------------------


def captured(seen: Seen, **more: Any) -> bytes:
    return line(NumberedRequest(seen, new=True, unique_so_far=1), **more).rstrip()


FULL = Seen(
    ts=T, took_ms=0.5, client="0a1b2c3d4e5f", server="10.0.0.4:8000", method="POST", path=CHAT,
    asked=asked(HI, path=CHAT), status=200, ttft_ms=12.5, latency_ms=100.25, prompt_tokens=9, cached_tokens=0,
    output_tokens=8, finish_reason="length", in_flight=2,
)  # fmt: skip


def test_a_captures_lines_come_back_but_for_what_they_do_not_hold() -> None:
    scrape = Seen(ts=T + 1, method="GET", path="/metrics", client="c")
    lost = Seen(ts=T + 2, method="POST", path=CHAT, damaged=True, problem="1,448 bytes lost")
    odd = Seen(ts=T + 3, asked=asked(b'{"a"', path=CHAT))
    found = source(*map(captured, (FULL, scrape, lost, odd, FULL)), {"summary": {"gaps": 1}})
    assert (found.kind, found.identities, found.arrivals) == ("capture", "bodies", True)
    assert not found.beginnings
    first, *rest, again = found.seen
    assert rest == [scrape, lost, odd]
    assert found.summary == {"gaps": 1}
    # blocks are in no line; equal bodies share one record
    assert (first.asked.prompt_blocks, first.asked is again.asked) == (b"", True)
    names = (
        "exact_key request_key prompt_key model stream max_tokens body_bytes messages prompt_chars"
    )
    for name in names.split():
        assert getattr(first.asked, name) == getattr(FULL.asked, name), name
    for name in set(Seen.__slots__) - {"asked"}:
        assert getattr(first, name) == getattr(FULL, name), name


def test_a_captures_bodies_are_read_again_byte_for_byte() -> None:
    broken = b'{"prompt":"\xff"}'
    lines = []
    for body in (HI, broken):
        row = json.loads(captured(Seen(ts=T, path=CHAT, asked=asked(body, path=CHAT))))
        coded = {"body_base64": base64.b64encode(body).decode()} if body is broken else {}
        lines.append(row | {"body": body.decode(errors="replace")} | coded)
    assert source(*lines).beginnings
    assert [one.asked for one in seen(*lines)] == [asked(HI, path=CHAT), asked(broken, path=CHAT)]
    # what is no base64 is no body: the keys say what it was
    assert seen(lines[1] | {"body_base64": "ä"})[0].asked.exact_key == asked(broken).exact_key


def test_a_preview_that_is_the_whole_prompt_is_its_text_where_texts_are_wanted() -> None:
    lines = [
        captured(Seen(ts=T, asked=Asked(exact_key=text, prompt_key=text, body_bytes=1, prompt_text=text)))
        for text in ("a: Hi", "x" * 80)
    ]  # fmt: skip
    assert [one.asked.prompt_text for one in seen(*lines, keep_text=True)] == ["a: Hi", None]
    assert [one.asked.prompt_text for one in seen(*lines)] == [None, None]


def test_a_killed_captures_half_lines_are_counted_and_left_out() -> None:
    whole = captured(FULL)
    # the rest of a line, then one that its writer left unfinished and the next began anew, then the last
    found = source(whole[40:], whole, whole[:50], whole, whole[:30])
    assert len(list(found.seen)) == 2
    assert found.notes == ["3 lines cut off in the midst and left out"]


# --- The proxy's log ------------------------------------------------------------------------------------

PROXIED = {
    "ts": T, "request_id": "r1", "team": "red", "model": "tiny", "prompt_tokens": 15, "completion_tokens": 5,
    "ttft_ms": 40.0, "latency_ms": 80.0, "upstream": "a", "cache": "coalesced", "finish_reason": "stop", "new": False,
}  # fmt: skip
KEYS = {"prompt_key": "aa", "request_key": "bb"}


def test_a_proxys_log_has_answers_teams_and_the_cache() -> None:
    found = source(PROXIED, PROXIED | {"request_id": "r2", "cache": "hit", "new": True})
    assert (found.kind, found.identities, found.beginnings) == ("proxy", None, False)
    first, second = found.seen
    assert (first.ts, first.client, first.server, first.asked.model) == (T, "red", "a", "tiny")
    assert (first.prompt_tokens, first.output_tokens, first.finish_reason) == (15, 5, "stop")
    assert (first.ttft_ms, first.latency_ms, first.cache) == (40.0, 80.0, "coalesced")
    assert second.cache == "hit"
    assert first.asked.prompt_key != second.asked.prompt_key
    assert found.notes == ["the log itself calls 1 request new", "the log itself calls 1 request a repeat"]  # fmt: skip


def test_a_proxys_keys_say_which_requests_are_alike() -> None:
    page = {"request_id": "1", "ts": T, "cache": None, "method": "GET", "path": "/v1/models"}
    lines = (
        page | {"prompt_key": None, "request_key": None},
        PROXIED | KEYS,
        PROXIED | KEYS,
        PROXIED | {"prompt_key": "aa", "request_key": "cc"},
    )
    assert source(*lines).identities == "bodies"
    # a line without a prompt is of none; in a log that never names one there are only the lines to go by
    none, first, second, third = (one.asked for one in seen(*lines))
    assert (none, first is second) == (None, True)
    assert [(one.prompt_key, one.request_key) for one in (first, third)] == [
        *(("aa", "bb"), ("aa", "cc")),
    ]
    assert seen(page)[0].asked is not None
    sized = source(PROXIED | {"prompt_key": "aa", "body_bytes": 7})
    assert (sized.identities, next(sized.seen).asked.body_bytes) == ("prompts", 7)


def test_what_happened_beside_the_requests_is_left_out_but_a_request_with_an_event_is_not() -> None:
    event = {"event": "upstream_left", "ts": T, "upstream": "a"}
    row = {"request_id": "1", "ts": T, "cache": "hit", **KEYS}
    rejected = {"event": "rejection", **row, "status": 429}
    assert len(seen(*[event] * 30, row, event, rejected, event)) == 2
    # a body may have such a field, too
    own = {"event": "done", "ts": T, "prompt": "Hi"}
    assert len(seen(own, own)) == 2
    with pytest.raises(ToolkitError, match="holds no request"):
        source(event)


# --- nginx ----------------------------------------------------------------------------------------------

NGINX = {
    "msec": T + 2.5, "remote_addr": "10.0.0.9", "server": "10.0.0.1:80", "request_method": "POST",
    "request_uri": f"{CHAT}?x=1", "status": 200, "request_time": 2.5, "request_body": HI.decode(),
}  # fmt: skip


def test_nginx_says_when_a_request_was_done_and_so_when_it_came() -> None:
    lines = (NGINX, NGINX | {"msec": None, "time_iso8601": "2025-06-15T17:06:42+02:00"})
    found = source(*lines)
    assert (found.kind, found.identities, found.beginnings) == ("nginx", "bodies", True)
    first, second = found.seen
    assert (first.ts, first.latency_ms, first.status, first.took_ms) == (T, 2500.0, 200, None)
    # 15:06:42 UTC is 1,750,000,002 s since 1970
    assert second.ts == 1_750_000_002 - 2.5
    assert (first.client, first.server, first.method) == ("<10.0.0.9>", "10.0.0.1:80", "POST")
    assert (first.path, first.asked) == (CHAT, asked(HI, path=CHAT))


def test_an_nginx_log_without_bodies_says_what_is_not_known() -> None:
    bare = {name: value for name, value in NGINX.items() if name != "request_body"}
    combined = {
        "time_iso8601": "2025-06-15T15:06:42Z", "request_time": "0.1", "remote_addr": "::1", "status": "200",
        "request": f"POST {CHAT}?a HTTP/1.1",
    }  # fmt: skip
    found = source(bare, bare, combined, combined | {"request": "GET"})
    assert found.identities is None
    *posts, page = found.seen
    assert len({one.asked.prompt_key for one in posts}) == 3
    assert (posts[2].method, posts[2].path, posts[2].status) == ("POST", CHAT, 200)
    assert (page.asked, page.method, page.path) == (None, "GET", None)
    [note] = found.notes
    assert note.startswith(
        "3 requests POST without `request_body` in the log: nginx keeps it only up to "
    )


def test_bytes_that_are_no_utf_8_pass_through_an_nginx_log() -> None:
    body = b'{"prompt":"\xff\xc3("}'
    row = json.dumps(NGINX | {"request_body": "@"}).encode()
    [one] = seen(row.replace(b"@", body.replace(b'"', b'\\"')))
    assert one.asked.exact_key == asked(body).exact_key


# --- Bodies ---------------------------------------------------------------------------------------------


def test_plain_bodies_are_read_by_their_bytes_and_have_no_times() -> None:
    found = source(b"\xef\xbb\xbf" + HI, b"", HO, HI_TOO, HI[:-1])
    assert (found.kind, found.identities, found.arrivals) == ("bodies", "bodies", False)
    assert found.beginnings
    rows = list(found.seen)
    assert [one.ts for one in rows] == [0.0, 1.0, 2.0]
    assert [one.asked for one in rows] == [asked(HI), asked(HO), asked(HI_TOO)]
    assert found.notes == ["1 line cut off in the midst and left out"]


def test_a_batch_file_holds_a_body_and_its_path() -> None:
    batch = {"custom_id": "1", "method": "POST", "url": CHAT, "body": json.loads(HI)}
    found = source(batch, batch | {"body": HO.decode()})
    assert (found.kind, found.arrivals) == ("bodies", False)
    first, second = found.seen
    assert (first.method, first.path) == ("POST", CHAT)
    assert first.asked.request_key == asked(HI, path=CHAT).request_key
    assert second.asked == asked(HO, path=CHAT)


def test_bodies_with_times_are_arrivals_and_each_needs_one() -> None:
    row = {"ts": T, "client": "10.0.0.9", "body": json.loads(HI)}
    # the second's number is too large for seconds
    first, second, third = seen(row, row | {"ts": T * 1e3 + 1000}, {"timestamp": T + 2, "body": row["body"]})  # fmt: skip
    assert source(row).arrivals
    assert (first.ts, first.client) == (T, "<10.0.0.9>")
    assert (second.ts, third.ts) == (T + 1, T + 2)
    # 1e11 s is the year 5138, 1e11 ms is March 1973
    units = {99_999_999_999: 1.0, 1.5e11: 1e3, 1.5e14: 1e6, 1.5e17: 1e9}
    assert [seen(row | {"ts": ts})[0].ts for ts in units] == [
        ts / unit for ts, unit in units.items()
    ]
    with pytest.raises(ToolkitError, match="`log` line 2 has no time that can be read"):
        seen(row, row | {"ts": "soon"})


@pytest.mark.parametrize("space", [b"", b"\n ", b"\r\n\t"])
def test_a_json_list_is_read_like_its_entries(space: bytes) -> None:
    text = b"[" + space + HI + b"," + space + HO + space + b"]"
    found = read(text.splitlines(keepends=True), "a.json", client=str)
    assert (found.kind, found.arrivals) == ("bodies", False)
    prompts = [one.asked.prompt_key for one in found.seen]
    assert prompts == [asked(HI).prompt_key, asked(HO).prompt_key]


# --- Traces, written out by hand in the form in which they were published -------------------------------

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2024-05-10 01:00:00+01:00,2399,6
2023-11-16 18:15:51.2224670,374,44"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,0,1087,API log"""
MOONCAKE = """{"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2353]}
{"timestamp": 30535, "input_length": 1024, "output_length": 26, "hash_ids": [46, 47]}
{"timestamp": 30536, "input_length": 1100, "output_length": 9, "hash_ids": [46, 47, 2353]}
{"timestamp": 30537, "input_length": 1101, "output_length": 1, "hash_ids": [46, 47, 2353]}"""


@pytest.mark.parametrize(
    ("text", "kind", "rows", "notes"),
    [
        # 2023-11-16 18:15:46 UTC is 1,700,158,546 s since 1970; 01:00 at an hour's offset is midnight, 1,715,299,200 s
        (
            AZURE,
            "azure",
            [(1_700_158_546.68059, None, 374, 44), (1_715_299_200.0, None, 2399, 6), (1_700_158_551.222467, None, 374, 44)],
            [],
        ),
        # its failures have no length; no more than its four columns are needed, and it may begin at zero
        (BURSTGPT, "burstgpt", [(5.0, "ChatGPT", 472, 18), (45.5, "GPT-4", 1087, None)], ["1 request with an answer of no tokens"]),
        ("Timestamp,Model,Request tokens,Response tokens\n0,GPT-4,9,3", "burstgpt", [(0.0, "GPT-4", 9, 3)], []),
        (f"{AZURE}\n2024-05-10 00:0", "azure", None, ["1 line cut off in the midst"]),
        (f"{BURSTGPT}\n46,Ch", "burstgpt", None, ["1 line cut off in the midst", "1 request with"]),
    ],
)  # fmt: skip
def test_rows_of_tables_have_lengths_and_moments_and_no_two_are_alike(
    text: str, kind: str, rows: list | None, notes: list[str]
) -> None:
    found = source(*text.split("\n"))
    read_rows = list(found.seen)
    assert (found.kind, found.identities, found.arrivals) == (kind, None, True)
    assert not found.beginnings
    if rows is not None:
        assert [
            (round(one.ts, 6), one.asked.model, one.asked.prompt_tokens, one.output_tokens)
            for one in read_rows
        ] == rows
    assert len({one.asked.prompt_key for one in read_rows}) == len(read_rows) > 0
    assert [note[: len(begin)] for note, begin in zip(found.notes, notes, strict=True)] == notes
    # nor are those of two files
    other = next(source(*text.split("\n"), name="other").seen)
    assert other.asked.prompt_key != read_rows[0].asked.prompt_key


def test_equal_ids_and_an_equal_length_are_one_prompt_and_only_whole_blocks_are_blocks() -> None:
    found = source(*MOONCAKE.split("\n"))
    rows = list(found.seen)
    assert (found.kind, found.identities, found.arrivals) == ("mooncake", "prompts", True)
    assert found.beginnings
    assert [one.ts for one in rows] == [27.482, 30.535, 30.536, 30.537]
    prompts = [one.asked for one in rows]
    # 1,100 tokens are two whole blocks and 76 tokens; the last row's 77 are another prompt's
    assert [one.prompt_key == prompts[0].prompt_key for one in prompts] == [
        True,
        False,
        True,
        False,
    ]
    assert prompts[2] is prompts[0]
    assert [one.prompt_blocks for one in prompts] == [(46).to_bytes(8) + (47).to_bytes(8)] * 4
    assert {one.block_tokens for one in prompts} == {512.0}
    assert [one.prompt_tokens for one in prompts] == [1100, 1024, 1100, 1101]
    assert [one.output_tokens for one in rows] == [52, 26, 9, 1]
    # a prompt whose end has no id is like no other; of whole blocks it is
    half = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [7]}'
    for text, is_one in ((half, False), (half.replace("600", "512"), True)):
        first, second = seen(text, text)
        assert (first.asked == second.asked) is is_one
        assert first.asked.prompt_blocks == second.asked.prompt_blocks == (7).to_bytes(8)


# --- What is wrong --------------------------------------------------------------------------------------


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
        (HI + b'\n{"prompt": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n" + HI, "`x` line 2 is not a JSON object"),
        (b'{"body": 5}', "`x` line 1: `body` is neither an object nor a text"),
        (b'{"request_id": "1", "team": "a"}', "`x` line 1 has no time that can be read"),
        (b'{"request_time": 1, "remote_addr": "a"}', "`x` line 1 has no time that can be read"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(text: bytes, message: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        list(read(text.splitlines(keepends=True), "x", client=str).seen)
    assert (caught.value.message, bool(caught.value.hint)) == (message, True)


@pytest.mark.parametrize(
    ("trace", "right", "wrong"),
    [
        *(
            (AZURE, ",2399,", wrong)
            for wrong in (",many,", ",-396,", "", f",{'9' * 400},", f',"{"9" * 200_000}",')
        ),
        (AZURE, "2024-05-10 01:00:00+01:00", "yesterday"),
        *((BURSTGPT, "5,ChatGPT", f"{wrong},ChatGPT") for wrong in ("nan", "-5", "soon")),
        *((BURSTGPT, *pair) for pair in (("472", "x"), (",18,", ",x,"))),
        *((MOONCAKE, '"timestamp": 27482', f'"timestamp": {wrong}') for wrong in ("-1", "null", '"x"')),
        (MOONCAKE, '"input_length": 1100', '"input_length": null'),
        (MOONCAKE, "[46, 47]}", "[46, 47, 48]}"),
        # one too many; two whole blocks, one id; below 0; 2**64
        *(
            (MOONCAKE, "[46, 47, 2353]", wrong)
            for wrong in ("[46, 47, 48, 49]", "[46]", "[46, 47, -1]", "[46, 47, 18446744073709551616]", '[46, 47, "a"]', "{}")
        ),
    ],
)  # fmt: skip
def test_a_wrong_row_of_a_trace_names_its_line_and_what_was_expected(
    trace: str, right: str, wrong: str
) -> None:
    with pytest.raises(ToolkitError) as caught:
        seen(*trace.replace(right, wrong, 1).split("\n"))
    assert caught.value.message.startswith("`log` line ")
    assert caught.value.message.endswith(" trace")
    assert caught.value.hint in readers.TRACE_EXAMPLES.values()


def test_a_line_beyond_all_bounds_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [one] = seen(b'{"prompt": "' + b"x" * 10_000_000 + b'"}')
    assert one.asked.prompt_chars == 10_000_000
    monkeypatch.setattr(readers, "LINE_BYTES", 100)
    wanted: list[int] = []

    def endless(limit: int) -> bytes:
        wanted.append(limit)
        return b"x" * limit

    with pytest.raises(ToolkitError, match="`x` line 1 is longer than"):
        read(lines_of(endless), "x", client=str)
    assert wanted == [102]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
OTHERS = (
    "body body_base64 messages prompt hash_ids input_length timestamp summary request time_iso8601"
)
NAMES = st.sampled_from(sorted({*PROXIED, *NGINX, *json.loads(captured(FULL)), *OTHERS.split()}))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(NAMES, JSON, max_size=8), min_size=1, max_size=3))
def test_whatever_a_line_holds_is_read_or_refused_in_our_own_words(rows: list[dict]) -> None:
    try:
        found = seen(*rows)
    except ToolkitError:
        return
    assert all(isinstance(one, Seen) for one in found)


def test_lines_are_taken_as_they_are_needed() -> None:
    def growing() -> Iterable[bytes]:
        yield from (HI, HO, HI)
        raise AssertionError("nobody asked for a fourth line")

    assert next(read(growing(), "log", client=str).seen).asked == asked(HI)
