"""What does each user of a host send next? From a profile, a model and a nonce. No clock, no socket: it sends nothing.

One Script is one host's on one worker; its callers are the host's users there. Ranked requests go by their number on
the script, so every host gets the same ones in the same order, however fast it answers; canaries, chains and pauses
come between them.

Measured with the contest's profile on a shared core, 1 % canaries: an order takes 0.4 us (`next`, `done` and `pause_s`),
each of the first 4,096, which are still drawn, 2.7 us.
"""

import random
from collections import deque
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal

import orjson

from toolkit.bench.plan import NoncePlace
from toolkit.bench.requests import (
    MARK_STRIDE,
    MARKS,
    PromptOrder,
    StratifiedSample,
    add_mark,
    chat_body,
    exact_share,
    limit_of,
    mark,
    proportions,
)
from toolkit.blast.canaries import unique_at
from toolkit.blast.chains import step_messages, step_name
from toolkit.errors import ToolkitError
from toolkit.profiles import Message, Profile, Prompt

OrderKind = Literal["ranked", "unique", "twin"]

STREAM_SHARE = 0.5
"""Unless the profile or the user says otherwise: the contest's clients mixed streams with whole answers."""
MAX_TOKENS = 256
"""Likewise."""

LEAST_ROUND = 4_096
"""After so many ranked requests, and a whole number of rounds of all prompts, their order begins anew."""
MOST_KEPT_BYTES = 4 * 2**20
"""Of bodies made once and sent again: with 20 hosts at most 80 MiB a worker. What is beyond is made each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One request that is to be sent."""

    kind: OrderKind
    slot: int | None = None
    """Of a canary: its number, the same template at every host. None: a ranked request, which needs no number."""
    pair: int | None = None
    """Of a twin: the slot of the unique request that it repeats."""
    prompt: str
    """The prompt's name; `name/2` is the second step of its chain."""
    stream: bool
    max_tokens: int
    body: bytes
    """The whole JSON body."""
    repeats: bool
    """Exactly this request went to this host before, from this worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """How a run asks, whatever the prompt."""

    model: str
    stream_share: float
    max_tokens: int
    temperature: float | None
    nonce_place: NoncePlace


class HostScript:
    """One host's requests on one worker.

    `nonce` must be unlike for every host, worker and start of a run: its marks make requests unique. `seed` should
    differ between workers, and be equal for all hosts. `first_slot` is where the canaries' slots begin: unlike for
    every worker and every resumption of a run, and equal for all hosts.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        model: str,
        nonce: str,
        seed: int = 0,
        canary_share: float = 0.01,
        stream_share: float | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        first_slot: int = 0,
    ) -> None:
        self._profile = profile
        self._settings = _settings(profile, model, stream_share, max_tokens, temperature)
        self._seed = seed
        self._first_mark = int.from_bytes(blake2b(nonce.encode(), digest_size=16).digest()) % MARKS
        self._ranked = _Rounds(profile, self._settings.stream_share, seed)
        self._kept: dict[int, Order] = {}
        self._kept_bytes = 0
        self._asked: set[int] = set()
        self._marked = 0
        self._sent = 0
        _refuse_no_share(canary_share, "canaries", "Give 0 for none, or up to 1, e.g., 0.01")
        self._canary_share = exact_share(canary_share)
        plain = replace(profile, unique_share=0.0)
        self._canaries = _Rounds(plain, self._settings.stream_share, ~seed)
        self._first_slot = first_slot
        self._uniques = 0
        self._next_unique = unique_at(0, self._canary_share)
        self._twins: deque[Order] = deque()
        self._then = {p.name: p for p in profile.prompts if p.then}

    def caller(self, number: int) -> "Caller":
        """One user, by its number on this host."""
        return Caller(self, self._profile.think_time_s, f"think {self._seed} {number}")

    def order(self) -> Order:
        """Take the host's next ranked request that follows from no answer."""
        self._sent += 1
        code = self._ranked.next()
        return self._kept.get(code) or self._new(code)

    def canary(self) -> Order | None:
        """Take the canary that is due, a twin before a unique one; None: none is.

        It is to be sent beside the users, one at a time: a unique canary of 3.3 s that held one of four users of a
        response cache, 1 % of 7 ms answers, would cost the host two thirds of its ranked requests.
        """
        if self._twins:
            self._sent += 1
            return self._twins.popleft()
        if self._next_unique is None or self._sent < self._next_unique:
            return None
        self._sent += 1
        return self._unique()

    def answered(self, canary: Order) -> None:
        """Note that a canary was answered ok: a unique one's twin is due."""
        if canary.kind == "unique":
            slot = (canary.slot or 0) + 1
            self._twins.append(
                replace(canary, kind="twin", pair=canary.slot, slot=slot, repeats=True)
            )

    def chain(self, order: Order) -> Prompt | None:
        """The prompt whose chain a ranked order begins."""
        return self._then.get(order.prompt)

    def step(self, first: Order, prompt: Prompt, number: int, answer: str) -> Order:
        """Take step `number` of a chain, counted from 1, after the answer to the one before."""
        self._sent += 1  # canaries are a share of all requests
        messages = step_messages(prompt.messages, prompt.then[number - 2], answer)
        return replace(
            first,
            prompt=step_name(prompt.name, number),
            body=self._body(messages, first.stream, first.max_tokens),
            repeats=False,
        )

    def _unique(self) -> Order:
        slot = self._first_slot + 2 * self._uniques
        prompt, stream, _ = self._canaries.meaning(self._canaries.next())
        order = self._marked_order("unique", prompt, stream, self._uniques)
        self._uniques += 1
        self._next_unique = unique_at(self._uniques, self._canary_share)
        return replace(order, slot=slot)

    def _new(self, code: int) -> Order:
        """A ranked order that is not kept: the first of its kind, a unique one, or one too many to keep."""
        prompt, stream, unique = self._ranked.meaning(code)
        if unique:
            self._marked += 1
            return self._marked_order("ranked", prompt, stream, -self._marked)
        order = self._made("ranked", prompt, list(prompt.messages), stream)
        if code in self._asked:
            return replace(order, repeats=True)
        self._asked.add(code)
        if self._kept_bytes + len(order.body) <= MOST_KEPT_BYTES:
            self._kept_bytes += len(order.body)
            self._kept[code] = replace(order, repeats=True)
        return order

    def _marked_order(self, kind: OrderKind, prompt: Prompt, stream: bool, number: int) -> Order:
        """A request with mark `number`: canaries' count up from 0, ranked ones' down from -1."""
        word = mark((self._first_mark + number * MARK_STRIDE) % MARKS)
        messages = add_mark(prompt.messages, word, self._settings.nonce_place)
        return self._made(kind, prompt, messages, stream)

    def _made(
        self, kind: OrderKind, prompt: Prompt, messages: list[Message], stream: bool
    ) -> Order:
        limit = limit_of(prompt, self._settings.max_tokens)
        return Order(
            kind=kind,
            prompt=prompt.name,
            stream=stream,
            max_tokens=limit,
            body=self._body(messages, stream, limit),
            repeats=False,
        )

    def _body(self, messages: list[Message], stream: bool, max_tokens: int) -> bytes:
        model, temperature = self._settings.model, self._settings.temperature
        return orjson.dumps(chat_body(model, messages, stream, max_tokens, temperature))


class Caller:
    """One user: it takes an order, sends it, and says how it ended before it takes the next one."""

    def __init__(
        self, script: HostScript, think_time_s: tuple[float, float] | None, draw: str
    ) -> None:
        self._script = script
        self._think_time_s = think_time_s
        self._random = random.Random(draw)  # noqa: S311 (it must repeat itself)
        self._order: Order | None = None
        self._chain: tuple[Order, Prompt] | None = None
        self._step = 1
        self._answer = ""

    def next(self) -> Order:
        """What to send now."""
        if self._order is not None:  # nobody said how it ended
            self._end_chain()
        if self._chain is None:
            order = self._script.order()
            if (prompt := self._script.chain(order)) is not None:
                self._chain = order, prompt
        else:
            order = self._script.step(*self._chain, self._step, self._answer)
        self._order = order
        return order

    def done(self, order: Order, answer_text: str | None) -> None:
        """Say what the order was answered; None: it failed. An order that is not under way counts for nothing."""
        if order is not self._order:
            return
        self._order = None
        if answer_text is None:
            self._end_chain()
        elif self._chain is not None:
            self._go_on(answer_text, len(self._chain[1].then))

    def pause_s(self) -> float:
        """How long to think before the next order; a chain's steps follow at once."""
        if self._think_time_s is None or self._chain is not None:
            return 0.0
        return self._random.uniform(*self._think_time_s)

    def _go_on(self, answer: str, steps: int) -> None:
        if self._step > steps:
            self._end_chain()
        else:
            self._step += 1
            self._answer = answer

    def _end_chain(self) -> None:
        self._chain, self._step, self._answer = None, 1, ""


class _Rounds:
    """The order of prompts, streams and unique requests: drawn once by number, then walked again and again.

    A request is a code: (place in the profile x 2 + streamed) x 2 + unique.
    """

    def __init__(self, profile: Profile, stream_share: float, seed: int) -> None:
        self._prompts = profile.prompts
        self._place = {prompt.name: place for place, prompt in enumerate(profile.prompts)}
        self._order, size = PromptOrder(profile.prompts, seed), sum(proportions(profile.prompts))
        self._streams = StratifiedSample(stream_share, seed)
        self._unique = StratifiedSample(profile.unique_share, ~seed)
        self._round = -(-LEAST_ROUND // size) * size
        self._codes: list[int] = []
        self._taken = 0

    def next(self) -> int:
        """The next request's code."""
        place = self._taken % self._round
        self._taken += 1
        if place == len(self._codes):
            # in the first round they are drawn: 2 us each, and none of it before the start
            code = self._place[self._order.prompt(place).name] * 2 + self._streams.includes(place)
            self._codes.append(code * 2 + self._unique.includes(place))
        return self._codes[place]

    def meaning(self, code: int) -> tuple[Prompt, bool, bool]:
        """Prompt, streamed, unique."""
        return self._prompts[code // 4], bool(code & 2), bool(code & 1)


def _settings(
    profile: Profile,
    model: str,
    stream_share: float | None,
    max_tokens: int | None,
    temperature: float | None,
) -> RequestSettings:
    """What the user says goes before what the profile says."""
    if stream_share is None:
        stream_share = STREAM_SHARE if profile.stream_share is None else profile.stream_share
    _refuse_no_share(stream_share, "streams", "Give 0 to 1, e.g., 0.5")
    return RequestSettings(
        model=model,
        stream_share=stream_share,
        max_tokens=max_tokens or profile.max_tokens or MAX_TOKENS,
        temperature=temperature,
        # behind a shared prefix: a mark in front would defeat the prefix cache that the profile is about, and a
        # canary without it would make every ranked answer look quick
        nonce_place="end" if profile.shared_prefix else "front",
    )


def _refuse_no_share(share: float, name: str, hint: str) -> None:
    if not 0 <= share <= 1:
        raise ToolkitError(f"no blast can have a share of {name} `{share:g}`", hint)
