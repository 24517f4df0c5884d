"""Bytes of an OpenAI-style answer, JSON or event stream -> what was timed and what was said. No clock, no I/O.

Everything that times an answer reads it through here: nothing has a second stopwatch. The caller reads the clock;
stamps are seconds of any monotonic clock.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from operator import sub
from typing import Any

import orjson

from toolkit.alike import MOST_TRIES, Frame, frame
from toolkit.choices import EMPTY, ROLE, VISIBLE, Choice, token_count
from toolkit.event_stream import LAST_LINE_ENDS, Event, EventStream
from toolkit.wording import printable

MAX_BODY_BYTES = 64 * 2**20
MAX_EVENT_BYTES = 4 * 2**20
TOLD_CHARACTERS = 300
"""Of what a server says about its fault, or calls its model."""
DONE = b"[DONE]"
UNFINISHED = frozenset({"abort", "error"})
"""Finish reasons of an answer that the server gave up (vLLM 0.32, `FinishReason`)."""

MESSAGE = frozenset({dict, type(None)})
"""Kinds of what a choice holds by `message` or `delta`; a legacy completion has neither."""

Fault = tuple[str, str]
"""Kind and sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one answer said, and when. Times are the caller's stamps."""

    ok: bool
    """HTTP 2xx, every choice with a finish reason, no error inside."""
    error_kind: str | None = None
    """`http_<status>`; `stream_error`: an error inside a 2xx; `cut`: the connection ended it; `no_finish`: it ended by
    itself without a finish reason; `garbage`: not JSON, or no answer; `too_large`."""
    error: str | None = None
    """One sentence, mostly the server's own; it may repeat what the request held, a key included."""
    streamed: bool
    """It came as an event stream, whatever was asked for."""
    first_token_at: float | None = None
    """None for a whole body, as the other two."""
    first_visible_at: float | None = None
    """Of the first chunk with a token that is not reasoning."""
    last_token_at: float | None = None
    ended_at: float
    """When the last byte of the body was read; when it was given up, if it was broken or empty."""
    gaps: tuple[tuple[float, int], ...] = ()
    """For each chunk with a token after the first: seconds since the one before, tokens in it (at least 1)."""
    gap_tokens_known: bool = True
    """False: the tokens of a chunk had to be assumed, because `usage` does not tell them. A whole body has no gaps."""
    token_chunks: int | None = None
    """None for a whole body."""
    first_chunk_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """As `usage` tells; the number of chunks with a token when it does not."""
    output_tokens_estimated: bool = False
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    text: str = ""
    """Contents and refusals of all choices, by index."""
    reasoning: str = ""
    tool_calls: str = ""
    """Names and arguments, concatenated."""
    finish_reason: str | None = None
    """Of the first choice."""
    model: str | None = None
    answer_id: str | None = None

    @property
    def e2e_end_at(self) -> float | None:
        """Where E2E ends: the last chunk with a token; without streaming, the last byte."""
        return self.last_token_at if self.streamed else self.ended_at

    @property
    def tpot_s(self) -> float | None:
        """(last chunk with a token - first one) / tokens of the chunks after the first; None without any.

        The token that ends a text shows nothing. If it came alone, after the last chunk with a token, neither its
        time nor itself is in here.
        """
        tokens = sum(tokens for _, tokens in self.gaps)
        if not tokens or self.last_token_at is None or self.first_token_at is None:
            return None
        return (self.last_token_at - self.first_token_at) / tokens

    @property
    def text_chars(self) -> int:
        """Characters of text, reasoning and tool calls."""
        return len(self.text) + len(self.reasoning) + len(self.tool_calls)

    @property
    def text_hash(self) -> str | None:
        """16 hexadecimal digits, equal for equal texts; None without text."""
        if not self.text_chars:
            return None
        parts = (self.reasoning, self.text, self.tool_calls)
        # 0xff is in no UTF-8, so it separates for sure; JSON may hold half a surrogate pair
        whole = b"\xff".join(part.encode("utf-8", "surrogatepass") for part in parts)
        return sha256(whole).hexdigest()[:16]


class Completion:
    """Reads one answer: `feed` it what comes, then ask what it was with `end`.

    An event counts from the read that completed it: half a token is no token yet, and a host that drips its bytes must
    not look fast. A chunk has a token when its delta has a non-empty content, reasoning, refusal, tool call or text; the
    first chunk, which only tells the role, has none.
    """

    __slots__ = (
        *("finished", "too_large", "_status", "_stream", "_body", "_bytes", "_last_at", "_fault"),
        *("_usage", "_model", "_id", "_choices", "_first_visible_at", "_stamps", "_places"),
        *("_totals", "_read", "_told", "_frame", "_framed", "_tries"),
    )

    def __init__(self, *, status: int, content_type: str) -> None:
        self.finished = False
        """`[DONE]` was read: nothing more counts."""
        self.too_large = False
        """Stop reading: a limit at the top of this file was passed."""
        self._status = status
        is_stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        # a refusal is read whole, whatever it calls itself: its text is all that matters
        is_stream = is_stream and self._has_answer
        self._stream = EventStream(max_event_bytes=MAX_EVENT_BYTES) if is_stream else None
        self._body: list[bytes] = []
        self._bytes = 0
        self._last_at: float | None = None
        self._fault: Fault | None = None
        """The first one counts."""
        self._usage: dict[str, Any] = {}
        self._model: object = None
        self._id: object = None
        self._choices: dict[int, Choice] = {}
        self._first_visible_at: float | None = None
        # of each chunk with a token: its stamp, how many chunks with a choice came up to it, how many tokens `usage` had
        self._stamps: list[float] = []
        self._places: list[int] = []
        self._totals: list[int] = []
        self._read = 0
        """Chunks with a choice so far, without those that only tell a role."""
        self._told = 0
        """Tokens that the `usage` of such chunks told so far."""
        self._frame: Frame | None = None
        self._framed: list[str] = []
        """The texts of the choice whose chunks stand in the frame."""
        self._tries = 0
        """Chunks that were parsed since the frame was of use."""

    @property
    def first_token_at(self) -> float | None:
        """Stamp of the first chunk with a token, as soon as it was read: for who wants to know no more."""
        return self._stamps[0] if self._stamps else None

    @property
    def has_failed(self) -> bool:
        """An error inside the answer, or garbage, was read already: whatever follows, it is not ok."""
        return self._fault is not None

    @property
    def _has_answer(self) -> bool:
        return 200 <= self._status < 300

    def feed(self, data: bytes, at: float) -> None:
        """Take the next bytes of the body, which were read at `at`."""
        if self.finished or self.too_large or not data:
            return
        self._last_at = at
        self._bytes += len(data)
        excess = self._bytes - MAX_BODY_BYTES
        if excess > 0:
            # what came up to the limit counts, so that it does not matter how the body was cut into reads
            data = data[: len(data) - excess]
        if self._stream is None:
            self._body.append(data)
        else:
            self._read_events(self._stream, data, at)
        if excess > 0 and not self.finished:
            self._refuse(f"the body is larger than {MAX_BODY_BYTES // 2**20} MiB")

    def end(self, at: float, broken: str | None = None) -> Answer:
        """What the answer was; call it once. `broken`: why the connection ended the body early, in one sentence."""
        if self._stream is None:
            return self._whole(at, broken)
        return self._streamed(self._stream, at, broken)

    # --- an event stream -----------------------------------------------------------------------

    def _read_events(self, stream: EventStream, data: bytes, at: float) -> None:
        """Take the events that these bytes complete, those that are like the ones before without parsing."""
        while data and not (self.finished or self.too_large):
            if self._tries >= MOST_TRIES or len(data) > MAX_EVENT_BYTES:
                self._take(stream.feed(data), at)
                return
            texts: list[str] = []
            used = 0
            if self._frame is not None and stream.is_between:
                text = self._frame.text(data)
                if text is not None:
                    self._take_text(text, at)
                    return
                texts, used = self._frame.texts(data)
            if texts:
                self._take_texts(texts, at)
            else:
                used = data.find(LAST_LINE_ENDS) + len(LAST_LINE_ENDS)
                # without an end in it, it is part of an event
                used = used if used >= len(LAST_LINE_ENDS) else len(data)
                self._take(stream.feed(data[:used]), at)
            data = data[used:]

    def _take_text(self, text: str, at: float) -> None:
        """What `_take_chunk` does with a chunk of one choice, a text and nothing else that is new."""
        self._tries = 0
        self._read += 1
        self._framed.append(text)
        self._stamps.append(at)
        self._places.append(self._read)

    def _take_texts(self, texts: list[str], at: float) -> None:
        """The same with many of them, which one read brought."""
        first = self._read + 1
        self._read += len(texts)
        self._tries = 0
        self._framed += texts
        self._stamps += [at] * len(texts)
        self._places += range(first, self._read + 1)

    def _find_frame(self, data: bytes, chunk: dict[str, Any]) -> None:
        """Look for the frame of a chunk that was parsed, so that the next ones need not be."""
        if self._tries >= MOST_TRIES:
            return
        self._tries += 1
        found = frame(data, chunk)
        if found is not None:
            self._frame, key = found
            choice = self._choice(chunk["choices"][0])
            self._framed = choice.text if key == "content" else choice.reasoning

    def _take(self, events: list[Event], at: float) -> None:
        for name, data in events:
            if data == DONE:
                self.finished = True
                return
            try:
                chunk = orjson.loads(data)
            except orjson.JSONDecodeError:
                chunk = self._unusual(data)
                if self.finished:
                    return
            if name == b"error":
                self._blame("stream_error", _told_by(chunk, data) or "an error without a message")
            elif type(chunk) is dict:
                self._take_chunk(chunk, data, at)
                self._find_frame(data, chunk)
            elif data.strip():
                self._blame("garbage", f"an event is no JSON object: {_text(data)}")
        if self._stream and self._stream.too_large:
            self._refuse(f"an event is larger than {MAX_EVENT_BYTES // 2**20} MiB")

    def _unusual(self, data: bytes) -> object:
        """Data that orjson refuses: NaN or half a surrogate pair in JSON, a padded `[DONE]`, no JSON."""
        self.finished = data.strip() == DONE
        # a second try for every event of a flood of garbage would cost other hosts their fair share of this processor
        return _json(data) if self._fault is None else None

    def _take_chunk(self, chunk: dict[str, Any], data: bytes, at: float) -> None:
        if "error" in chunk or chunk.get("object") == "error":
            self._take_error(chunk, data)
        if self._model is None:
            self._model = chunk.get("model")
        if self._id is None:
            self._id = chunk.get("id")
        usage = chunk.get("usage")
        if type(usage) is dict and usage:
            self._usage = usage
        else:
            usage = None
        choices = chunk.get("choices")
        if type(choices) is list:
            self._take_choices(choices, usage, at)

    def _take_choices(self, choices: list[Any], usage: dict[str, Any] | None, at: float) -> None:
        kind = ROLE
        for said in choices:
            if type(said) is dict:
                self._refuse_odd(said)
                choice = self._choice(said)
                kind = max(kind, choice.take(said))
                if usage is not None:
                    self._told += choice.growth(usage)
        if kind == ROLE:
            return
        self._read += 1
        if kind == EMPTY:
            return
        if kind == VISIBLE and self._first_visible_at is None:
            self._first_visible_at = at
        self._stamps.append(at)
        self._places.append(self._read)
        if usage is not None:
            self._totals.append(self._told)

    def _choice(self, said: dict[str, Any], number: int = 0) -> Choice:
        """Find the choice that an entry of `choices` belongs to, by its `index`."""
        index = said.get("index")
        if type(index) is not int:
            index = number
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = Choice()
        return choice

    def _refuse_odd(self, said: dict[str, Any]) -> None:
        """A message that is, e.g., a text by itself is no answer: what one client shows, another breaks at."""
        for name in ("delta", "message"):
            if type(said.get(name)) not in MESSAGE:
                self._blame("garbage", f"the {name} of a choice is no JSON object")

    def _take_error(self, chunk: dict[str, Any], data: bytes) -> None:
        # `"error": null` is a usual field of a chunk without one
        if chunk.get("error") or chunk.get("object") == "error":
            self._blame("stream_error", _told_by(chunk, data))

    def _streamed(self, stream: EventStream, at: float, broken: str | None) -> Answer:
        last_at = at if self._last_at is None else self._last_at
        if not self.finished:
            left = stream.end()
            # many a server forgets the blank line after its last event; after a cut it may be half an event
            if broken is None or left == [(b"", DONE)]:
                self._take(left, last_at)
        usage = self._usage
        output_tokens = token_count(usage.get("completion_tokens"))
        chunks = len(self._stamps)
        tokens, known = self._tokens_by_chunk(output_tokens)
        waits = map(sub, self._stamps[1:], self._stamps)
        is_cut = broken is not None and not self.finished
        return self._answer(
            fault=self._verdict(broken if is_cut else None),
            ended_at=at if is_cut else last_at,
            first_token_at=self._stamps[0] if chunks else None,
            first_visible_at=self._first_visible_at,
            last_token_at=self._stamps[-1] if chunks else None,
            gaps=tuple(zip(waits, tokens[1:], strict=True)),
            gap_tokens_known=known,
            token_chunks=chunks,
            first_chunk_tokens=tokens[0] if chunks else None,
            output_tokens=chunks if output_tokens is None else output_tokens,
            output_tokens_estimated=output_tokens is None,
        )

    def _tokens_by_chunk(self, output_tokens: int | None) -> tuple[list[int], bool]:
        """How many tokens each chunk with a token has, and whether that is known."""
        chunks = len(self._stamps)
        if output_tokens is None:
            return [1] * chunks, False
        if self._told == output_tokens and len(self._totals) == chunks:
            tokens = _steps(self._totals)
            if min(tokens, default=1) >= 1:
                return tokens, True
        if self._read == output_tokens:
            # a chunk without text was a token, too: half a character, told with the next one, or the end of the text
            return _steps(self._places), True
        ends = [output_tokens * number // chunks for number in range(1, chunks + 1)]
        # as many tokens as chunks is no assumption: none of them has less than one
        return [max(1, tokens) for tokens in _steps(ends)], output_tokens == chunks

    # --- a whole body --------------------------------------------------------------------------

    def _whole(self, at: float, broken: str | None) -> Answer:
        body = b"".join(self._body)
        said = None if self.too_large else _json(body)
        if not self._has_answer:
            told = _told_by(said, body)
            self._blame(f"http_{self._status}", told or f"HTTP {self._status} without a message")
        elif broken is None and not self.too_large:
            self._take_whole(said, body)
        return self._answer(
            fault=self._verdict(broken),
            ended_at=at if self._last_at is None or broken is not None else self._last_at,
            output_tokens=token_count(self._usage.get("completion_tokens")),
        )

    def _take_whole(self, said: object, body: bytes) -> None:
        if type(said) is not dict:
            what = f"no JSON object: {_text(body)}" if body.strip() else "empty"
            self._blame("garbage", f"the body is {what}")
            return
        self._model, self._id = said.get("model"), said.get("id")
        usage, choices = said.get("usage"), said.get("choices")
        if type(usage) is dict:
            self._usage = usage
        self._take_error(said, body)
        if type(choices) is not list:
            self._blame("garbage", f"the body has no choices: {_text(body)}")
            return
        for number, each in enumerate(choices):
            if type(each) is dict:
                self._refuse_odd(each)
                self._choice(each, number).take(each)

    # --- both ----------------------------------------------------------------------------------

    def _blame(self, kind: str, sentence: str) -> None:
        if self._fault is None:
            self._fault = (kind, _sentence(sentence))

    def _refuse(self, sentence: str) -> None:
        self.too_large = True
        self._fault = ("too_large", sentence)
        self._body.clear()

    def _verdict(self, broken: str | None) -> Fault | None:
        """What is wrong with the answer, the first that holds."""
        if self._fault is not None:
            return self._fault
        if broken is not None:
            return "cut", _sentence(broken) or "the connection ended the answer early"
        reasons = [choice.finish_reason for choice in self._choices.values()]
        given_up = UNFINISHED.intersection(reasons)
        if given_up:
            return "stream_error", f"the server gave up: finish_reason `{min(given_up)}`"
        if not reasons or None in reasons:
            return "no_finish", "the answer ended without a finish reason"
        return None

    def _answer(self, *, fault: Fault | None, **timed: Any) -> Answer:
        choices = [self._choices[index] for index in sorted(self._choices)]
        usage = self._usage
        return Answer(
            ok=fault is None,
            error_kind=fault[0] if fault else None,
            error=fault[1] if fault else None,
            streamed=self._stream is not None,
            prompt_tokens=token_count(usage.get("prompt_tokens")),
            cached_tokens=_detail(usage, "prompt_tokens_details", "cached_tokens"),
            reasoning_tokens=_detail(usage, "completion_tokens_details", "reasoning_tokens"),
            text="".join(part for one in choices for part in one.text),
            reasoning="".join(part for one in choices for part in one.reasoning),
            tool_calls="".join(part for one in choices for part in one.tool_calls),
            finish_reason=_name(choices[0].finish_reason) if choices else None,
            model=_name(self._model),
            answer_id=_name(self._id),
            **timed,
        )


def _steps(totals: list[int]) -> list[int]:
    return list(map(sub, totals, [0, *totals]))


def _detail(usage: dict[str, Any], details: str, key: str) -> int | None:
    inner = usage.get(details)
    return token_count(inner.get(key)) if type(inner) is dict else None


def _json(data: bytes) -> object:
    """Any JSON value; None for what is none, so that nobody can tell it from `null`, which is no answer either."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(data.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None


def _told_by(said: object, body: bytes) -> str:
    """What a server says about a fault: `error.message`, `error`, `message` or `detail`, else all of it."""
    if type(said) is dict:
        error = said.get("error")
        inner = error.get("message") if type(error) is dict else None
        for told in (inner, error, said.get("message"), said.get("detail")):
            if type(told) is str and told.strip():
                return told
    return _text(body).strip()


def _text(body: bytes) -> str:
    return body[: 4 * TOLD_CHARACTERS].decode("utf-8", "replace")


def _sentence(text: str) -> str:
    """One printable line of at most TOLD_CHARACTERS: an escape sequence must not reach a terminal."""
    line = printable(" ".join(text.lstrip()[: 4 * TOLD_CHARACTERS].split()))
    return line if len(line) <= TOLD_CHARACTERS else f"{line[: TOLD_CHARACTERS - 1]}…"


def _name(value: object) -> str | None:
    """A name as the server wrote it, in one line; None for none."""
    return _sentence(value) or None if type(value) is str else None
