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

Plain text is one prompt a line. JSONL is one request body a line, with `messages`, or with a text as `prompt`.
"""

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from toolkit import profile_checks as checks
from toolkit.errors import ToolkitError
from toolkit.profile_load import Phase, phases, think_time

Kind = Literal["toml", "text", "jsonl"]
Message = Mapping[str, Any]

PROFILE_KEYS = (
    *("summary", "stream_share", "max_tokens", "passages", "prompts"),
    *("think_time_s", "unique_share", "shared_prefix", "phases"),
)
PROMPT_KEYS = ("name", "text", "messages", "passages", "max_tokens", "weight", "then")
"""What a TOML profile may say; any other key is a typing error until it is added here."""

DECIDED_ELSEWHERE = frozenset(
    "messages prompt model stream stream_options max_tokens max_completion_tokens temperature"
    " ignore_eos".split()
)
"""Keys of a recorded request body that are read here, or that the run's plan sets for all requests."""

ANSWER = "{answer}"
"""Where a chain's step holds the answer before it."""

BODY_EXAMPLE = (
    'A line is, e.g., `{"messages": [{"role": "user", "content": "Hi"}]}` or `{"prompt": "Hi"}`'
)
THEN_EXAMPLE = f'A step holds the answer before it, e.g., `then = ["Shorten this: {ANSWER}"]`'
MESSAGE_EXAMPLE = "A message has a role and content, e.g., the role `user` and the content `Hi`"


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
    left_out: tuple[str, ...] = ()
    """Keys of JSONL bodies that are not sent and that nobody else sets, e.g., `tools`."""


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
        _prompt({"text": line}, f"line-{number}", f"`{name}` line {number}")
        for number, line in _numbered(text)
    ]
    _refuse_none(prompts, name, "Write one prompt a line")
    return Profile(name=name, prompts=tuple(prompts))


def _jsonl_profile(text: str, name: str) -> Profile:
    """A request body a line, as clients sent them."""
    prompts, left_out, flags = [], set[str](), []
    for number, line in _numbered(text):
        where = f"`{name}` line {number}"
        body = _body(line, where)
        left_out.update(body.keys() - DECIDED_ELSEWHERE)
        prompts.append(_prompt(_fields_of(body, where), f"line-{number}", where))
        flags.append(body.get("stream"))
    _refuse_none(prompts, name, BODY_EXAMPLE)
    # who sends bodies like these leaves `stream` out where it is false
    is_told = any(isinstance(flag, bool) for flag in flags)
    streamed = sum(flag is True for flag in flags)
    return Profile(
        name=name,
        prompts=tuple(prompts),
        stream_share=round(streamed / len(flags), 4) if is_told else None,
        left_out=tuple(map(checks.shown, sorted(left_out))),
    )


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers. Only a newline ends one: JSON may hold a bare U+2028."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def _body(line: str, where: str) -> dict[str, Any]:
    try:
        body = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        reason = f"{checks.shown(error.msg)} at character {error.colno}"
        raise ToolkitError(f"{where} is not JSON: {reason}", BODY_EXAMPLE) from error
    if not isinstance(body, dict):
        raise ToolkitError(f"{where} is not a JSON object", BODY_EXAMPLE)
    return body


def _fields_of(body: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a request body says of its prompt, in the words of a TOML prompt; null is as good as absent."""
    known = {key: value for key, value in body.items() if value is not None}
    if ("messages" in known) == ("prompt" in known):
        raise ToolkitError(f"{where} needs either `messages` or `prompt`", BODY_EXAMPLE)
    fields = {"messages": known["messages"]} if "messages" in known else {"text": known["prompt"]}
    text = fields.get("text", "-")
    if not isinstance(text, str) or not text.strip():
        raise ToolkitError(f"{where}: `prompt` is empty, or not one text", BODY_EXAMPLE)
    for key in ("max_completion_tokens", "max_tokens"):
        if key in known:
            fields["max_tokens"] = known[key]
    return fields


def _toml_profile(text: str, name: str) -> Profile:
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "it is nested too deep"
        raise ToolkitError(
            f"`{name}` is not TOML: {checks.shown(reason)}", checks.EXAMPLE
        ) from error
    checks.refuse_unknown(table, PROFILE_KEYS, f"`{name}`")
    passages = _passages(table.get("passages", {}), f"`{name}`: `passages`")
    prompts = _toml_prompts(table, name, passages)
    _refuse_none(prompts, name, checks.EXAMPLE)
    prefix = _prefix(table.get("shared_prefix"), passages, f"`{name}`: `shared_prefix`")
    return Profile(
        name=name,
        summary=checks.word(table.get("summary", ""), f"`{name}`: `summary`"),
        prompts=tuple(_behind(prefix and passages[prefix], prompt, name) for prompt in prompts),
        stream_share=checks.share(table.get("stream_share"), f"`{name}`: `stream_share`"),
        max_tokens=checks.count(table.get("max_tokens"), f"`{name}`: `max_tokens`"),
        think_time_s=think_time(table.get("think_time_s"), f"`{name}`: `think_time_s`"),
        unique_share=checks.share(table.get("unique_share"), f"`{name}`: `unique_share`") or 0.0,
        phases=phases(table.get("phases", []), f"`{name}`: `phases`"),
        shared_prefix=prefix,
    )


def _prefix(value: object, passages: Mapping[str, str], where: str) -> str | None:
    if value is None:
        return None
    word = checks.word(value, where)
    if word not in passages:
        raise _no_passage(word, passages, where)
    return word


def _behind(passage: str | None, prompt: Prompt, name: str) -> Prompt:
    """The prompt with a shared passage before it, as applications send it: in a system message."""
    if passage is None:
        return prompt
    if any(message["role"] == "system" for message in prompt.messages):
        raise ToolkitError(
            f"`{name}` prompt `{prompt.name}` has a system message beside the `shared_prefix`",
            "Many models take one only: move its text to the passage, or to the user's message",
        )
    system = {"role": "system", "content": passage.strip()}
    return replace(prompt, messages=(system, *prompt.messages))


def _toml_prompts(table: Mapping[str, Any], name: str, passages: Mapping[str, str]) -> list[Prompt]:
    entries = table.get("prompts", [])
    if not checks.are_tables(entries):
        raise ToolkitError(f"`{name}`: `prompts` is not a list of tables", checks.EXAMPLE)
    prompts = []
    for number, entry in enumerate(entries, start=1):
        where = f"`{name}` prompt {number}"
        checks.refuse_unknown(entry, PROMPT_KEYS, where)
        fields = {**entry, **_joined(entry, passages, where)}
        prompts.append(_prompt(fields, f"prompt-{number}", where))
    _refuse_twins(prompts, name)
    return prompts


def _passages(table: object, where: str) -> dict[str, str]:
    if not isinstance(table, dict):
        raise ToolkitError(f"{where} is not a table of texts", 'Write, e.g., `manual = "..."`')
    return {
        key: checks.text(value, f"{where}: `{checks.shown(key)}`") for key, value in table.items()
    }


def _joined(entry: Mapping[str, Any], passages: Mapping[str, str], where: str) -> dict[str, str]:
    """The text with the passages that it names before it."""
    named = entry.get("passages")
    if named is None:
        return {}
    if not isinstance(named, list) or "text" not in entry:
        raise ToolkitError(
            f"{where}: `passages` is a list of names, beside a `text`", checks.EXAMPLE
        )
    for word in named:
        if not isinstance(word, str) or word not in passages:
            raise _no_passage(word, passages, where)
    text = checks.text(entry["text"], f"{where}: `text`")
    return {"text": "\n\n".join([*(passages[word].strip() for word in named), text.strip()])}


def _no_passage(word: object, passages: Mapping[str, str], where: str) -> ToolkitError:
    return ToolkitError(
        f"{where}: there is no passage `{checks.shown(str(word))}`",
        f"Known passages: {', '.join(map(checks.shown, passages)) or 'none'}",
    )


def _prompt(fields: Mapping[str, Any], name: str, where: str) -> Prompt:
    """Check one prompt's fields, whichever kind of file they stood in."""
    name = checks.word(fields.get("name", name), f"{where}: `name`")
    if not name:
        raise ToolkitError(f"{where}: `name` is empty", "Leave it out, or name the prompt")
    if ("text" in fields) == ("messages" in fields):
        raise ToolkitError(f"{where} needs a text or messages, and not both", checks.EXAMPLE)
    return Prompt(
        name=name,
        messages=_messages(fields, where),
        max_tokens=checks.count(fields.get("max_tokens"), f"{where}: `max_tokens`"),
        weight=checks.weight(fields.get("weight", 1.0), f"{where}: `weight`"),
        then=_then(fields.get("then", []), f"{where}: `then`"),
    )


def _then(steps: object, where: str) -> tuple[str, ...]:
    if not isinstance(steps, list):
        raise ToolkitError(f"{where} is not a list of texts", THEN_EXAMPLE)
    for number, step in enumerate(steps, start=1):
        if not isinstance(step, str) or ANSWER not in step:
            raise ToolkitError(f"{where}: text {number} does not hold `{ANSWER}`", THEN_EXAMPLE)
    return tuple(steps)


def _messages(fields: Mapping[str, Any], where: str) -> tuple[Message, ...]:
    if "text" in fields:
        messages = [{"role": "user", "content": checks.text(fields["text"], where)}]
    else:
        messages = _checked(fields["messages"], where)
    try:
        # half a surrogate pair, a number of 30 digits: found now and not in the midst of a run
        orjson.dumps({"messages": messages})
    except orjson.JSONEncodeError as error:
        raise ToolkitError(
            f"{where} holds what JSON cannot carry", "Keep to text, numbers, lists and tables"
        ) from error
    return tuple(messages)


def _checked(messages: Any, where: str) -> list[dict[str, Any]]:
    if not checks.are_tables(messages) or not messages:
        raise ToolkitError(f"{where}: `messages` is not a list of messages", MESSAGE_EXAMPLE)
    for message in messages:
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise ToolkitError(f"{where}: a message has no `role`", MESSAGE_EXAMPLE)
        content = message.get("content")
        if not (content is None or isinstance(content, str) or checks.are_tables(content)):
            raise ToolkitError(
                f"{where}: a message's `content` is neither text nor a list of parts",
                MESSAGE_EXAMPLE,
            )
    if not any(_holds_text(message) for message in messages):
        raise ToolkitError(f"{where}: no message holds text", MESSAGE_EXAMPLE)
    return list(messages)


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


def _refuse_twins(prompts: Iterable[Prompt], name: str) -> None:
    for word, times in Counter(prompt.name for prompt in prompts).items():
        if times > 1:
            raise ToolkitError(
                f"`{name}`: the prompt name `{word}` stands twice", "Give each prompt its own name"
            )
