"""A profile: which prompts to send, read from TOML, plain text or JSONL. It reads text, never a file, and sends nothing.

    summary = "What it is for"                       # TOML: all but `prompts` may be left out
    stream_share = 0.5
    max_tokens = 256
    [passages]                                       # texts that several prompts begin with
    manual = "..."
    [[prompts]]
    name = "robot"                                   # how results call it
    text = "Write a 50-word story about a robot."    # or: messages = [{role = "user", content = "..."}]
    passages = ["manual"]                            # before the text, in this order
    max_tokens = 64                                  # at most; a lower limit of the run stays
    weight = 2.0                                     # sent twice as often as a prompt of weight 1

What only a blast does:

    think_time_s = [1, 5]                            # a user's pause between two requests; or a number
    unique_share = 0.2                               # of the requests bear a mark, so that no cache knows them
    shared_prefix = "manual"                         # the passage that all prompts have before them, as system message
    [[prompts]]
    text = "Plan a walk."
    then = ["Shorten this: {answer}"]                # a chain: dependent requests, each made of the answer before
    [[phases]]                                       # one after the other; without any the command line says it all
    name = "ramp"
    for = "2m"
    users = [1, 32]                                  # per host, evenly from one to the other; or a number
    spawn_rate = 4                                   # users started a second and host, at most

Plain text is one prompt a line. JSONL is one recorded request a line, or they stand in one JSON array: a body with
`messages`, or with a text as `prompt` or `input`; a line that has it as its `body`, as `toolkit capture --json --bodies`
and batch files do; or a ShareGPT conversation, of which the first question is asked. Bodies are sent as they were, tools
and response_format included, but for the model and where the run says otherwise; of a line with neither `messages` nor
`model`, the text and its limit alone.
"""

import base64
import binascii
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, Strict, WithJsonSchema

from toolkit.config_file import (
    DECLARED,
    FieldError,
    Line,
    Number,
    OrNone,
    Seconds,
    Whole,
    described,
    record,
    toml_tables,
)
from toolkit.errors import ToolkitError
from toolkit.records import USUAL_MAX_TOKENS
from toolkit.safe_text import printable
from toolkit.units import spoken_list

Kind = Literal["toml", "text", "jsonl"]
Message = Mapping[str, Any]

READ_HERE = frozenset(
    "messages prompt input model stream stream_options max_tokens max_completion_tokens output_tokens".split()
)
"""Keys of a recorded request body that are read here, or that the run's plan sets for all requests; others are sent as they are."""
LIMITS = ("output_tokens", "max_completion_tokens", "max_tokens")
"""Keys of the limit of an answer, the last one first; `output_tokens` is that of vLLM's own datasets."""
MOST_NAMED = 5
"""Columns in a note."""
CHARS_PER_TOKEN = 4
"""Of English."""
ASKING, ANSWERING = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")
"""Who speaks in a ShareGPT file."""
MOST_WEIGHT = 1_000_000
"""Weights are taken in proportion; nobody needs more, and sums of them stay exact."""
MOST_THINK_S = 3_600.0
MOST_USERS = 100_000
"""Per host; more ports than any machine has."""

EXAMPLE = 'A prompt is, e.g., `[[prompts]]` and below it `text = "Write a story about a robot."`'
PHASE_EXAMPLE = (
    'A phase is, e.g., `[[phases]]` and below it `for = "2m"` and `users = 8` or `users = [1, 32]`'
)
ANSWER = "{answer}"
"""Where a chain's step holds the answer before it."""

BODY_EXAMPLE = 'A line is, e.g., `{"messages": [{"role": "user", "content": "Hi"}]}` or `{"prompt": "Hi"}`, or has it as `body`'
THEN_EXAMPLE = f'A step holds the answer before it, e.g., `then = ["Shorten this: {ANSWER}"]`'
NOTHING: Mapping[str, Any] = {}
MESSAGE_EXAMPLE = "A message has a role and content, e.g., the role `user` and the content `Hi`"


# --- kinds of values -------------------------------------------------------------------------------


def _not_blank(value: str) -> str:
    if not value.strip():
        raise FieldError("is an empty text", EXAMPLE)
    return value


def _messages(messages: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    for message in messages:
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise FieldError("holds one without a `role`", MESSAGE_EXAMPLE)
        content = message.get("content")
        is_parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
        if not (content is None or isinstance(content, str) or is_parts):
            raise FieldError("holds one whose `content` is neither text nor a list of parts", MESSAGE_EXAMPLE)  # fmt: skip
    if not any(_holds_text(message) for message in messages):
        raise FieldError("holds no text", MESSAGE_EXAMPLE)
    return messages


def _step(step: str) -> str:
    if ANSWER not in step:
        raise FieldError(f"`{printable(step)}` does not hold `{ANSWER}`", THEN_EXAMPLE)
    return step


def _pair(value: Any, most: float) -> tuple[Any, Any] | None:
    """Two numbers from 0 to `most`, or one twice; None for anything else."""
    both = value if isinstance(value, list) else [value, value]
    is_pair = len(both) == 2 and all(type(one) in (int, float) and 0 <= one <= most for one in both)
    return (both[0], both[1]) if is_pair else None


def _think_time(value: object) -> tuple[float, float]:
    """A number of seconds, or the least and the most of them."""
    pair = _pair(value, MOST_THINK_S)
    if pair is None or pair[0] > pair[1]:
        raise FieldError(
            f"is neither seconds nor the least and the most of them, up to {MOST_THINK_S:,.0f}",
            "Write, e.g., `2.5` or `[1, 5]`",
        )
    return float(pair[0]), float(pair[1])


def _users(value: object) -> tuple[int, int]:
    """A number of users, or a ramp from one to another."""
    pair = _pair(value, MOST_USERS)
    if pair is None or any(type(one) is float for one in pair):
        raise FieldError(
            f"is neither a whole number nor a ramp from one to another, up to {MOST_USERS:,}",
            PHASE_EXAMPLE,
        )
    return pair


Content = Annotated[str, Strict(), AfterValidator(_not_blank), described("a text", EXAMPLE)]
Tokens = Annotated[Whole, Field(ge=1)]
Share = Annotated[
    Number, Field(ge=0, le=1, json_schema_extra={"x-hint": "Half of the requests is 0.5"})
]
ThinkTime = Annotated[
    tuple[float, float] | None,
    BeforeValidator(_think_time),
    WithJsonSchema({"type": ["number", "array"], "x-allowed": "seconds, or the least and the most of them", "maximum": MOST_THINK_S}),
]  # fmt: skip
Users = Annotated[
    tuple[int, int],
    BeforeValidator(_users),
    WithJsonSchema({"type": ["integer", "array"], "x-allowed": "a whole number, or a ramp from one to another", "x-hint": PHASE_EXAMPLE, "maximum": MOST_USERS}),
]  # fmt: skip


# --- what a TOML profile says ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of a blast; one table for each. Without any the command line says how many users there are, and for how long."""

    __pydantic_config__ = DECLARED

    name: Line = ""
    """In tables and pictures."""
    length_s: Annotated[Seconds, Field(validation_alias="for")]
    """How long."""
    users: Users
    """Per host; of a ramp evenly from one number to the other."""
    spawn_rate: OrNone[Annotated[Number, Field(gt=0)]] = None
    """Users started a second and host, at most."""

    @property
    def users_from(self) -> int:
        """Per host, at its start."""
        return self.users[0]

    @property
    def users_to(self) -> int:
        """Per host, at its end."""
        return self.users[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEntry:
    """One thing to ask; one table for each."""

    __pydantic_config__ = DECLARED

    name: Line = ""
    """How results call it."""
    text: Content = ""
    """What a user says; or `messages`."""
    messages: Annotated[
        tuple[dict[str, Any], ...],
        Field(min_length=1),
        AfterValidator(_messages),
        described("a list of messages", MESSAGE_EXAMPLE),
    ] = ()
    """As a chat request carries them."""
    passages: tuple[Annotated[str, Strict()], ...] = ()
    """Names of passages that stand before its text, in this order."""
    max_tokens: OrNone[Tokens] = None
    """Of its answer, at most; a lower limit of the run stays."""
    weight: Annotated[
        Number,
        Field(gt=0, le=MOST_WEIGHT, json_schema_extra={"x-hint": "Twice as often as 1 is 2"}),
    ] = 1.0
    """How often it is sent, measured against the other prompts' weights."""
    then: tuple[
        Annotated[str, Strict(), AfterValidator(_step), described("a text", THEN_EXAMPLE)], ...
    ] = ()
    """Of a chain: the requests that follow, each holding `{answer}`, the answer before it. Only a blast sends them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """`--profile FILE.toml` of bench, blast and warmup."""

    __pydantic_config__ = DECLARED

    summary: Line = ""
    """What it is for, in one line."""
    stream_share: OrNone[Share] = None
    """Of the requests so many are streamed."""
    max_tokens: OrNone[Tokens] = None
    """Of each answer."""
    passages: Annotated[
        dict[str, Content], described("a table of texts", 'Write, e.g., `manual = "..."`')
    ] = field(default_factory=dict)
    """Texts that several prompts begin with, by name."""
    prompts: tuple[PromptEntry, ...] = ()
    think_time_s: Annotated[ThinkTime, Field(validation_alias="think_time_s")] = None
    """Of a blast: a user's pause between two requests."""
    unique_share: Share = 0.0
    """Of a blast: so many of the requests bear a mark, so that no cache knows them."""
    shared_prefix: OrNone[Line] = None
    """Of a blast: the passage that all prompts have before them, as a system message."""
    phases: tuple[Phase, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One thing to ask."""

    name: str
    """Unlike all others in its profile."""
    messages: tuple[Message, ...]
    """As a chat request carries them; at least one holds text. Never to be altered."""
    max_tokens: int | None = None
    weight: float = 1.0
    """How often, measured against the other prompts' weights."""
    then: tuple[str, ...] = ()
    """Of a chain: the requests that follow, each holding `{answer}`, the answer before it. Only a blast sends them."""
    stream: bool | None = None
    """Of a recorded body; None: the share of streams says it."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What else a recorded body holds, sent as it was: e.g., `tools`, `response_format`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A set of prompts, and how they are usually asked."""

    name: str
    summary: str = ""
    prompts: tuple[Prompt, ...]
    stream_share: float | None = None
    """None: the profile does not say, as with `max_tokens`. What the user says on the command line goes before."""
    max_tokens: int | None = None
    think_time_s: tuple[float, float] | None = None
    """A user's pause before its next request: the least and the most, or twice the same. For a blast, as what follows."""
    unique_share: float = 0.0
    """Share of the requests that bear a mark and so are like no other."""
    phases: tuple[Phase, ...] = ()
    """One after the other; without any the command line says how many users there are, and for how long."""
    shared_prefix: str | None = None
    """Name of the passage that all prompts begin with, as a system message; it is in their messages already."""
    notes: tuple[str, ...] = ()
    """What a person should know of it, a sentence each."""


# --- reading it ------------------------------------------------------------------------------------


def read_profile(text: str, name: str, kind: Kind) -> Profile:
    """Read a profile's text; raises ToolkitError naming the line, prompt or key at fault.

    `name` is the profile's name, and how messages call it.
    """
    text = text.removeprefix("\ufeff")
    if kind == "toml":
        return _toml_profile(text, name)
    return _jsonl_profile(text, name) if kind == "jsonl" else _lines(text, name)


def _lines(text: str, name: str) -> Profile:
    """One prompt a line, whatever it begins with: `#` may be a prompt's first character."""
    prompts = [
        _prompt(PromptEntry(text=line), f"line-{number}", f"`{name}` line {number}")
        for number, line in _numbered(text)
    ]
    _refuse_none(prompts, name, "Write one prompt a line")
    return Profile(name=name, prompts=tuple(prompts))


def _jsonl_profile(text: str, name: str) -> Profile:
    """A recorded request a line, or all of them in one array."""
    rows: Iterator[tuple[str, int, Any]]
    if text.lstrip().startswith("["):
        entries = _json(text, f"`{name}`")
        rows = (("entry", number, entry) for number, entry in enumerate(entries, start=1))
    else:
        rows = (
            ("line", number, _json(line, f"`{name}` line {number}"))
            for number, line in _numbered(text)
        )
    prompts: list[Prompt] = []
    conversations = skipped = 0
    unsent: dict[str, None] = {}
    for what, number, row in rows:
        where = f"`{name}` {what} {number}"
        if not isinstance(row, dict):
            raise ToolkitError(f"{where} is not a JSON object", BODY_EXAMPLE)
        # a capture's last line, and what it saw beside requests for text; a conversation that nobody answered
        if row.keys() == {"summary"} or row.get("method") not in (None, "POST"):
            continue
        # who captured did not choose what came: what cannot be sent again is left out
        is_captured = "method" in row and "path" in row
        if is_captured and row.get("damaged"):
            skipped += 1
            continue
        try:
            if "conversations" in row:
                conversations += 1
                turn = _first_turn(row["conversations"])
                if turn is None:
                    continue
                body = turn
            else:
                body = _body(row, where)
            entry = record(PromptEntry, _fields_of(body, where), where)
            stream = body.get("stream")
            more = {key: body[key] for key in body if key not in READ_HERE}
            # of a data set's line, a server knows none of the further columns
            if body is row and not row.keys() & {"messages", "model"}:
                unsent |= dict.fromkeys(more)
                more = {}
            prompts.append(
                _prompt(
                    entry,
                    f"{what}-{number}",
                    where,
                    stream=stream if isinstance(stream, bool) else None,
                    more=more,
                )
            )
        except ToolkitError:
            if not is_captured:
                raise
            skipped += 1
    if skipped and not prompts:
        raise ToolkitError(
            f"none of the {skipped:,} requests in `{name}` has a readable prompt",
            "Capture with `--json --bodies`",
        )
    _refuse_none(prompts, name, BODY_EXAMPLE)
    # who sends bodies like these leaves `stream` out where it is false
    if any(prompt.stream is not None for prompt in prompts):
        prompts = [replace(prompt, stream=bool(prompt.stream)) for prompt in prompts]
        streamed = round(sum(bool(prompt.stream) for prompt in prompts) / len(prompts), 4)
    else:
        streamed = None
    limits = [prompt.max_tokens for prompt in prompts if prompt.max_tokens is not None]
    notes = []
    if limits and max(limits) > USUAL_MAX_TOKENS and len(limits) < len(prompts):
        # the run's limit rises for those that have one of their own
        prompts = [
            replace(prompt, max_tokens=prompt.max_tokens or USUAL_MAX_TOKENS) for prompt in prompts
        ]
        notes.append(
            f"Prompts of `{name}` without a limit are answered with {USUAL_MAX_TOKENS} tokens at most"
        )
    if unsent:
        columns = spoken_list([f"`{printable(key)}`" for key in unsent], MOST_NAMED)
        notes.append(
            f"Not sent, as a line without `messages` or `model` is no request body: {columns}"
        )
    if skipped:
        every = skipped + len(prompts)
        notes.append(
            f"{skipped:,} of {every:,} requests in `{name}` are skipped: no readable prompt"
        )
    if conversations:
        notes.append(
            f"The answers' limits are estimated from `{name}`: {CHARS_PER_TOKEN} characters a token"
        )
    return Profile(
        name=name,
        prompts=tuple(prompts),
        stream_share=streamed,
        # no recorded limit is lowered unless the user says so
        max_tokens=max(USUAL_MAX_TOKENS, *limits) if limits else None,
        notes=tuple(notes),
    )


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers. Only a newline ends one: JSON may hold a bare U+2028."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def _json(text: str | bytes, where: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = f"{printable(error.msg)} at character {error.colno}"
        raise ToolkitError(f"{where} is not JSON: {reason}", BODY_EXAMPLE) from error


def _body(row: dict[str, Any], where: str) -> dict[str, Any]:
    """The request body of a line: the line itself, or what it has as `body`."""
    body: Any = row
    if "body" in row:
        body = row["body"]
    elif "body_base64" in row:
        try:
            body = base64.b64decode(row["body_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise ToolkitError(f"{where}: `body_base64` is not base64", BODY_EXAMPLE) from error
    if isinstance(body, str | bytes):
        body = _json(body, f"{where}: its body")
    if not isinstance(body, dict):
        raise ToolkitError(f"{where}: its body is not a JSON object", BODY_EXAMPLE)
    return body


def _first_turn(turns: object) -> dict[str, Any] | None:
    """The first question of a ShareGPT conversation, with what its answer takes as the limit; None where nobody answered."""
    said = turns if isinstance(turns, list) else []
    for asked, answered in pairwise(turn for turn in said if isinstance(turn, dict)):
        question, answer = asked.get("value"), answered.get("value")
        if (
            asked.get("from") in ASKING
            and answered.get("from") in ANSWERING
            and isinstance(question, str)
            and question.strip()
            and isinstance(answer, str)
        ):
            return {"prompt": question, "max_tokens": max(1, round(len(answer) / CHARS_PER_TOKEN))}
    return None


def _fields_of(body: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a request body says of its prompt, in the words of a TOML prompt; null is as good as absent."""
    known = {key: value for key, value in body.items() if value is not None}
    names = [name for name in ("messages", "prompt", "input") if name in known]
    if len(names) != 1:
        raise ToolkitError(
            f"{where} needs either `messages` or `prompt`, or the `input` of embeddings",
            BODY_EXAMPLE,
        )
    said = known[names[0]]
    fields = {"messages": said}
    if names[0] != "messages":
        text = said[0] if isinstance(said, list) and len(said) == 1 else said
        if not isinstance(text, str) or not text.strip():
            raise ToolkitError(f"{where}: `{names[0]}` is empty, or not one text", BODY_EXAMPLE)
        fields = {"text": text}
    for key in LIMITS:
        if key in known:
            fields["max_tokens"] = known[key]
    return fields


def _toml_profile(text: str, name: str) -> Profile:
    told = record(ProfileFile, toml_tables(text, name), f"`{name}`", text=text)
    passages = told.passages
    prompts = []
    for number, entry in enumerate(told.prompts, start=1):
        where = f"`{name}` prompt {number}"
        if entry.passages and not entry.text:
            raise ToolkitError(f"{where}: `passages` stands beside a `text`", EXAMPLE)
        before = [_passage(word, passages, f"{where}: `passages`") for word in entry.passages]
        joined = "\n\n".join([*before, entry.text.strip()]) if before else entry.text
        prompts.append(_prompt(replace(entry, text=joined), f"prompt-{number}", where))
    for word, times in Counter(prompt.name for prompt in prompts).items():
        if times > 1:
            raise ToolkitError(
                f"`{name}`: the prompt name `{word}` stands twice", "Give each prompt its own name"
            )
    _refuse_none(prompts, name, EXAMPLE)
    prefix = None
    if told.shared_prefix is not None:
        prefix = _passage(told.shared_prefix, passages, f"`{name}`: `shared_prefix`")
    if told.phases and not any(max(phase.users) for phase in told.phases):
        raise ToolkitError(f"`{name}`: `phases` never have a user", PHASE_EXAMPLE)
    return Profile(
        name=name,
        summary=told.summary,
        prompts=tuple(_behind(prefix, prompt, name) for prompt in prompts),
        stream_share=told.stream_share,
        max_tokens=told.max_tokens,
        think_time_s=told.think_time_s,
        unique_share=told.unique_share,
        phases=tuple(
            replace(phase, name=phase.name or f"phase-{number}")
            for number, phase in enumerate(told.phases, start=1)
        ),
        shared_prefix=told.shared_prefix,
    )


def _passage(word: str, passages: Mapping[str, str], where: str) -> str:
    if word not in passages:
        raise ToolkitError(
            f"{where}: there is no passage `{printable(word)}`",
            f"Known passages: {', '.join(map(printable, passages)) or 'none'}",
        )
    return passages[word].strip()


def _behind(passage: str | None, prompt: Prompt, name: str) -> Prompt:
    """The prompt with a shared passage before it, as applications send it: in a system message."""
    if passage is None:
        return prompt
    if any(message["role"] == "system" for message in prompt.messages):
        raise ToolkitError(
            f"`{name}` prompt `{prompt.name}` has a system message beside the `shared_prefix`",
            "Many models take one only: move its text to the passage, or to the user's message",
        )
    system = {"role": "system", "content": passage}
    return replace(prompt, messages=(system, *prompt.messages))


def _prompt(
    entry: PromptEntry,
    name: str,
    where: str,
    *,
    stream: bool | None = None,
    more: Mapping[str, Any] = NOTHING,
) -> Prompt:
    """What an entry asks, whichever kind of file it stood in."""
    if bool(entry.text) == bool(entry.messages):
        raise ToolkitError(f"{where} needs a text or messages, and not both", EXAMPLE)
    messages = entry.messages or ({"role": "user", "content": entry.text},)
    try:
        # half a surrogate pair, a number of 30 digits: found now and not in the midst of a run
        orjson.dumps({"messages": messages, **more})
    except orjson.JSONEncodeError as error:
        raise ToolkitError(
            f"{where} holds what JSON cannot carry", "Keep to text, numbers, lists and tables"
        ) from error
    return Prompt(
        name=entry.name or name,
        messages=messages,
        max_tokens=entry.max_tokens,
        weight=entry.weight,
        then=entry.then,
        stream=stream,
        more=more,
    )


def _holds_text(message: Message) -> bool:
    """Whether a message says something in words, in its content or in one of its content's parts."""
    content = message.get("content")
    texts: Sequence[Any] = (content,)
    if isinstance(content, list):
        texts = [part.get("text") for part in content]
    return any(isinstance(text, str) and text.strip() for text in texts)


def _refuse_none(prompts: Sequence[Prompt], name: str, hint: str) -> None:
    if not prompts:
        raise ToolkitError(f"`{name}` holds no prompt", hint)
