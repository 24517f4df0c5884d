"""Bytes of an OpenAI-style answer, JSON or event stream -> what was timed and what was said. No clock, no I/O.

Everything that times an answer reads it through here: nothing has a second stopwatch. The caller reads the clock;
stamps are seconds of any monotonic clock.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from operator import sub
from types import NoneType
from typing import Any

import orjson

from toolkit.protocol.sse import DATA, LAST_LINE_ENDS, EventStream
from toolkit.safe_text import printable

MAX_BODY_BYTES = 64 * 2**20
MAX_EVENT_BYTES = 4 * 2**20
TOLD_CHARACTERS = 300
"""Of what a server says about its fault, or calls its model."""
DONE = b"[DONE]"
DONE_EVENT = DATA + DONE + LAST_LINE_ENDS
UNFINISHED = frozenset({"abort", "error"})
"""Finish reasons of an answer that the server gave up (vLLM 0.32, `FinishReason`)."""

MESSAGE = frozenset({dict, NoneType})
"""Kinds of what a choice holds by `delta` or `message`; a legacy completion has neither."""
PLAIN = frozenset({"role", "content"})
"""A delta with nothing else is read at once."""
MAX_COUNT = 2**53
"""A token count from here on is nonsense, and a float would lose its last digits."""
ROLE, EMPTY, REASONING, VISIBLE = range(4)
"""What a piece of a choice is: the first, which only tells the role; one without a token; a token of reasoning; one that
a user sees."""

Fault = tuple[str, str]
"""Kind and sentence."""
Frame = tuple[bytes, bytes, str]
"""What stands before and behind the inside of a text in an event, and the name of that text.

A server writes the same bytes around each token: `data: {"id":...,"choices":[{"index":0,"delta":{"content":"` and
`"},"finish_reason":null}]}`. As long as events follow that have these two ends and between them the inside of one JSON string, that
string is all that is new. Of a recorded stream's chunks of 214 bytes one so read costs 1.3 us, one parsed 3.5 us.
"""
MOST_TRIES = 8
"""Chunks that are looked at in a row without a frame that was of use. Where they differ in more than their text, e.g. in
a time of day, the search must end: it costs 4 us each time."""
MAX_FRAMED_BYTES = 65_536
"""Of a text: a longer one is parsed, and its event weighed."""
FRAMED = frozenset({"content", "reasoning_content", "reasoning"})
"""Texts of a delta that a frame may stand around."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """What one answer said, and when. Times are the caller's stamps. Nobody changes it; frozen it took 2.0 us to make instead of 0.4."""

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
    token_chunks: int | None = None
    """None for a whole body."""
    first_chunk_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """As `usage` tells; the number of chunks with a token when it does not."""
    output_tokens_estimated: bool = False
    cached_tokens: int | None = None
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
        tokens = sum([tokens for _, tokens in self.gaps])
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
        "finished first_token_at has_failed too_large _body _bytes _choices _empty _fault _first_visible_at _frame _framed _id"
        " _insides _last_at _model _stamps _status _stream _told _totals _tries _usage"
    ).split()

    def __init__(self, *, status: int, content_type: str) -> None:
        self.finished = False
        """`[DONE]` was read: nothing more counts."""
        self.too_large = False
        """Stop reading: a limit at the top of this file was passed."""
        self.first_token_at: float | None = None
        """Stamp of the first chunk with a token, as soon as that was read."""
        self._status = status
        kind = content_type.partition(";")[0].strip().lower()
        # a refusal is read whole, whatever it calls itself: its text is all that matters
        is_stream = kind == "text/event-stream" and 200 <= status < 300
        self._stream = EventStream(max_event_bytes=MAX_EVENT_BYTES) if is_stream else None
        self._body: list[bytes] = []
        self._bytes = 0
        self._last_at: float | None = None
        self.has_failed = False
        """An error inside the answer, or garbage, was read already: whatever follows, it is not ok."""
        self._fault: Fault | None = None
        """The first one counts."""
        self._usage: dict[str, Any] = {}
        self._model: object = None
        self._id: object = None
        self._choices: dict[int, _Choice] = {}
        self._first_visible_at: float | None = None
        self._stamps: list[float] = []
        """Of each chunk with a token."""
        self._totals: list[int] = []
        """How many tokens `usage` had told up to each of them that told it."""
        self._empty: list[int] = []
        """For each chunk with a choice that had no token and was no role, how many with one came before it."""
        self._told = 0
        """Tokens that the `usage` of such chunks told so far."""
        self._frame: Frame | None = None
        self._framed: list[str] = []
        """The texts of the choice whose chunks stand in the frame."""
        self._insides: list[bytes] = []
        """Those that are not read yet, as JSON without its quotes."""
        self._tries = 0
        """Chunks that were parsed since the frame was of use."""

    def feed(self, data: bytes, at: float) -> bool:
        """Take the next bytes of the body, which were read at `at`; return whether they say more than texts like those before."""
        if self.finished or self.too_large or not data:
            return False
        self._last_at = at
        self._bytes += len(data)
        excess = self._bytes - MAX_BODY_BYTES
        if excess > 0:
            # what came up to the limit counts, so that it does not matter how the body was cut into reads
            data = data[: len(data) - excess]
        says_more = excess > 0
        stream, first = self._stream, 0
        if stream is None:
            self._body.append(data)
        while stream and first < len(data) and not (self.finished or self.too_large):
            if self._frame is not None and stream.is_between:
                # nearly every chunk of a calm stream: nothing of it is parsed before all texts are, or searched but its text
                start, end, _ = self._frame
                begins = first + len(start)
                ends = data.find(b'"', begins, begins + MAX_FRAMED_BYTES)
                # a chunk without a text has no token, and is for the parser
                if begins < ends and data.startswith(start, first) and data.startswith(end, ends):
                    self._tries = 0
                    self._insides.append(data[begins:ends])
                    self._stamps.append(at)
                    first = ends + len(end)
                    continue
            says_more = True
            behind = len(data)
            if self._tries < MOST_TRIES:
                # the next event, or what there is of it; where no two chunks have a frame, all at once
                behind = data.find(LAST_LINE_ENDS, first) + len(LAST_LINE_ENDS)
                behind = behind if behind >= len(LAST_LINE_ENDS) else len(data)
            if self._insides:
                self._read_insides(stream)
            self._take(stream.feed(data[first:behind]), at)
            first = behind
        if excess > 0 and not self.finished:
            self._refuse(f"the body is larger than {MAX_BODY_BYTES // 2**20} MiB")
        return says_more

    def end(self, at: float, broken: str | None = None) -> Answer:
        """What the answer was; call it once. `broken`: why the connection ended the body early, in one sentence."""
        last_at = at if self._last_at is None else self._last_at
        if self._stream is None:
            self._read_whole(b"".join(self._body), is_whole=broken is None)
        else:
            if self._insides:
                self._read_insides(self._stream)
            if not self.finished:
                left = self._stream.end()
                # many a server forgets the blank line after its last event; after a cut it may be half an event
                if broken is None or left == [(b"", DONE)]:
                    self._take(left, last_at)
            if self.finished:
                broken = None
        timed = self._timed()
        choices = [self._choices[index] for index in sorted(self._choices)]
        reasons = [choice.finish_reason for choice in choices]
        fault, usage = self._fault, self._usage
        # what is wrong with it, the first that holds
        if fault is None and broken is not None:
            fault = "cut", _sentence(broken) or "the connection ended the answer early"
        if fault is None and not UNFINISHED.isdisjoint(reasons):
            given_up = min(UNFINISHED.intersection(reasons))
            fault = "stream_error", f"the server gave up: finish_reason `{given_up}`"
        if fault is None and (not reasons or None in reasons):
            fault = "no_finish", "the answer ended without a finish reason"
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if type(details) is dict else None
        return Answer(
            ok=fault is None,
            error_kind=fault[0] if fault else None,
            error=fault[1] if fault else None,
            streamed=self._stream is not None,
            ended_at=last_at if broken is None else at,
            text="".join(["".join(one.text) for one in choices]),
            reasoning="".join(["".join(one.reasoning) for one in choices]),
            tool_calls="".join(["".join(one.tool_calls) for one in choices]),
            finish_reason=_name(reasons[0]) if reasons else None,
            model=_name(self._model),
            answer_id=_name(self._id),
            prompt_tokens=token_count(usage.get("prompt_tokens")),
            cached_tokens=token_count(cached),
            **timed,
        )

    # --- an event stream -----------------------------------------------------------------------

    def _read_insides(self, stream: EventStream) -> None:
        """Read the texts that stood in the frame, all at once. What can't be read so is left to the parser."""
        insides, self._insides = self._insides, []
        try:
            texts = orjson.loads(b'["%b"]' % b'","'.join(insides))
        except orjson.JSONDecodeError:
            texts = []
        # there is no quote in them: a backslash at the end of one makes fewer texts, nothing makes more
        if len(texts) == len(insides):
            self._framed += texts
            return
        assert self._frame is not None
        start, end, _ = self._frame
        stamps = self._stamps[-len(insides) :]
        del self._stamps[-len(insides) :]
        for inside, at in zip(insides, stamps, strict=True):
            self._take(stream.feed(start + inside + end), at)

    def _take(self, events: list[tuple[bytes, bytes]], at: float) -> None:
        for name, data in events:
            if data == DONE:
                self.finished = True
                return
            try:
                chunk = orjson.loads(data)
            except orjson.JSONDecodeError:
                # NaN or half a surrogate pair in JSON, a padded `[DONE]`, no JSON
                self.finished = data.strip() == DONE
                if self.finished:
                    return
                # a second try for every event of a flood of garbage would cost other hosts their fair share of this processor
                chunk = _json(data) if self._fault is None else None
            if name == b"error":
                self._blame("stream_error", _told_by(chunk, data) or "an error without a message")
            elif type(chunk) is dict:
                choice = self._take_object(chunk, data, at)
                if self._tries < MOST_TRIES and choice is not None:
                    # so that the next ones like it need not be parsed
                    self._tries += 1
                    found = frame(data, chunk)
                    if found is not None:
                        self._frame = found
                        self._framed = choice.text if found[2] == "content" else choice.reasoning
            elif data.strip():
                self._blame("garbage", f"an event is no JSON object: {_text(data)}")
        if self._stream and self._stream.too_large:
            self._refuse(f"an event is larger than {MAX_EVENT_BYTES // 2**20} MiB")

    def _timed(self) -> dict[str, Any]:
        """When the tokens of a stream came, and how many each chunk brought."""
        output_tokens = token_count(self._usage.get("completion_tokens"))
        if self._stream is None:
            return {"output_tokens": output_tokens}
        chunks = len(self._stamps)
        tokens = [1] * chunks
        has_all = self._told == output_tokens and len(self._totals) == chunks
        if has_all and min(_steps(self._totals), default=1) >= 1:
            tokens = _steps(self._totals)
        elif output_tokens == chunks + len(self._empty):
            # a chunk without text was a token, too: half a character, told with the next one, or the end of the text
            for place in self._empty:
                if place < chunks:
                    tokens[place] += 1
        elif output_tokens is not None:
            ends = [output_tokens * number // chunks for number in range(1, chunks + 1)]
            tokens = [max(1, count) for count in _steps(ends)]
        return {
            "first_token_at": self.first_token_at,
            "first_visible_at": self._first_visible_at,
            "last_token_at": self._stamps[-1] if chunks else None,
            "gaps": tuple(zip(map(sub, self._stamps[1:], self._stamps), tokens[1:], strict=True)),
            "token_chunks": chunks,
            "first_chunk_tokens": tokens[0] if chunks else None,
            "output_tokens": chunks if output_tokens is None else output_tokens,
            "output_tokens_estimated": output_tokens is None,
        }

    # --- a whole body --------------------------------------------------------------------------

    def _read_whole(self, body: bytes, *, is_whole: bool) -> None:
        said = None if self.too_large else _json(body)
        if not 200 <= self._status < 300:
            told = _told_by(said, body)
            self._blame(f"http_{self._status}", told or f"HTTP {self._status} without a message")
        elif not is_whole or self.too_large:
            return
        elif type(said) is not dict:
            what = f"no JSON object: {_text(body)}" if body.strip() else "empty"
            self._blame("garbage", f"the body is {what}")
        else:
            self._take_object(said, body)
            if type(said.get("choices")) is not list:
                self._blame("garbage", f"the body has no choices: {_text(body)}")

    # --- both ----------------------------------------------------------------------------------

    def _take_object(
        self, said: dict[str, Any], data: bytes, at: float | None = None
    ) -> "_Choice | None":
        """Take a chunk that was read at `at`, or a whole body; return its last choice."""
        # `"error": null` is a usual field of a chunk without one
        if said.get("error") or said.get("object") == "error":
            self._blame("stream_error", _told_by(said, data))
        if self._model is None:
            self._model = said.get("model")
        if self._id is None:
            self._id = said.get("id")
        usage, choices = said.get("usage"), said.get("choices")
        counted = None
        if type(usage) is dict and usage:
            self._usage = usage
            counted = token_count(usage.get("completion_tokens"))
        choice, kind = None, ROLE
        for number, each in enumerate(choices if type(choices) is list else ()):
            if type(each) is not dict:
                continue
            delta, message = each.get("delta"), each.get("message")
            # one that is, e.g., a text by itself is no answer: what one client shows, another breaks at
            if type(delta) not in MESSAGE or type(message) not in MESSAGE:
                self._blame("garbage", "the delta or message of a choice is no JSON object")
            index = each.get("index")
            if type(index) is not int:
                index = number if at is None else 0
            choice = self._choices.get(index)
            if choice is None:
                choice = self._choices[index] = _Choice()
            kind = max(kind, choice.take(each, delta or message))
            if counted:
                # beside a chunk vLLM (0.32, serving.py) counts each choice apart
                self._told += counted - choice.tokens
                choice.tokens = counted
        if kind == EMPTY:
            self._empty.append(len(self._stamps))
        elif kind != ROLE and at is not None:
            if self.first_token_at is None:
                self.first_token_at = at
            if kind == VISIBLE and self._first_visible_at is None:
                self._first_visible_at = at
            self._stamps.append(at)
            if self._usage is usage:
                self._totals.append(self._told)
        return choice

    def _blame(self, kind: str, sentence: str) -> None:
        if self._fault is None:
            self.has_failed, self._fault = True, (kind, _sentence(sentence))

    def _refuse(self, sentence: str) -> None:
        self.has_failed = self.too_large = True
        self._fault = ("too_large", sentence)
        self._body.clear()


class _Choice:
    """What one choice of an answer has said so far."""

    __slots__ = ("finish_reason", "reasoning", "spoke", "text", "tokens", "tool_calls")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.tool_calls: list[str] = []
        self.finish_reason: str | None = None
        self.spoke = False
        self.tokens = 0
        """As the last `usage` beside it told."""

    def take(self, said: dict[str, Any], delta: object) -> int:
        """Take one entry of `choices`, whole or a piece, and the delta or message in it; return what it is."""
        reason = said.get("finish_reason")
        if type(reason) is str and reason:
            self.finish_reason = reason
        if type(delta) is not dict:
            # legacy completions
            delta = {"content": said.get("text")}
        content = delta.get("content")
        kind = EMPTY
        if type(content) is str and content:
            self.text.append(content)
            kind = VISIBLE
        if not delta.keys() <= PLAIN:
            # of the two names of reasoning, a server in transition sends both with the same text
            for name in ("reasoning_content", "reasoning"):
                thought = delta.get(name)
                if type(thought) is str and thought:
                    self.reasoning.append(thought)
                    kind = max(kind, REASONING)
                    break
            texts: list[tuple[list[str], Any]] = [(self.text, delta.get("refusal"))]
            calls = delta.get("tool_calls")
            # the legacy form is one call without a list around it
            legacy = {"function": delta.get("function_call")}
            for call in (*(calls if type(calls) is list else ()), legacy):
                function = call.get("function") if type(call) is dict else None
                if type(function) is dict:
                    texts.append((self.tool_calls, function.get("name")))
                    texts.append((self.tool_calls, function.get("arguments")))
            for parts, text in texts:
                if type(text) is str and text:
                    parts.append(text)
                    kind = VISIBLE
        if kind == EMPTY and not self.spoke and "role" in delta:
            kind = ROLE
        self.spoke = True
        return kind


def token_count(value: object) -> int | None:
    """A number of tokens; `true`, -1, 1.5 and "12" are none."""
    return value if type(value) is int and 0 <= value < MAX_COUNT else None


def _steps(totals: list[int]) -> list[int]:
    return list(map(sub, totals, [0, *totals]))


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
    if type(value) is not str or not value:
        return None
    # as nearly every one is
    is_plain = value.isprintable() and " " not in value and len(value) <= TOLD_CHARACTERS
    return value if is_plain else _sentence(value) or None


def frame(data: bytes, chunk: dict[str, Any]) -> Frame | None:
    """What stands around the text of a chunk, given its bytes and what they mean; None where that is not all that it says."""
    said = _only_text(chunk)
    if said is None or b"\n" in data:
        return None
    name, text = said
    # the last place that looks like it: a tail is shorter than a head, and holds fewer words
    head, _, tail = data.rpartition(b'"%b"' % text.encode())
    # it is the right place, and the only one that means the text, if another text there is all that changes
    other = "other" if text == "probe" else "probe"
    try:
        probed = orjson.loads(b'%b"%b"%b' % (head, other.encode(), tail))
    except orjson.JSONDecodeError:
        return None
    if type(probed) is not dict or _only_text(probed) != (name, other):
        return None
    probed["choices"][0]["delta"] = chunk["choices"][0]["delta"]
    return (DATA + head + b'"', b'"' + tail + LAST_LINE_ENDS, name) if probed == chunk else None


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
    ((name, text),) = delta.items()
    is_plain = name in FRAMED and type(text) is str and text and text.isprintable()
    return (name, text) if is_plain else None
