"""Which requests warm a server up? Distinct ones that no cache knows, and at the end the clients' own. It sends nothing.

The distinct ones are the workload's prompts with a mark in front of each: as long as the clients', but a prefix cache that knew their
beginnings would skip the prefill that is to be warmed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolkit.bench.asks import WARMUP_PROMPTS, Ask, Asker
from toolkit.bench.plan import Plan
from toolkit.profiles import Profile, Prompt

PLAIN = Profile(
    name="plain",
    prompts=tuple(
        Prompt(name=f"plain-{number}", messages=({"role": "user", "content": text},))
        for number, text in enumerate(WARMUP_PROMPTS, start=1)
    ),
)
"""Where nobody says what clients ask."""

MOST_SEEDS = 256
"""Prompts: what clients ask most often; the rest of a long profile would take longer than it saves."""
CLIENTS_MAX_TOKENS = 256
"""What a blast asks for where its profile does not say."""
LONG_SHARES = (0.25, 0.5, 0.9)
"""Of the longest prompt that fits: lengths for which chunked prefill and attention take other paths."""
MOST_LONG_TOKENS = 131_072
UNKNOWN_ROOM_TOKENS = 4_096
"""Where the server does not tell how long a prompt may be."""
CHARS_PER_TOKEN = 3.0
"""Less than the 4 of English prose: a prompt that is too long is refused, and warms nothing."""
PASSAGE = (
    "The keeper climbed the stairs with the oil, trimmed the wick, wound the clockwork that turned the lens, and wrote"
    " into the log what the sea had done since the evening before. "
)

_SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "score": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title", "score", "tags"],
    "additionalProperties": False,
}
STRUCTURES: tuple[Mapping[str, Any], ...] = (
    {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}},
    {"type": "json_object"},
)
"""A grammar is compiled for each; the clients' own schemas are compiled when their own requests are sent."""


class WarmAsker:
    """One warm-up's requests. `nonce` must be unlike for every warm-up."""

    def __init__(
        self,
        profile: Profile | None,
        *,
        model: str,
        nonce: str,
        max_tokens: int,
        stream: bool | None = None,
    ) -> None:
        """`stream` None: streams and whole answers in turns, a stream first."""
        self._profile, self._model, self._stream = profile or PLAIN, model, stream
        self._has_profile = profile is not None
        # an asker's requests all stream, or none does: the turns are ours, so that the first of a round is a stream
        self._askers = {
            streams: Asker(
                _plan(max_tokens, streams=streams),
                self._profile,
                model=model,
                nonce=f"{nonce} {streams}",
            )
            for streams in (True, False)
        }
        self._slots = {True: 0, False: 0}
        # of plain texts only: a profile's message may be a list of parts, or end with what long texts must not follow
        plan = _plan(max_tokens, streams=True)
        self._long = Asker(plan, PLAIN, model=model, nonce=f"{nonce} long")
        self._longs = 0

    def plain(self, count: int, *, streams: bool | None = None) -> list[Ask]:
        """So many that nobody sent before; `streams`: all of them or none, where the user did not say."""
        wanted = streams if self._stream is None else self._stream
        return [self._next(place % 2 == 0 if wanted is None else wanted) for place in range(count)]

    def structured(self, count: int) -> list[Ask]:
        """So many whose answers must be JSON, by a schema and by its grammar alone in turns."""
        return [
            _with(ask, response_format=STRUCTURES[place // 2 % len(STRUCTURES)])
            for place, ask in enumerate(self.plain(count))
        ]

    def long(self, max_model_len: int | None, chars_per_token: float | None) -> list[Ask]:
        """Prompts of rising length, up to what fits; lengths in tokens are an estimate from characters."""
        asks = [self._long.next(self._longs + place) for place in range(len(LONG_SHARES))]
        self._longs += len(asks)
        most = UNKNOWN_ROOM_TOKENS if max_model_len is None else max_model_len
        room = min(most, MOST_LONG_TOKENS) - asks[0].max_tokens
        per_token = chars_per_token or CHARS_PER_TOKEN
        return [
            _lengthened(ask, int(share * room * per_token))
            for share, ask in zip(LONG_SHARES, asks, strict=True)
        ]

    def seeds(self, exact: Sequence[Mapping[str, Any]] = ()) -> list[Ask]:
        """The clients' own requests, for the prefix and response caches: those of the profile, or exactly these bodies.

        Without either nobody knows what clients ask: none.
        """
        if exact:
            bodies = [dict(body) for body in exact[:MOST_SEEDS]]
            return [_exact(slot, {"model": self._model} | body) for slot, body in enumerate(bodies)]
        if not self._has_profile:
            return []
        return [_exact(slot, body) for slot, body in enumerate(self._profile_bodies())]

    def _profile_bodies(self) -> Iterator[dict[str, Any]]:
        """As a blast sends them, the most frequent first; each as a stream and whole, for caches that tell these apart."""
        limit = self._profile.max_tokens or CLIENTS_MAX_TOKENS
        prompts = sorted(self._profile.prompts, key=lambda prompt: -prompt.weight)[:MOST_SEEDS]
        for prompt in prompts:
            body: dict[str, Any] = {
                "model": self._model,
                "messages": list(prompt.messages),
                "max_tokens": limit if prompt.max_tokens is None else min(limit, prompt.max_tokens),
            }
            if self._stream is not True:
                yield body | {"stream": False}
            if self._stream is not False:
                yield body | {"stream": True, "stream_options": {"include_usage": True}}

    def _next(self, streams: bool) -> Ask:
        slot = self._slots[streams]
        self._slots[streams] += 1
        return self._askers[streams].next(slot)


def _plan(max_tokens: int, *, streams: bool) -> Plan:
    return Plan(
        sameness="unique", nonce_place="front", stream_share=float(streams), max_tokens=max_tokens
    )


def _with(ask: Ask, **more: Any) -> Ask:
    return replace(ask, body=ask.body | more)


def _lengthened(ask: Ask, chars: int) -> Ask:
    """The same with more text behind its own, so that its messages have so many characters; never shorter than it was."""
    own = ask.body["messages"][0]["content"]
    more = (PASSAGE * (max(0, chars) // len(PASSAGE) + 1))[: max(0, chars - len(own) - 1)]
    return _with(ask, messages=[{"role": "user", "content": f"{own} {more}".rstrip()}])


def _exact(slot: int, body: dict[str, Any]) -> Ask:
    stream = body.get("stream") is True
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or CLIENTS_MAX_TOKENS
    return Ask(
        slot=slot, kind="repeat", prompt="seed", body=body, stream=stream, max_tokens=int(limit)
    )


def prompt_chars(ask: Ask) -> int:
    """Characters of an ask's messages, to learn how many make a token."""
    contents = (message.get("content") for message in ask.body["messages"])
    return sum(len(each) for each in contents if isinstance(each, str))
