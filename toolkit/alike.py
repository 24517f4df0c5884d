"""Chunks of a stream that differ in nothing but their text, read without parsing the JSON around it. Pure.

A server writes the same bytes around each token: `data: {"id":...,"choices":[{"index":0,"delta":{"content":"` and
`"},"finish_reason":null}]}`. A frame is these two ends of a chunk that was parsed. As long as chunks follow that stand
in the same frame, and what is between its ends is the inside of one JSON string, that string is all that is new.

Measured on a shared core with a recorded stream's chunks of 214 bytes, all that an answer of 64 of them costs divided by
64: 2.0 us instead of 3.0 where they come one by one, 1.2 instead of 2.5 where they come in one read.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from toolkit.event_stream import DATA, LAST_LINE_ENDS

MOST_TRIES = 8
"""Chunks that are looked at in a row without a frame that was of use. Where they differ in more than their text, e.g. in
a time of day, the search must end: it costs 4 us each time."""
TEXT_KEYS = frozenset({"content", "reasoning_content", "reasoning"})
"""Of a delta: what `choices.py` takes for text and for reasoning."""


class Frame:
    """What stands around the texts of one choice's chunks."""

    __slots__ = ("_around", "_end", "_start", "_tail")

    def __init__(self, head: bytes, tail: bytes) -> None:
        self._start = DATA + head
        self._end = tail + LAST_LINE_ENDS
        self._around = len(self._start) + len(self._end)
        self._tail = len(tail)

    def text(self, data: bytes) -> str | None:
        """The text of the one chunk that `data` is; None where it is anything else, or must be unescaped."""
        if not (data.startswith(self._start) and data.endswith(self._end)):
            return None
        inside = data[len(self._start) : -len(self._end)]
        if len(data) <= self._around or b'"' in inside or b"\\" in inside:
            return None
        text = inside.decode(errors="replace")
        return text if text.isprintable() and "\ufffd" not in text else None

    def texts(self, data: bytes) -> tuple[list[str], int]:
        """The texts of the chunks in this frame that `data` begins with, and how many bytes these are.

        None of the texts is empty: a chunk without a text has no token, and is for the parser.
        """
        insides = self._insides(data)
        texts = _strings(insides) if insides else []
        return texts, sum(map(len, insides[: len(texts)])) + len(texts) * self._around

    def _insides(self, data: bytes) -> list[bytes]:
        """What stands in the frame, again and again from the beginning of `data`."""
        insides, at = [], 0
        while data.startswith(self._start, at):
            first = at + len(self._start)
            line_end = data.find(b"\n", first)
            last = line_end - self._tail
            if last < first or not data.startswith(self._end, last):
                break  # another end, or none yet
            insides.append(data[first:last])
            at = line_end + len(LAST_LINE_ENDS)
        return insides


def _strings(insides: list[bytes]) -> list[str]:
    """What these insides of JSON strings mean, up to the first that is none, or an empty one."""
    whole = b'"'.join(insides)
    # no escape, no bare quote, no control character: nothing is left to be read
    if b"\\" not in whole and whole.count(b'"') == len(insides) - 1 and b"" not in insides:
        text = whole.decode(errors="replace")
        if text.isprintable() and "\ufffd" not in text:
            return text.split('"')
    return list(_strings_one_by_one(insides))


def _strings_one_by_one(insides: list[bytes]) -> Iterator[str]:
    for inside in insides:
        try:
            text = orjson.loads(b'"%b"' % inside)
        except orjson.JSONDecodeError:
            return
        if not text:
            return
        yield text


def frame(data: bytes, chunk: dict[str, Any]) -> tuple[Frame, str] | None:
    """The frame of a chunk, given its bytes and what they mean, and which text stands in it; None where it has none."""
    said = _only_text(chunk)
    if said is None or b"\n" in data:
        return None
    key, text = said
    # the last place that looks like it: a tail is shorter than a head, and holds fewer words
    head, _, tail = data.rpartition(b'"%b"' % text.encode())
    # it is the right place, and the only one that means the text, if another text there is all that changes
    other = "other" if text == "probe" else "probe"
    if not _means(b'%b"%b"%b' % (head, other.encode(), tail), chunk, (key, other)):
        return None
    return Frame(head + b'"', b'"' + tail), key


def _only_text(chunk: dict[str, Any]) -> tuple[str, str] | None:
    """Name and text of a chunk that has one choice with nothing but one plain text, and no usage beside it."""
    choices = chunk.get("choices")
    if chunk.get("usage") or type(choices) is not list or len(choices) != 1:
        return None
    said = choices[0]
    if type(said) is not dict or said.get("finish_reason"):
        return None
    delta = said.get("delta")
    if type(delta) is not dict or len(delta) != 1:
        return None
    ((key, text),) = delta.items()
    is_plain = key in TEXT_KEYS and type(text) is str and text and text.isprintable()
    return (key, text) if is_plain else None


def _means(data: bytes, chunk: dict[str, Any], said: tuple[str, str]) -> bool:
    """Whether these bytes are the chunk with this text instead of its own."""
    try:
        probed = orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    if type(probed) is not dict or _only_text(probed) != said:
        return False
    probed["choices"][0]["delta"] = chunk["choices"][0]["delta"]
    return bool(probed == chunk)
