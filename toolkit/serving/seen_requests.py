"""What clients were seen to ask -> prompts and whole requests to warm a server up with. Pure.

A store keeps a prompt's text, not the body. So a body is built anew, and counts as the clients' own only where its key is the one that
was seen: a response cache filled with any other would never be hit.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from toolkit.profiles import Message, Profile, Prompt
from toolkit.protocol.request import asked as read_body
from toolkit.records import Asked

CHAT = "/v1/chat/completions"
LIMITS = ("max_tokens", "max_completion_tokens")
SAMPLING = ("temperature", "top_p", "n", "seed")
_ROLE = re.compile(r"^(system|user|assistant|developer): ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWorkload:
    """What was seen, most frequent first."""

    profile: Profile | None
    """Its prompts, weighted by how often they came; None: no chat with its text was kept."""
    exact: tuple[dict[str, Any], ...]
    """Bodies that ask exactly what clients asked."""
    left_out: int
    """Of the different requests: those whose body cannot be built anew from what was kept."""


def workload(seen: Iterable[Asked], name: str) -> SeenWorkload:
    """Count requests and build them anew."""
    counts: Counter[str] = Counter()
    first: dict[str, Asked] = {}
    for one in seen:
        key = one.request_key or one.exact_key
        counts[key] += 1
        if one.prompt_text is not None or key not in first:
            first[key] = one
    ordered = [(first[key], times) for key, times in counts.most_common()]
    built = [(times, one, messages_of(one)) for one, times in ordered]
    bodies = [
        body
        for _, one, messages in built
        if messages is not None and (body := body_of(one, messages)) is not None
    ]
    prompts = [
        Prompt(name=f"seen-{number}", messages=messages, max_tokens=_limit(one), weight=times)
        for number, (times, one, messages) in enumerate(built, start=1)
        if messages is not None
    ]
    profile = Profile(name=name, prompts=tuple(prompts)) if prompts else None
    return SeenWorkload(profile=profile, exact=tuple(bodies), left_out=len(ordered) - len(bodies))


def messages_of(one: Asked) -> tuple[Message, ...] | None:
    """A chat's messages; as one of the user where it is not plain which text is whose. None: no chat, or no text."""
    if one.prompt_text is None or not one.messages or one.images or not one.prompt_text.strip():
        return None
    text = one.prompt_text
    heads = list(_ROLE.finditer(text))
    if len(heads) != one.messages or heads[0].start():
        return ({"role": "user", "content": text.removeprefix("user: ")},)
    ends = [head.start() - 1 for head in heads[1:]] + [len(text)]
    return tuple(
        {"role": head[1], "content": text[head.end() : end]}
        for head, end in zip(heads, ends, strict=True)
    )


def body_of(one: Asked, messages: Sequence[Message]) -> dict[str, Any] | None:
    """The body with the key that was seen; None where none is found."""
    for body in _guesses(one, messages):
        if (
            one.request_key
            and read_body(orjson.dumps(body), path=CHAT).request_key == one.request_key
        ):
            return body
    return None


def _guesses(one: Asked, messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Bodies that say what was kept, with the limit under either of its names."""
    body: dict[str, Any] = {"messages": list(messages)}
    if one.model is not None:
        body["model"] = one.model
    body |= {name: value for name in SAMPLING if (value := getattr(one, name)) is not None}
    if one.stream is not None:
        body["stream"] = one.stream
    if one.stream:
        body["stream_options"] = {"include_usage": True}
    if one.max_tokens is None:
        yield body
        return
    for name in LIMITS:
        yield body | {name: one.max_tokens}


def _limit(one: Asked) -> int | None:
    return one.max_tokens if one.max_tokens and one.max_tokens > 0 else None
