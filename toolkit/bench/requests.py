"""Which request is number `slot`, and which model does it name? From a plan and a profile. No clock, no socket: it neither sends nor waits.

The slot's number and the plan's seed decide its prompt, whether it streams and whether a twin is due, so these
are equal at every host. Only which unique request a twin repeats, and a delay of twins where none was answered
yet, follow from how a host answers.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from math import gcd, lcm
from typing import Any

from toolkit.bench.plan import BenchPlan, NoncePlace
from toolkit.profiles import Message, Profile, Prompt
from toolkit.records import RequestKind, ServedModel

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
MARK_DIGITS = 8
MARKS = len(DIGITS) ** MARK_DIGITS
"""2.8e12 different marks."""
MARK_STRIDE = 1_743_541_808_807
"""From one slot's mark to the next: the number without a common factor with MARKS nearest to MARKS divided by the
golden ratio, so that marks of neighbouring slots differ from their first digits on (Weyl's sequence)."""

MOST_CARDS = 10_000
"""Uneven weights are rounded to this many parts, should they have no smaller common measure."""

WARMUP_PROMPTS = (
    "Describe in at least 300 words how a lighthouse was run before electricity reached it.",
    "Explain in at least 300 words how a loaf of sourdough comes about, from flour to crust.",
    "Write a diary entry of at least 300 words by a cartographer who is lost on her own map.",
    "Tell in at least 300 words how a mechanical watch keeps time, part by part.",
    "Write a letter of at least 300 words from a retired stationmaster to his successor.",
    "Compare canals and railways as carriers of goods in at least 300 words.",
    "Describe a day in a mountain hut in winter, hour by hour, in at least 300 words.",
    "Explain in at least 300 words how a violin is built and why each kind of wood is chosen.",
)
"""No profile of the catalog holds one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request that is to be sent."""

    slot: int
    kind: RequestKind
    pair: int | None = None
    """Of a twin: the slot of the unique request that it repeats."""
    prompt: str
    """The prompt's name."""
    body: dict[str, Any]
    """The whole JSON body; parts of it are shared with other asks, so it is never to be altered."""
    stream: bool
    max_tokens: int


class HostRequests:
    """One host's requests, slot by slot; slots are asked for in rising order, each once, from any on.

    `nonce` must be unlike for every host and every run: two askers with one nonce send equal prompts at equal
    slots. A request costs 5 to 7 us, measured with the catalog's profiles.
    """

    def __init__(self, plan: BenchPlan, profile: Profile, *, model: str, nonce: str) -> None:
        self._plan = plan
        self._model = model
        self._deck = Deck(profile.prompts, plan.seed)
        self._first_mark = int.from_bytes(blake2b(nonce.encode(), digest_size=16).digest()) % MARKS
        self._stream_turns = Turns(plan.stream_share, plan.seed)
        self._twin_share = exact_share(plan.twin_share if plan.sameness == "pairs" else 0.0)
        self._owed = 0
        self._unanswered: set[int] = set()
        # slots only, as a slot's request can be made anew: bodies kept for a long run would fill the memory
        self._waiting: dict[bool, deque[int]] = {True: deque(), False: deque()}

    def warmup(self, number: int) -> PlannedRequest:
        """Make a request that is like no measured one: an own prompt, with a mark that no slot bears."""
        text = WARMUP_PROMPTS[number % len(WARMUP_PROMPTS)]
        message = {"role": "user", "content": f"{self._mark(-1 - number)} {text}"}
        name = f"warmup-{number % len(WARMUP_PROMPTS) + 1}"
        stream, limit = self._stream_turns.is_turn(number), self._plan.max_tokens
        return PlannedRequest(
            slot=number,
            kind="warmup",
            prompt=name,
            body=self._body([message], stream, limit),
            stream=stream,
            max_tokens=limit,
        )

    def next(self, slot: int) -> PlannedRequest:
        """Make the request of a slot."""
        stream = self._stream_turns.is_turn(slot)
        waiting = self._waiting[stream]
        self._owed += twins_due(slot, self._twin_share)
        if waiting and self._owed:
            self._owed -= 1
            return self._new(slot, stream, "twin", waiting.popleft())
        if self._twin_share:
            self._unanswered.add(slot)
        return self._new(slot, stream, "repeat" if self._plan.sameness == "repeat" else "unique")

    def answered(self, slot: int) -> None:
        """Note that the unique request of this slot was answered ok: it may have a twin from now on."""
        if slot in self._unanswered:
            self._unanswered.remove(slot)
            self._waiting[self._stream_turns.is_turn(slot)].append(slot)

    def _new(
        self, slot: int, stream: bool, kind: RequestKind, pair: int | None = None
    ) -> PlannedRequest:
        source = slot if pair is None else pair
        prompt = self._deck.prompt(source)
        messages = list(prompt.messages)
        if kind != "repeat":
            messages = marked(prompt.messages, self._mark(source), self._plan.nonce_place)
        return PlannedRequest(
            slot=slot,
            kind=kind,
            pair=pair,
            prompt=prompt.name,
            body=self._body(messages, stream, limit := limit_of(prompt, self._plan.max_tokens)),
            stream=stream,
            max_tokens=limit,
        )

    def _body(self, messages: list[Message], stream: bool, max_tokens: int) -> dict[str, Any]:
        temperature = self._plan.temperature
        body = chat_body(self._model, messages, stream, max_tokens, temperature)
        if self._plan.ignore_eos:
            body["ignore_eos"] = True
        return body

    def _mark(self, slot: int) -> str:
        return mark((self._first_mark + slot * MARK_STRIDE) % MARKS)


def limit_of(prompt: Prompt, most: int) -> int:
    """`max_tokens` of a request: the run's is what nobody may exceed; a prompt may ask for less."""
    return most if prompt.max_tokens is None else min(most, prompt.max_tokens)


def chat_body(
    model: str, messages: list[Message], stream: bool, max_tokens: int, temperature: float | None
) -> dict[str, Any]:
    """The body of a chat request, as a bench and a blast send it."""
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "stream": stream,
    }
    if stream:
        # without it vLLM and SGLang stream no usage, and tokens would be an estimate
        body["stream_options"] = {"include_usage": True}
    if temperature is not None:
        body["temperature"] = temperature
    return body


class Deck:
    """The order of prompts: rounds in which each comes as often as its weight says.

    One shuffled deck, walked in every round from another start and with another stride. So any slot's prompt can
    be told alone, and a new round of a long profile costs no shuffle in the midst of a measurement.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        self._seed = seed
        self._cards = [
            prompt
            for prompt, times in zip(prompts, proportions(prompts), strict=True)
            for _ in range(times)
        ]
        random.Random(f"prompts {seed}").shuffle(self._cards)  # noqa: S311 (it must repeat itself)

    def prompt(self, slot: int) -> Prompt:
        """Which prompt a slot asks."""
        size = len(self._cards)
        number, place = divmod(slot, size)
        start, stride = divmod(drawn(f"round {self._seed} {number}", size * size), size)
        while gcd(stride, size) != 1:  # else it would walk over a part of the deck again and again
            stride += 1
        return self._cards[(start + place * stride) % size]


def proportions(prompts: Sequence[Prompt]) -> list[int]:
    """How often each prompt comes in a round: whole numbers in proportion to the weights."""
    weights = [Fraction(str(prompt.weight)) for prompt in prompts]
    denominator = lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * denominator) for weight in weights]
    measure, total = gcd(*whole), sum(whole)
    if total // measure <= max(MOST_CARDS, len(prompts)):
        return [number // measure for number in whole]
    return [max(1, round(Fraction(number * MOST_CARDS, total))) for number in whole]


class Turns:
    """Which slots stream: in every stretch of 1/share slots one, at a place drawn anew for each stretch.

    The stretches keep the share over any hundred slots; the drawn places keep it out of step with all that
    recurs: twins, prompts, waves of `concurrency` requests. Of a share above one half the other slots are drawn.
    """

    def __init__(self, share: float, seed: int) -> None:
        exact = exact_share(share)
        self._drawn_are_turns = exact <= Fraction(1, 2)
        self._share = min(exact, 1 - exact)
        self._seed = seed

    def is_turn(self, slot: int) -> bool:
        """Whether a slot is one of them."""
        return self._is_drawn(slot) == self._drawn_are_turns

    def _is_drawn(self, slot: int) -> bool:
        part, whole = self._share.as_integer_ratio()
        if not part:
            return False
        stretch = slot * part // whole
        start, end = -(-stretch * whole // part), -(-(stretch + 1) * whole // part)
        return slot - start == drawn(f"stream {self._seed} {stretch}", end - start)


def twins_due(slot: int, share: Fraction) -> int:
    """1 at the last slot of every stretch of 1/share slots, else 0."""
    part, whole = share.as_integer_ratio()
    return (slot + 1) * part // whole - slot * part // whole


def exact_share(share: float) -> Fraction:
    """The share that the user wrote: 0.3 is 3/10, and not the nearest binary number."""
    return Fraction(str(share))


def drawn(what: str, size: int) -> int:
    """A number below `size`, always the same for the same words: equal at every host, without any state."""
    return int.from_bytes(blake2b(what.encode(), digest_size=8).digest()) % size


def mark(number: int) -> str:
    """Spell a number as, e.g., `[k3f9-0012]`."""
    digits = ""
    for _ in range(MARK_DIGITS):
        number, digit = divmod(number, len(DIGITS))
        digits = DIGITS[digit] + digits
    return f"[{digits[:4]}-{digits[4:]}]"


def marked(messages: Sequence[Message], mark: str, place: NoncePlace) -> list[Message]:
    """Copy messages with a mark, in front of the first one or behind the user's last one.

    In front: prefix caches compare from the first token on, so a mark in the last message would leave them the
    system prompt and all turns before it.
    """
    spoken = [at for at, message in enumerate(messages) if message.get("content") is not None]
    users = [at for at in spoken if messages[at].get("role") == "user"]
    at = spoken[0] if place == "front" else (users or spoken)[-1]
    content = with_mark(messages[at]["content"], mark, place)
    return [*messages[:at], {**messages[at], "content": content}, *messages[at + 1 :]]


def with_mark(content: Any, mark: str, place: NoncePlace) -> Any:
    """A message's content, be it text or a list of parts, with a mark before or after it."""
    if isinstance(content, str):
        return f"{mark} {content}" if place == "front" else f"{content} {mark}"
    part = {"type": "text", "text": mark}
    return [part, *content] if place == "front" else [*content, part]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """The name to ask for, or why there is none."""

    model: str | None = None
    error: str | None = None


def choose_model(
    served: Sequence[ServedModel], *, listed: str | None, wanted: str | None
) -> ModelChoice:
    """Choose the model at one host.

    `wanted` is the command line's and must be served; `listed` is what the hosts file expects there: when it is
    not served, what is served is measured all the same, and a verdict says so. Either may also name the place that the
    weights came from. A host that lists nothing is asked for what is wanted.
    """
    asked = listed if wanted is None else wanted
    ids = [model.id for model in served if asked in (model.id, model.root)]
    if asked is not None and (ids or not served):
        return ModelChoice(model=asked if asked in ids or not served else ids[0])
    if wanted is not None:
        others = ", ".join(f"`{model.id}`" for model in served)
        return ModelChoice(error=f"it does not serve `{wanted}` but {others}")
    if served:
        return ModelChoice(model=served[0].id)
    return ModelChoice(error="it lists no model, and nobody named one")
