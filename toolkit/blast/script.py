"""What does each user of a host send next? From a profile, a model and a nonce. No clock, no socket: it sends nothing.

One Script is one host's on one worker; its callers are the host's users there. Ranked requests go by their number on
the script, so every host gets the same ones in the same order, however fast it answers; canaries, chains and pauses
come between them.

Measured with the contest's profile on a shared core, 1 % canaries: an order takes 0.4 us (`next`, `done` and `pause_s`),
each of the first 4,096, which are still drawn, 2.7 us.
"""

import math
import random
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import blake2b
from typing import Literal

import orjson

from toolkit.bench.plan import CHAT, EMBEDDINGS
from toolkit.bench.random_prompts import RANDOM_PROMPT, Words, read_lengths
from toolkit.bench.requests import (
    MARK_STRIDE,
    MARKS,
    PromptOrder,
    StratifiedSample,
    add_mark,
    exact_share,
    limit_of,
    mark,
    proportions,
    request_body,
)
from toolkit.errors import ToolkitError
from toolkit.profiles import ANSWER, Message, Profile, Prompt
from toolkit.records import USUAL_MAX_TOKENS

OrderKind = Literal["ranked", "unique", "twin"]

STREAM_SHARE = 0.5
"""Unless the profile or the user says otherwise: the contest's clients mixed streams with whole answers."""

LEAST_ROUND = 4_096
"""After so many ranked requests, and a whole number of rounds of all prompts, their order begins anew."""
MOST_KEPT_BYTES = 4 * 2**20
"""Of bodies made once and sent again: with 20 hosts at most 80 MiB a worker. What is beyond is made each time."""
MOST_ANSWER_CHARS = 2_000
"""Of an answer are handed on in a chain: about 500 tokens, so that it cannot grow out of a model's context."""
FIRST_UNIQUE = (1, 4)
"""Places (from 0) of the first two unique canaries: the very first request is a ranked one."""

KEPT_AT_ONCE = 4
"""A host's first pairs are stored however soon they follow: at 1 % of a slow host's requests there are two in the first
few seconds and then none for minutes, and one pair tells nothing."""


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
    goes_on: bool = False
    """The next step of its chain follows its answer."""


def unique_at(number: int, share: Fraction) -> int | None:
    """Which request of a host, counted from 0, is unique canary `number`, counted from 0? None: there is none.

    Of every 1/share requests of a host on a worker two are canaries: a unique one and its exact twin. The first two unique
    ones come among the first five requests, so that verdicts and inferred hits start soon. From the third on they come
    where the share lets them: up to any request there were at most max(4, share x requests) canaries. A twin comes as
    soon as its unique request was answered ok, so it needs no place of its own.
    """
    if not share:
        return None
    if number < len(FIRST_UNIQUE):
        return FIRST_UNIQUE[number]
    # half of the canaries are unique: the place that completes its stretch of 2/share requests
    return math.ceil((number + 1) * 2 / share) - 1


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
        first_slot: int = 0,
        endpoint: str = CHAT,
        input_len: str | None = None,
        output_len: str | None = None,
        words: Words | None = None,
    ) -> None:
        # what the user says goes before what the profile says
        if stream_share is None:
            stream_share = STREAM_SHARE if profile.stream_share is None else profile.stream_share
        else:
            prompts = tuple(replace(prompt, stream=None) for prompt in profile.prompts)
            profile = replace(profile, prompts=prompts)
        self._input_len, self._output_len = (
            read_lengths(input_len or ""),
            read_lengths(output_len or ""),
        )
        if self._input_len:
            # each is like no other, as those of other load generators are
            profile = replace(
                profile, prompts=(RANDOM_PROMPT,), unique_share=1.0, shared_prefix=None
            )
        self._endpoint, self._nonce, self._words = endpoint, nonce, words or Words()
        for share, name, hint in (
            (stream_share, "streams", "Give 0 to 1, e.g., 0.5"),
            (canary_share, "canaries", "Give 0 for none, or up to 1, e.g., 0.01"),
        ):
            if not 0 <= share <= 1:
                raise ToolkitError(f"no blast can have a share of {name} `{share:g}`", hint)
        self._profile, self._model, self._seed = profile, model, seed
        self._max_tokens = max_tokens or profile.max_tokens or USUAL_MAX_TOKENS
        self._first_mark = int.from_bytes(blake2b(nonce.encode(), digest_size=16).digest()) % MARKS
        self._ranked = _Rounds(profile, stream_share, seed)
        self._kept: dict[int, Order] = {}
        self._kept_bytes = 0
        self._asked: set[int] = set()
        self._marked = 0
        self._sent = 0
        self._canary_share = exact_share(canary_share)
        self._canaries = _Rounds(replace(profile, unique_share=0.0), stream_share, ~seed)
        self._first_slot = first_slot
        self._uniques = 0
        self._next_unique = unique_at(0, self._canary_share)
        self._twins: deque[Order] = deque()

    def caller(self, number: int) -> "Caller":
        """One user, by its number on this host."""
        draw = random.Random(f"think {self._seed} {number}")  # noqa: S311 (it must repeat itself)
        return Caller(self.orders(), self._profile.think_time_s, draw)

    def orders(self) -> Generator[Order, str | None, None]:
        """One user's ranked requests; it is sent what each was answered, None where that failed or nobody said.

        Each is the host's next, unless it is a step of a chain: its prompt holds the answer before it. An application asks
        several times for one thing: route, generate, correct, format. Each call waits for the one before, so a user of a
        chain keeps a host less busy than one of single requests.
        """
        while True:
            self._sent += 1
            code = self._ranked.next()
            order = self._kept.get(code) or self._new(code)
            answer = yield order
            if not order.goes_on:
                continue
            prompt, _, _ = self._ranked.meaning(code)
            system = [message for message in prompt.messages if message.get("role") == "system"]
            for number, template in enumerate(prompt.then, start=2):
                if answer is None:
                    break
                self._sent += 1  # canaries are a share of all requests
                # an answer's JSON may hold half a surrogate pair, and no UTF-8 does
                sendable = answer[:MOST_ANSWER_CHARS].encode(errors="replace").decode()
                text: Message = {"role": "user", "content": template.replace(ANSWER, sendable)}
                answer = yield replace(
                    order,
                    prompt=f"{prompt.name}/{number}",
                    body=self._body([*system, text], order.stream, order.max_tokens, prompt),
                    repeats=False,
                    goes_on=number <= len(prompt.then),
                )

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
        prompt, stream, _ = self._canaries.meaning(self._canaries.next())
        order = self._marked_order("unique", prompt, stream, self._uniques)
        slot = self._first_slot + 2 * self._uniques
        self._uniques += 1
        self._next_unique = unique_at(self._uniques, self._canary_share)
        return replace(order, slot=slot)

    def answered(self, canary: Order) -> None:
        """Note that a canary was answered ok: a unique one's twin is due."""
        if canary.kind == "unique":
            slot = (canary.slot or 0) + 1
            self._twins.append(
                replace(canary, kind="twin", pair=canary.slot, slot=slot, repeats=True)
            )

    def _new(self, code: int) -> Order:
        """A ranked order that is not kept: the first of its kind, a unique one, or one too many to keep."""
        prompt, stream, unique = self._ranked.meaning(code)
        if unique:
            self._marked += 1
            return self._marked_order("ranked", prompt, stream, -self._marked)
        order = self._made("ranked", prompt, prompt.messages, stream, prompt.name)
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
        # behind a shared prefix: a mark in front would defeat the prefix cache that the profile is about, and a
        # canary without it would make every ranked answer look quick
        is_behind = bool(self._profile.shared_prefix)
        messages = add_mark(prompt.messages, word, "end" if is_behind else "front")
        if self._input_len:
            tokens = self._input_len.at(f"input {self._seed} {number}")
            text = self._words.text(tokens, f"{self._nonce} {number}")
            messages = [{"role": "user", "content": text}]
        return self._made(kind, prompt, messages, stream, number)

    def _made(
        self,
        kind: OrderKind,
        prompt: Prompt,
        messages: Sequence[Message],
        stream: bool,
        which: int | str,
    ) -> Order:
        """`which` decides how long an answer of a wanted length is."""
        limit = limit_of(prompt, self._max_tokens)
        if self._endpoint == EMBEDDINGS:
            stream, limit = False, 0
        elif self._output_len:
            limit = self._output_len.at(f"output {self._seed} {which}")
        return Order(
            kind=kind,
            prompt=prompt.name,
            stream=stream,
            max_tokens=limit,
            body=self._body(messages, stream, limit, prompt),
            repeats=False,
            goes_on=kind == "ranked" and bool(prompt.then),
        )

    def _body(
        self, messages: Sequence[Message], stream: bool, max_tokens: int, prompt: Prompt
    ) -> bytes:
        body = request_body(
            self._model,
            messages,
            stream,
            max_tokens,
            None,
            more=prompt.more,
            endpoint=self._endpoint,
            ignore_eos=self._output_len is not None,
        )
        return orjson.dumps(body)


class Caller:
    """One user: it takes an order, sends it, and says how it ended before it takes the next one."""

    def __init__(
        self,
        orders: Generator[Order, str | None, None],
        think_time_s: tuple[float, float] | None,
        draw: random.Random,
    ) -> None:
        self._orders, self._think_time_s, self._random = orders, think_time_s, draw
        self._answer: str | None = None
        self._goes_on = False

    def next(self) -> Order:
        """What to send now."""
        order = self._orders.send(self._answer)
        self._answer, self._goes_on = None, False
        return order

    def done(self, order: Order, answer_text: str | None) -> None:
        """Say what the order was answered; None: it failed."""
        self._answer, self._goes_on = answer_text, order.goes_on and answer_text is not None

    def pause_s(self) -> float:
        """How long to think before the next order; a chain's steps follow at once."""
        if self._think_time_s is None or self._goes_on:
            return 0.0
        return self._random.uniform(*self._think_time_s)


class CanarySampling:
    """Which of a host's canaries on one worker are stored whole: now and then a pair, for all of them would fill a disk.

    A slow host's twins end long after others' uniques did: a pair that was begun is kept whole, however many began
    meanwhile, for a unique without its twin tells nothing of a cache.
    """

    def __init__(self, every_s: float) -> None:
        """Keep at most one new pair in so long, after the first few."""
        self._every_s = every_s
        self._kept = 0
        self._kept_at_s = float("-inf")
        # that of a unique that failed stays, as it gets no twin: one in `every_s` at most
        self._awaited: set[int] = set()

    def begins(self, slot: int, now_s: float) -> bool:
        """Whether a unique canary that ended now is kept."""
        if self._kept >= KEPT_AT_ONCE and now_s - self._kept_at_s < self._every_s:
            return False
        self._kept += 1
        self._kept_at_s = now_s
        self._awaited.add(slot)
        return True

    def completes(self, pair: int) -> bool:
        """Whether a twin is kept: if its unique was, once."""
        if pair not in self._awaited:
            return False
        self._awaited.discard(pair)
        return True


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
            prompt = self._order.prompt(place)
            streams = self._streams.includes(place) if prompt.stream is None else prompt.stream
            code = self._place[prompt.name] * 2 + streams
            self._codes.append(code * 2 + self._unique.includes(place))
        return self._codes[place]

    def meaning(self, code: int) -> tuple[Prompt, bool, bool]:
        """Prompt, streamed, unique."""
        return self._prompts[code // 4], bool(code & 2), bool(code & 1)
