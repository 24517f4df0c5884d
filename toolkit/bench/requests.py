"""What does request number `slot` ask, and of which model? From a plan and a profile. No clock, no socket: it sends nothing.

The slot's number and the plan's seed decide the prompt, whether the answer is streamed, and when a duplicate is due: equal at
every host. Only which earlier request a duplicate repeats depends on how a host answers, and when, if none was answered yet.

    slot        a request's number within a run, from 0
    mark        a short text like `[k3f9-0012]` in a prompt, which no other prompt has: so no cache knows its answer
    duplicate   an equal request, mark included, sent after the first was answered; its `kind` is `twin`
"""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from math import gcd, lcm
from typing import Any

from toolkit.bench.plan import CHAT, COMPLETIONS, EMBEDDINGS, BenchPlan, NoncePlace
from toolkit.bench.random_prompts import RANDOM_PROMPT, Words, read_lengths
from toolkit.profiles import NOTHING, Message, Profile, Prompt
from toolkit.records import RequestKind, ServedModel

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
MARK_DIGITS = 8
MARKS = len(DIGITS) ** MARK_DIGITS
"""2.8e12 different marks."""
MARK_STRIDE = 1_743_541_808_807
"""From one slot's mark to the next: of the numbers coprime to MARKS the one nearest to MARKS / golden ratio. So no mark
recurs, and those of neighbouring slots differ from their first digits on (a Weyl sequence)."""

REPEATED = 16
"""Different random prompts, where they are sent again and again."""
LONGEST_ROUND = 10_000
"""Prompts in a round; weights that would need more, having no common divisor, are rounded."""

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
    """Of a duplicate: the slot of the request that it repeats."""
    prompt: str
    """The prompt's name."""
    body: dict[str, Any]
    """The whole JSON body; parts of it are shared with other requests, so it is never to be altered."""
    stream: bool
    max_tokens: int


class HostRequests:
    """One host's requests; its caller asks for slots in rising order, each once, from any on.

    `nonce` must differ between hosts and between runs: with one nonce, equal slots get equal prompts. A request costs 5
    to 7 us, measured with the catalog's profiles.
    """

    def __init__(
        self,
        plan: BenchPlan,
        profile: Profile,
        *,
        model: str,
        nonce: str,
        words: Words | None = None,
    ) -> None:
        """`words`: what this host's prompts of a wanted length are made of; without a wanted length they are the profile's."""
        self._plan = plan
        self._model = model
        self._nonce = nonce
        self._words = words or Words()
        self._input_len = read_lengths(plan.input_len or "")
        self._output_len = read_lengths(plan.output_len or "")
        prompts = (RANDOM_PROMPT,) if self._input_len else profile.prompts
        self._prompts = PromptOrder(prompts, plan.seed)
        self._first_mark = int.from_bytes(blake2b(nonce.encode(), digest_size=16).digest()) % MARKS
        self._streamed = StratifiedSample(plan.stream_share, plan.seed)
        self._duplicate_share = exact_share(plan.twin_share if plan.sameness == "pairs" else 0.0)
        self._duplicates_due = 0
        self._unanswered: set[int] = set()
        # by `stream`, as a duplicate is streamed like its original. Slots only: a request can be made anew from its slot, and
        # bodies kept for a long run would fill the memory
        self._repeatable: dict[bool, deque[int]] = {True: deque(), False: deque()}

    def warmup(self, number: int) -> PlannedRequest:
        """Make a request unlike any measured one: a prompt of no profile, with a mark of no slot."""
        which = number % len(WARMUP_PROMPTS)
        text = f"{self._mark(-1 - number)} {WARMUP_PROMPTS[which]}"
        prompt = Prompt(name=f"warmup-{which + 1}", messages=({"role": "user", "content": text},))
        return self._planned(
            number, "warmup", prompt, prompt.messages, stream=self._streamed.includes(number)
        )

    def next(self, slot: int, *, is_sent: bool = True) -> PlannedRequest:
        """Make the request of a slot: a duplicate if one is due and its original was answered, else one of its own.

        One that is only charged, not sent, needs no text of a wanted length.
        """
        stream = self._streams(slot)
        kind: RequestKind = "repeat" if self._plan.sameness == "repeat" else "unique"
        pair = None

        # the last slot of every stretch of 1/share slots makes a duplicate due; it waits until there is an original
        part, whole = self._duplicate_share.as_integer_ratio()
        self._duplicates_due += (slot + 1) * part // whole - slot * part // whole
        if self._repeatable[stream] and self._duplicates_due:
            self._duplicates_due -= 1
            kind, pair = "twin", self._repeatable[stream].popleft()
        elif self._duplicate_share:
            self._unanswered.add(slot)

        source = slot if pair is None else pair
        prompt = self._prompts.prompt(source)
        messages: Sequence[Message] = prompt.messages
        plan, number = self._plan, source % REPEATED if kind == "repeat" else source
        if self._input_len and is_sent:
            text = self._words.text(
                self._input_len.at(f"input {plan.seed} {number}"),
                f"{plan.seed if kind == 'repeat' else self._nonce} {number}",
                shared=f"shared {plan.seed}" if plan.nonce_place == "end" else None,
            )
            messages = ({"role": "user", "content": text},)
        elif kind != "repeat":
            messages = add_mark(messages, self._mark(source), plan.nonce_place)
        if self._output_len:
            # of a prompt that is sent again and again always the same
            of = prompt.name if kind == "repeat" and not self._input_len else number
            limit = self._output_len.at(f"output {plan.seed} {of}")
        else:
            limit = limit_of(prompt, plan.max_tokens)
        return self._planned(slot, kind, prompt, messages, pair, stream=stream, limit=limit)

    def answered(self, slot: int) -> None:
        """Note that this slot's request was answered ok: from now on a duplicate may repeat it."""
        if slot in self._unanswered:
            self._unanswered.remove(slot)
            self._repeatable[self._streams(slot)].append(slot)

    def _streams(self, slot: int) -> bool:
        """Whether a slot's answer is streamed: as its body was recorded, else as the share of streams has it."""
        own = self._prompts.prompt(slot).stream
        return self._streamed.includes(slot) if own is None else own

    def _planned(
        self,
        slot: int,
        kind: RequestKind,
        prompt: Prompt,
        messages: Sequence[Message],
        pair: int | None = None,
        *,
        stream: bool,
        limit: int | None = None,
    ) -> PlannedRequest:
        plan = self._plan
        if plan.endpoint == EMBEDDINGS:
            stream, limit = False, 0
        elif limit is None:
            limit = limit_of(prompt, plan.max_tokens)
        body = request_body(
            self._model,
            messages,
            stream,
            limit,
            plan.temperature,
            more=prompt.more,
            endpoint=plan.endpoint,
            ignore_eos=plan.ignore_eos,
        )
        return PlannedRequest(
            slot=slot,
            kind=kind,
            pair=pair,
            prompt=prompt.name,
            body=body,
            stream=stream,
            max_tokens=limit,
        )

    def _mark(self, slot: int) -> str:
        return mark((self._first_mark + slot * MARK_STRIDE) % MARKS)


def limit_of(prompt: Prompt, most: int) -> int:
    """`max_tokens` of a request: the prompt's own, but never more than the run's."""
    return most if prompt.max_tokens is None else min(most, prompt.max_tokens)


def request_body(
    model: str,
    messages: Sequence[Message],
    stream: bool,
    max_tokens: int,
    temperature: float | None,
    *,
    more: Mapping[str, Any] = NOTHING,
    endpoint: str = CHAT,
    ignore_eos: bool = False,
) -> dict[str, Any]:
    """The body of a request, as a bench and a blast send it; `more`: what else a recorded one held, sent as it was."""
    if endpoint == EMBEDDINGS:
        return {"model": model, "input": text_of(messages), **more}
    body: dict[str, Any] = {"model": model}
    if endpoint == COMPLETIONS:
        body["prompt"] = text_of(messages)
    else:
        body["messages"] = list(messages)
    body |= {**more, "max_tokens": max_tokens, "stream": stream}
    if stream:
        # without it vLLM and SGLang stream no usage, and tokens would be an estimate
        body["stream_options"] = {"include_usage": True}
    if temperature is not None:
        body["temperature"] = temperature
    if ignore_eos:
        body["ignore_eos"] = True
    return body


def text_of(messages: Sequence[Message]) -> str:
    """The texts of a chat's messages below each other: what a completion or an embedding is asked of."""
    texts: list[str] = []
    for message in messages:
        content = message.get("content")
        parts = [part.get("text") for part in content] if isinstance(content, list) else [content]
        texts += [text for text in parts if isinstance(text, str)]
    return "\n\n".join(texts)


class PromptOrder:
    """The order of prompts: rounds in which each comes as often as its weight says.

    They are shuffled once, and each round walks them from another start and with another stride. So any slot's prompt is
    known without those before it, and a new round of a long profile costs no shuffle in the midst of a measurement.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        self._seed = seed
        self._round = [
            prompt
            for prompt, times in zip(prompts, proportions(prompts), strict=True)
            for _ in range(times)
        ]
        random.Random(f"prompts {seed}").shuffle(self._round)  # noqa: S311 (it must repeat itself)

    def prompt(self, slot: int) -> Prompt:
        """The prompt of a slot."""
        size = len(self._round)
        number, step = divmod(slot, size)
        start, stride = divmod(hashed(f"round {self._seed} {number}", size * size), size)
        while gcd(stride, size) != 1:  # else it would walk over a part of the round again and again
            stride += 1
        return self._round[(start + step * stride) % size]


def proportions(prompts: Sequence[Prompt]) -> list[int]:
    """How often each prompt comes in a round: whole numbers in proportion to the weights."""
    weights = [Fraction(str(prompt.weight)) for prompt in prompts]
    denominator = lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * denominator) for weight in weights]
    divisor, total = gcd(*whole), sum(whole)
    if total // divisor <= max(LONGEST_ROUND, len(prompts)):
        return [number // divisor for number in whole]
    return [max(1, round(Fraction(number * LONGEST_ROUND, total))) for number in whole]


class StratifiedSample:
    """A share of all slots, e.g., those that stream: from every stretch of 1/share slots one, drawn at random.

    The stretches keep the share over any hundred slots; the draws keep it out of step with whatever recurs: duplicates,
    prompts, waves of `concurrency` requests. For a share above one half the slots outside the sample are drawn.
    """

    def __init__(self, share: float, seed: int) -> None:
        exact = exact_share(share)
        self._drawn_are_included = exact <= Fraction(1, 2)
        self._drawn_share = min(exact, 1 - exact)
        self._seed = seed

    def includes(self, slot: int) -> bool:
        """Whether a slot belongs to the sample."""
        part, whole = self._drawn_share.as_integer_ratio()
        if not part:
            return not self._drawn_are_included
        stretch = slot * part // whole
        # the first slot of this stretch and of the next: stretch * whole / part, rounded up
        start, end = -(-stretch * whole // part), -(-(stretch + 1) * whole // part)
        is_drawn = slot - start == hashed(f"stream {self._seed} {stretch}", end - start)
        return is_drawn == self._drawn_are_included


def exact_share(share: float) -> Fraction:
    """The share as the user wrote it: 0.3 is 3/10, and not the nearest binary number."""
    return Fraction(str(share))


def hashed(key: str, size: int) -> int:
    """A number below `size` that looks random and follows from the key alone: equal at every host, with no state."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) % size


def mark(number: int) -> str:
    """Spell a number as, e.g., `[k3f9-0012]`."""
    digits = ""
    for _ in range(MARK_DIGITS):
        number, digit = divmod(number, len(DIGITS))
        digits = DIGITS[digit] + digits
    return f"[{digits[:4]}-{digits[4:]}]"


def add_mark(messages: Sequence[Message], mark: str, place: NoncePlace) -> list[Message]:
    """Copy messages with a mark, in front of the first one or behind the user's last one.

    In front: prefix caches compare from the first token on, so a mark in the last message would leave them the
    system prompt and all turns before it.
    """
    with_content = [at for at, message in enumerate(messages) if message.get("content") is not None]
    users = [at for at in with_content if messages[at].get("role") == "user"]
    at = with_content[0] if place == "front" else (users or with_content)[-1]
    content = messages[at]["content"]
    if isinstance(content, str):
        content = f"{mark} {content}" if place == "front" else f"{content} {mark}"
    else:  # a list of parts
        part = {"type": "text", "text": mark}
        content = [part, *content] if place == "front" else [*content, part]
    return [*messages[:at], {**messages[at], "content": content}, *messages[at + 1 :]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """The name to ask for, or why there is none."""

    model: str | None = None
    error: str | None = None


def choose_model(
    served: Sequence[ServedModel], *, listed: str | None, wanted: str | None
) -> ModelChoice:
    """Choose the model to ask one host for.

    `wanted` is the command line's and must be served; `listed` is what the hosts file expects: if it is not served, the
    host's first model is measured all the same, and a verdict says so. Either may also be a model's `root`, the place its
    weights came from. A host that serves no list is asked for the given name.
    """
    name = listed if wanted is None else wanted
    if name is not None:
        ids = [model.id for model in served if name in (model.id, model.root)]
        if name in ids or not served:
            return ModelChoice(model=name)
        if ids:
            return ModelChoice(model=ids[0])
    if wanted is not None:
        others = ", ".join(f"`{model.id}`" for model in served)
        return ModelChoice(error=f"it does not serve `{wanted}` but {others}")
    if served:
        return ModelChoice(model=served[0].id)
    return ModelChoice(error="it lists no model, and none was named")
