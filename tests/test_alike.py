"""Chunks that are read by what differs: the same answer, to the last field, as if each had been parsed."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolkit import completion
from toolkit.alike import MOST_TRIES, Frame, frame
from toolkit.completion import Answer, Completion

RECORDED = Path(__file__).parent / "data" / "vllm-0.32.0-cpu"


def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"index": more.pop("index", 0), "delta": delta, "finish_reason": more.pop("end", None)}
    return {"id": "chatcmpl-1", "model": "tiny", "choices": [choice], **more}


def framed(value: dict[str, Any], data: bytes | None = None) -> tuple[Frame, str] | None:
    return frame(orjson.dumps(value) if data is None else data, value)


def found(text: str = "abc", key: str = "content") -> Frame:
    made = framed(chunk({key: text}))
    assert made is not None
    assert made[1] == key
    return made[0]


def event(value: object) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)


def said(*texts: str) -> bytes:
    return b"".join(event(chunk({"content": text})) for text in texts)


# frames


@pytest.mark.parametrize("key", ["content", "reasoning_content", "reasoning"])
def test_a_chunk_in_the_frame_is_read_by_its_text(key: str) -> None:
    one = found("abc", key)
    assert one.text(event(chunk({key: " Zürich 東"}))) == " Zürich 東"
    other = {"content": "reasoning", "reasoning": "content"}.get(key, "content")
    assert one.text(event(chunk({other: "x"}))) is None


def test_many_chunks_of_one_read_are_read_at_once_up_to_the_first_that_differs() -> None:
    texts = ["a", " b", "c" * 300]
    data = said(*texts)
    assert found().texts(data) == (texts, len(data))
    tail = event(chunk({"content": "d"}, end="stop")) + b"data: [DONE]\n\n"
    assert found().texts(data + tail) == (texts, len(data))
    assert found().texts(tail + data) == ([], 0)


def test_a_chunk_that_is_not_whole_is_left() -> None:
    whole, part = said("a", "b"), said("c")
    for cut in range(len(part)):
        assert found().texts(whole + part[:cut]) == (["a", "b"], len(whole))
        assert found().texts(part[:cut]) == ([], 0)
        assert found().text(part[:cut]) is None


def test_escapes_are_read_as_json_reads_them() -> None:
    texts = ["a", 'say "no"\n', "\\", "\x7f\u2028", "z"]
    data = said(*texts)
    assert found().texts(data) == (texts, len(data))
    assert found().texts(b"".join(event(chunk({"content": "x"})) for _ in "ab"))[0] == ["x", "x"]
    ascii_only = json.dumps(chunk({"content": "é\ud83d\ude00"}), separators=(",", ":")).encode()
    assert found().texts(b"data: %b\n\n" % ascii_only)[0] == ["é😀"]


@pytest.mark.parametrize(
    "inside",
    [
        b"",  # a chunk without a text has no token
        b'a","role":"x',
        b"a\tb",  # JSON allows no bare control character
        b"a\x00",
        b"\xff",
        b"\\",  # it would swallow the quote
        b"\\ud83d",  # half a character: the parser knows what to do with it
        b'a"}}]}\n\ndata: {"x":"y',
    ],
)
def test_what_is_no_inside_of_a_string_is_left_to_the_parser(inside: bytes) -> None:
    data = said("MARK").replace(b"MARK", inside)
    assert found().text(data) is None
    assert found().texts(data) == ([], 0)
    before = said("a", "b")
    assert found().texts(before + data + said("c")) == (["a", "b"], len(before))


@pytest.mark.parametrize(
    "value",
    [
        chunk({"role": "assistant", "content": ""}),
        chunk({"role": "assistant", "content": "a"}),
        chunk({"content": ""}),
        chunk({"content": None}),
        chunk({"content": 'a"b'}),
        chunk({"content": "a\nb"}),
        chunk({"tool_calls": [{"function": {"name": "f"}}]}),
        chunk({"refusal": "no"}),
        chunk({"content": "a"}, end="stop"),
        chunk({"content": "a"}, usage={"completion_tokens": 1}),
        {"choices": []},
        {"choices": [*chunk({"content": "a"})["choices"], *chunk({"content": "b"})["choices"]]},
        {"choices": ["a"]},
        {"choices": [{"text": "a"}]},
    ],
)
def test_a_chunk_that_says_more_than_a_text_has_no_frame(value: dict[str, Any]) -> None:
    assert framed(value) is None


def test_a_frame_is_only_where_another_text_is_all_that_would_change() -> None:
    # the text stands elsewhere, and behind it: replacing the last place would alter the model
    assert framed(chunk({"content": "tiny"}) | {"service": "tiny"}) is None
    probe = chunk({"content": "probe"}) | {"service": "probe"}
    assert framed(probe) is None
    # the last of two equal keys counts
    twice = b'{"id":"1","choices":[{"delta":{"content":"a","content":"b"}}]}'
    one = framed(orjson.loads(twice), twice)
    assert one is not None
    assert one[0].text(b"data: " + twice.replace(b'"b"', b'"c"') + b"\n\n") == "c"
    first = framed(orjson.loads(twice), twice.replace(b'"b"', b'"\\u0062"'))
    assert first is None


def test_data_of_two_lines_has_no_frame() -> None:
    value = chunk({"content": "a"})
    assert framed(value, orjson.dumps(value, option=orjson.OPT_INDENT_2)) is None


# whole answers


def read(reads: list[bytes], *, tries: int = MOST_TRIES) -> Answer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completion, "MOST_TRIES", tries)
        reader = Completion(status=200, content_type="text/event-stream")
        for at, data in enumerate(reads):
            reader.feed(data, float(at))
        return reader.end(float(len(reads)))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(at)]


TEXTS = st.one_of(
    st.sampled_from(["a", " the", "tiny", "probe", ":", '"', "\\", "\n", "", "é", "\ufffd", "0"]),
    st.text(max_size=4).filter(lambda text: text.isprintable()),
)
DELTAS = st.one_of(
    st.builds(lambda text: {"content": text}, TEXTS),
    st.builds(lambda text: {"content": text}, TEXTS),
    st.builds(lambda text: {"reasoning_content": text}, TEXTS),
    st.sampled_from(
        [
            {"role": "assistant", "content": ""},
            {"content": "a", "reasoning": "b"},
            {"content": None},
            {},
            {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        ]
    ),
)
USUAL = st.builds(lambda delta: event(chunk(delta)), DELTAS)
ODD = st.one_of(
    st.builds(lambda delta, index: event(chunk(delta, index=index)), DELTAS, st.integers(0, 2)),
    st.builds(lambda delta, now: event(chunk(delta, created=now)), DELTAS, st.integers(0, 1)),
    st.builds(
        lambda delta, count: event(chunk(delta, usage={"completion_tokens": count})),
        DELTAS,
        st.integers(0, 9),
    ),
    st.builds(lambda delta: event(chunk(delta, end="stop")), DELTAS),
    st.builds(lambda delta: event(chunk(delta)).replace(b"\n", b"\r\n"), DELTAS),
    st.builds(lambda delta: b"event: error\n" + event(chunk(delta)), DELTAS),
    st.builds(lambda delta: b"event: message\n" + event(chunk(delta)), DELTAS),
    st.builds(lambda delta: event(chunk(delta, error={"message": "no"})), DELTAS),
    st.builds(lambda delta: event(chunk(delta)).replace(b"data: ", b"data:"), DELTAS),
    st.builds(lambda delta: event(chunk(delta)).replace(b"a", b"\t"), DELTAS),
    st.builds(lambda delta: event(chunk(delta)).replace(b"a", b"\\ud83d"), DELTAS),
    st.sampled_from(
        [
            b": ping\n\n",
            b"data: {\n\n",
            b"data: 1\n\n",
            b"\n",
            b"data: [DONE]\n\n",
            event(chunk({"content": "a"}, end="stop")),
            event({"choices": [], "usage": {"completion_tokens": 7, "prompt_tokens": 3}}),
        ]
    ),
)
ENDS = st.sampled_from(
    [
        b"",
        event(chunk({"content": "."}, end="stop")) + b"data: [DONE]\n\n",
        event(chunk({}, end="length"))
        + event({"choices": [], "usage": {"completion_tokens": 9, "prompt_tokens": 3}})
        + b"data: [DONE]\n\n",
    ]
)


@given(
    events=st.lists(st.one_of(USUAL, USUAL, USUAL, USUAL, ODD), max_size=25),
    end=ENDS,
    places=st.lists(st.integers(0, 10_000), max_size=12),
)
@example(events=[said("a", "b", "c")], end=b"", places=[])
@example(events=[said("a"), said("b")], end=b"", places=[len(said("a")) - 1])
def test_any_stream_means_the_same_as_if_each_chunk_was_parsed(
    events: list[bytes], end: bytes, places: list[int]
) -> None:
    reads = cut(b"".join(events) + end, places)
    assert read(reads) == read(reads, tries=0)


@pytest.mark.parametrize(
    ("name", "chunks"),
    [("chat_stream.txt", 16), ("chat_stream_contusage.body", 4), ("chat_stream_nousage.body", 4)],
)
@pytest.mark.parametrize("size", [1, 50, 214, 500, 100_000])
def test_recorded_streams_mean_the_same_however_they_were_read(
    name: str, chunks: int, size: int
) -> None:
    data = (RECORDED / name).read_bytes()
    reads = [data[at : at + size] for at in range(0, len(data), size)]
    assert read(reads) == read(reads, tries=0)
    assert read(reads).token_chunks == chunks


@pytest.mark.parametrize("before", [b"event: error\n", b"data: 1\n", b"da", b": ping\r"])
def test_what_a_read_left_over_belongs_to_the_next_chunk(before: bytes) -> None:
    reads = [said("a", "b"), before, said("c"), said("d")]
    assert read(reads) == read(reads, tries=0)
    whole = [b"".join(reads)]
    assert read(whole) == read(whole, tries=0)


def test_reasoning_and_text_are_kept_apart() -> None:
    thought = [event(chunk({"reasoning": text})) for text in ("Hm", ", well", ".")]
    for reads in ([*thought, said("A"), said("B")], [b"".join(thought) + said("A", "B")]):
        answer = read(reads)
        assert (answer.reasoning, answer.text) == ("Hm, well.", "AB")
        assert answer.token_chunks == 5
        assert answer.first_visible_at == (3.0 if len(reads) > 1 else 0.0)


def parsed_chunks(reads: list[bytes], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many chunks of an answer went through the parser."""
    count, loads = 0, orjson.loads

    def counting(data: bytes) -> Any:
        nonlocal count
        count += 1
        return loads(data)

    monkeypatch.setattr(completion.orjson, "loads", counting)
    answer = read(reads)
    monkeypatch.undo()
    assert answer.ok
    return count


def test_of_a_usual_stream_few_chunks_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    role, end = event(chunk({"role": "assistant", "content": ""})), event(chunk({}, end="stop"))
    events = [role, *(said(f" {number}") for number in range(200)), end, b"data: [DONE]\n\n"]
    # the role, the first text and its probe, the end; `[DONE]` is none
    assert parsed_chunks(events, monkeypatch) == 4
    assert parsed_chunks([b"".join(events)], monkeypatch) == 4


def test_the_search_for_a_frame_ends_where_all_chunks_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = [event(chunk({"content": "a"}, created=number)) for number in range(200)]
    events.append(event(chunk({}, end="stop")))
    # each is parsed, and the first eight have a probe
    assert parsed_chunks(events, monkeypatch) == 201 + MOST_TRIES
    assert parsed_chunks([b"".join(events)], monkeypatch) == 201 + MOST_TRIES


def test_the_search_goes_on_while_a_frame_is_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = event(chunk({"content": "a"}, created=1, end="length"))
    # five texts and an odd chunk, forty times: parsed are the first text and its probe, and what is odd
    events = [*(said("b") for _ in range(5)), odd] * 40
    assert parsed_chunks(events, monkeypatch) == 2 + 40
    assert parsed_chunks([b"".join(events)], monkeypatch) == 2 + 40
