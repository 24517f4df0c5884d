"""Which requests warm a server up? Distinct ones that no cache knows, and at the end the clients' own. It sends nothing.

The distinct ones are the workload's prompts with a mark in front of each: as long as the clients', but a prefix cache that knew their
beginnings would skip the prefill that is to be warmed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from toolkit.bench.plan import BenchPlan
from toolkit.bench.requests import (
    WARMUP_PROMPTS,
    HostRequests,
    PlannedRequest,
    limit_of,
    request_body,
)
from toolkit.profiles import Profile, Prompt
from toolkit.records import USUAL_MAX_TOKENS

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


class WarmRequests:
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
        self._profile, self._model, self._stream = profile, model, stream
        plan = BenchPlan(
            sameness="unique", nonce_place="front", stream_share=1.0, max_tokens=max_tokens
        )
        self._plain = HostRequests(plan, profile or PLAIN, model=model, nonce=nonce)
        # of plain texts only: a profile's message may be a list of parts, or end with what long texts must not follow
        self._long = HostRequests(plan, PLAIN, model=model, nonce=f"{nonce} long")
        self._slots = count()
        self._chars = self._tokens = 0

    def plain(self, number: int, *, streams: bool | None = None) -> list[PlannedRequest]:
        """So many that nobody sent before; `streams`: all of them or none, where the user did not say."""
        wanted = streams if self._stream is None else self._stream
        return [self._new(self._plain, place, wanted) for place in range(number)]

    def structured(self, number: int) -> list[PlannedRequest]:
        """So many whose answers must be JSON, by a schema and by its grammar alone in turns."""
        formats = [STRUCTURES[place // 2 % len(STRUCTURES)] for place in range(number)]
        return [
            self._new(self._plain, place, self._stream, response_format=each)
            for place, each in enumerate(formats)
        ]

    def long(self, max_model_len: int | None) -> list[PlannedRequest]:
        """Prompts of rising length, up to what fits; lengths in tokens are an estimate from characters."""
        most = UNKNOWN_ROOM_TOKENS if max_model_len is None else max_model_len
        per_token = self._chars / self._tokens if self._tokens else CHARS_PER_TOKEN
        found = []
        for share in LONG_SHARES:
            request = self._new(self._long, 0, self._stream)
            chars = int(share * (min(most, MOST_LONG_TOKENS) - request.max_tokens) * per_token)
            # never shorter than its own text
            own = request.body["messages"][0]["content"]
            more = (PASSAGE * (max(0, chars) // len(PASSAGE) + 1))[: max(0, chars - len(own) - 1)]
            request.body["messages"] = [{"role": "user", "content": f"{own} {more}".rstrip()}]
            found.append(request)
        return found

    def _new(
        self, source: HostRequests, place: int, streams: bool | None, **more: Any
    ) -> PlannedRequest:
        """A request that nobody sent before; where nobody said so, even places stream."""
        request, stream = (
            source.next(next(self._slots)),
            place % 2 == 0 if streams is None else streams,
        )
        body = request.body | more | {"stream": stream}
        if not stream:
            body.pop("stream_options", None)
        return replace(request, body=body, stream=stream)

    def learn(self, request: PlannedRequest, prompt_tokens: int) -> None:
        """How many characters make a token here, from an answered request."""
        contents = (message.get("content") for message in request.body["messages"])
        self._chars += sum(len(each) for each in contents if isinstance(each, str))
        self._tokens += prompt_tokens

    def seeds(self, exact: Sequence[Mapping[str, Any]] = ()) -> list[PlannedRequest]:
        """The clients' own requests, for the prefix and response caches: those of the profile, or exactly these bodies.

        The profile's as a blast sends them, the most frequent first; each as a stream and whole, for caches that tell
        these apart. Without either nobody knows what clients ask: none.
        """
        bodies = [{"model": self._model} | dict(body) for body in exact[:MOST_SEEDS]]
        if not exact and self._profile is not None:
            limit = self._profile.max_tokens or USUAL_MAX_TOKENS
            prompts = sorted(self._profile.prompts, key=lambda prompt: -prompt.weight)
            bodies = [
                request_body(
                    self._model, each.messages, streams, limit_of(each, limit), None, more=each.more
                )
                for each in prompts[:MOST_SEEDS]
                for streams in (False, True)
                if self._stream in (None, streams)
            ]
        found = []
        for slot, body in enumerate(bodies):
            most = body.get("max_completion_tokens") or body.get("max_tokens")
            seed = PlannedRequest(
                slot=slot,
                kind="repeat",
                prompt="seed",
                body=body,
                stream=body.get("stream") is True,
                max_tokens=int(most or USUAL_MAX_TOKENS),
            )
            found.append(seed)
        return found
