r"""A workload -> a blast profile that asks the same: which prompts how often, how long, how much of them begins alike.

The most frequent prompts come with their own weight; all others, the tail, become requests that bear a mark and so are
like no other. Where a prompt's text was not kept, words stand in for it: as many, the same for equal beginnings. It
says what the profile cannot hold, and by how much it differs. It writes no file; toolkit/profiles.py reads the text.

A profile marks requests whatever their prompt. In front, where no prefix cache knows what follows; or, behind a prefix
that all share, at the end, where it knows nearly all: the one that is nearer to the workload is taken. And a profile
that lists prompts of the tail, for their lengths, repeats some of them; one that does not gives the tail the others'
lengths. With r, the share of listed prompts' requests, and D, how far the two lengths are apart (the largest difference
of their distributions), listed prompts get the share a of all weights that makes D (a - r) + r (1 - a) / a, wrong
lengths and wrong repeats, the least: a = sqrt(r / D), from r to 1. Where losing all repeats is less, none is listed.

    "user: Hi"                 -> text = "Hi"
    "system: A\nuser: Hi"      -> messages, or the system's as the passage that all prompts have before them
    blocks 1 2 3, 200 chars    -> words for the blocks that other prompts begin with, too, and words of its own
"""

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby, takewhile
from math import gcd, isnan, sqrt
from typing import Any

import numpy as np

from toolkit.profiles import MOST_WEIGHT
from toolkit.protocol.request import HASH_BYTES
from toolkit.records import Asked
from toolkit.units import share as percent
from toolkit.workload.columns import RequestColumns
from toolkit.workload.lengths import CHARS_PER_TOKEN

MOST_PROMPTS = 200
"""Listed with a weight of their own, and as many of the tail for their lengths."""
MOST_CHARS = 4_000_000
"""Of all texts together: a file that an editor opens."""
DECK = 10_000
"""Cards from which a blast deals prompts: one that should come more rarely would come too often."""
UNKNOWN_CHARS = 200
"""Of a prompt whose length nobody knows."""
MOST_COMPARED = 20_000
"""Prompts of which it is looked at how they begin."""
MANY_MARKS = 0.05
"""So many marked requests change what a prefix cache can do for all."""
MARKS_BEHIND = 0.5
"""From so large a share of equal beginnings on, marks that leave them alone are nearer than marks that part all."""
LOST_WEIGHS = 2.0
"""A repeat that the profile loses, against a request of a wrong length: repeats are what caches live on."""
WORD_CHARS = 5
"""A word that stands for a token, with its space."""
OWN_CHARS = 12
"""At least so much of a prompt is its own, or two of them would be one."""
TRIALS = 20
"""After so many equal texts of a length the next one is longer by one."""
JOINT = "\n\n"
"""What a profile puts between passages and text."""
PLAIN_PREFIX = "Answer."
"""A shared prefix for its place only: behind one, marks stand at the end, and prompts go on beginning alike."""

ROLES = ("system", "developer", "user", "assistant")
"""Whose messages can be sent as texts; a tool's needs the call that it answers."""
_TURN = re.compile(rf"^({'|'.join(ROLES)}): ", re.MULTILINE)

WORDS = (
    "the of and to in is that for it was on with as be at by this had not are but from or have an they which one you"
    " were all her she there would their we him been has when who will no more if out so said what up its about into"
    " than them can only other time new some could these two may first then do any like my now over such our man me"
    " even most made after also did many off before must well back through years where much your way down should"
    " because long each just those people too good very make still see work life here own world go same part day old"
    " house place hand water night light road tree stone river bread door wind green small left right far near"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """A profile, and how near it comes."""

    toml: str
    prompts: int
    """With a weight of their own."""
    tail_prompts: int
    """Listed for the lengths of the tail."""
    real: int
    """Of both: those with the text that was captured."""
    unique_share: float
    notes: tuple[str, ...]
    """What the profile cannot hold, and where its statistics differ from the workload's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPrompt:
    """One prompt, and how it was sent."""

    count: int
    asked: Asked
    max_tokens: int | None
    is_guessed: bool
    """`max_tokens` is how long answers were, for want of a limit."""
    weight: float = 0.0
    in_tail: bool = False

    @property
    def length(self) -> tuple[int, bool]:
        """How long, and whether in characters; else in tokens."""
        if self.asked.prompt_chars or not self.asked.prompt_tokens:
            return self.asked.prompt_chars or UNKNOWN_CHARS, True
        return self.asked.prompt_tokens, False

    @property
    def chars(self) -> int:
        """The length in characters, for a token those of a word that stands for it."""
        length, in_chars = self.length
        return length if in_chars else WORD_CHARS * length

    @property
    def blocks(self) -> list[bytes]:
        """Its blocks, each hashed with all before it."""
        hashes = self.asked.prompt_blocks
        return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


def synthesis(
    columns: RequestColumns,
    *,
    source: str,
    most_prompts: int = MOST_PROMPTS,
    most_chars: int = MOST_CHARS,
) -> Synthesis:
    """Make a profile of a workload's requests.

    `source` says in a few words where the requests come from. Raises ValueError where there is none.
    """
    if not len(columns):
        raise ValueError("no request asks a model for anything")
    prompts, requests = _prompts(columns), len(columns)

    # the prompts that repeat, as many as there is room for, and the tail
    room, listed = most_chars, 0
    least = max(2, requests / DECK)
    for one in prompts:
        room -= one.chars
        if listed == most_prompts or one.count < least or (room < 0 and listed):
            break
        listed += 1
    weighted, unique_share = _weighted(prompts[:listed], prompts[listed:], most_prompts, most_chars)
    # the share of all blocks of different prompts that another one begins with, too
    blocks = Counter(block for one in prompts[:MOST_COMPARED] for block in one.blocks)
    alike = 1 - len(blocks) / blocks.total() if blocks else 0.0
    marks = unique_share >= MANY_MARKS
    notes: list[str] = []
    texts, passages, shared, real = _written(
        weighted, notes, marks=marks, share_prefix=alike >= MARKS_BEHIND or not marks
    )

    if marks and alike:
        known = "nearly all of its own" if shared else "none"
        notes.append(
            f"Beginnings: different prompts share {percent(alike)} of their blocks, a marked request of the profile {known}"
        )
    if columns.identities is None:
        notes.append("Which requests were alike is unknown: all of them bear a mark")
    elif unique_share:
        before, after = 1 - len(prompts) / requests, repeats(weighted, unique_share, requests)
        notes.append(
            f"Repeats: {percent(before)} of the {requests:,} requests, {percent(after)} of as many by the profile"
        )
    in_chars = any(one.length[1] for one in prompts)
    each, unit = (1, "characters") if in_chars else (WORD_CHARS, "tokens")
    before = sum(one.chars * one.count for one in prompts) / requests / each
    all_weights = sum(one.weight for one in weighted)
    after = sum(one.chars * one.weight for one in weighted) / all_weights / each
    if abs(after - before) > 0.005 * before:
        notes.append(f"Prompt length: {before:,.0f} {unit} on average, {after:,.0f} by the profile")
    if guessed := sum(one.is_guessed for one in weighted):
        notes.append(
            f"{guessed:,} of {len(weighted):,} prompts were asked without `max_tokens`; it is the length that answers had"
        )
    if all(one.max_tokens is None for one in prompts):
        notes.append("No request set `max_tokens`; without it a blast takes its own default")

    kind = f"{real:,} of them with the text that was captured"
    if real in (0, len(weighted)):
        kind = "with the texts that were captured"
        kind = kind if real else "in words that only have the same lengths and beginnings"
    summary = f"Made of {requests:,} requests ({source}): {len(weighted):,} prompts, {kind}"
    streams = columns.per_request("stream")
    streams = streams[~np.isnan(streams)]
    head = {
        "summary": "".join(c if c.isprintable() else "?" for c in summary),
        "stream_share": round(float(streams.mean()), 4) if len(streams) else None,
        "max_tokens": max(0, *(one.max_tokens or 0 for one in weighted)) or None,
        "unique_share": unique_share or None,
        "shared_prefix": shared,
    }
    tables = [("", head)] + [("[passages]", passages)] * bool(passages)
    for one, text in zip(weighted, texts, strict=True):
        limit = one.max_tokens if one.max_tokens and one.max_tokens > 0 else None
        tables.append(("[[prompts]]", {"weight": one.weight, "max_tokens": limit, **text}))
    lines = []
    for title, values in tables:
        lines += ["", title] if title else []
        lines += [f"{key} = {_value(value)}" for key, value in values.items() if value is not None]
    tail_prompts = sum(one.in_tail for one in weighted)
    return Synthesis(
        toml="\n".join([*lines, ""]),
        prompts=len(weighted) - tail_prompts,
        tail_prompts=tail_prompts,
        real=real,
        unique_share=unique_share,
        notes=tuple(notes),
    )


# --- Which prompts, how often ---------------------------------------------------------------------------


def _prompts(columns: RequestColumns) -> list[SentPrompt]:
    """Every prompt, the most frequent first, of equal ones the first that came.

    Of all bodies that have it: the text of whichever has one, the limit that most requests set. A blast limits every
    request: where nobody set a limit, the length that answers had comes nearest.
    """
    times = np.bincount(columns.exact, minlength=len(columns.asked)).tolist()
    _, firsts = np.unique(columns.exact, return_index=True)
    bodies: dict[int, list[int]] = {}
    for body, prompt in enumerate(columns.prompt[firsts].tolist()):
        bodies.setdefault(prompt, []).append(body)
    read = columns.mean_by_prompt(columns.prompt_tokens).tolist()
    written = columns.mean_by_prompt(columns.output_tokens).tolist()
    found = []
    for prompt, each in bodies.items():
        limits: Counter[int | None] = Counter()
        for body in each:
            limits[columns.asked[body].max_tokens] += times[body]
        [(limit, _)] = limits.most_common(1)
        is_guessed = limit is None and not isnan(written[prompt])
        asked = columns.asked[next((b for b in each if columns.asked[b].prompt_text), each[0])]
        if asked.prompt_tokens is None and not isnan(read[prompt]):
            asked = replace(asked, prompt_tokens=round(read[prompt]))
        found.append(
            SentPrompt(
                count=limits.total(),
                asked=asked,
                max_tokens=max(1, round(written[prompt])) if is_guessed else limit,
                is_guessed=is_guessed,
            )
        )
    return sorted(found, key=lambda one: -one.count)


def _weighted(
    listed: list[SentPrompt], tail: list[SentPrompt], most_prompts: int, most_chars: int
) -> tuple[list[SentPrompt], float]:
    """Prompts with weights, and the share of requests that bear a mark."""
    repeated, rest = sum(one.count for one in listed), sum(one.count for one in tail)
    share = repeated / (repeated + rest)
    # the share a of all weights that the listed prompts get (see the top); 0: they are not worth it
    of_listed = float(bool(repeated))
    if repeated and rest:
        # D: both distributions after the last of each length
        lengths = np.array([one.chars for one in (*listed, *tail)])
        counts = np.array([one.count for one in (*listed, *tail)])
        order, in_tail = np.argsort(lengths, kind="stable"), np.arange(len(counts)) >= len(listed)
        of_tail = np.cumsum(np.where(in_tail, counts, 0)[order]) / rest
        of_others = np.cumsum(np.where(in_tail, 0, counts)[order]) / repeated
        is_last = np.append(np.diff(lengths[order]) > 0, [True])
        apart = float(np.abs(of_tail - of_others)[is_last].max())
        of_listed = min(1.0, max(share, sqrt(share / apart))) if apart else 1.0
        wrong = apart * (of_listed - share) + share * (1 - of_listed) / of_listed
        # of repeats, if each of them were like no other
        lost = (repeated - len(listed)) / (repeated + rest)
        if wrong >= LOST_WEIGHS * lost:
            of_listed = 0.0
    if not of_listed:
        listed, tail = [], [*listed, *tail]
    if not tail and listed[0].count <= MOST_WEIGHT:
        return [replace(one, weight=float(one.count)) for one in listed], 0.0

    def shown(weight: float) -> float:
        """Of a thousand, with as many digits as a deck of 10,000 cards distinguishes."""
        return max(0.01, round(weight * 1000, 2))

    kept = [replace(one, weight=shown(of_listed * one.count / repeated)) for one in listed]
    if of_listed < 1:
        # of the tail, evenly from the shortest to the longest, so that lengths are distributed as all of them are: the middle
        # request of each of `wanted` equal stretches
        room = max(most_chars - sum(one.chars for one in listed), most_chars // 4)
        ordered = sorted(tail, key=lambda one: one.chars)
        ends = np.cumsum([one.count for one in ordered])
        mean = max(1, sum(one.chars * one.count for one in tail) // int(ends[-1]))
        wanted = max(1, min(most_prompts, len(tail), room // mean))
        middles = (2 * np.arange(wanted) + 1) * int(ends[-1]) // (2 * wanted)
        picked = np.unique(np.searchsorted(ends, middles, side="right")).tolist()
        weight = shown((1 - of_listed) / len(picked))
        kept += [replace(ordered[place], weight=weight, in_tail=True) for place in picked]
    return kept, round(1 - share / of_listed, 4) if of_listed else 1.0


def repeats(weighted: Sequence[SentPrompt], unique_share: float, requests: int) -> float:
    """The share of so many requests by a profile that were sent before, as it is to be expected."""
    cards = [round(one.weight * 100) for one in weighted]
    deck = sum(cards) // gcd(*cards)
    if deck > max(DECK, len(cards)):
        deck = DECK
    # that one card's turns up to here all bore a mark, or are to come
    unseen = unique_share ** (requests / deck)
    if requests <= deck:
        unseen = 1 - (1 - unique_share) * requests / deck
    new: float = sum(1 - unseen ** (one / sum(cards) * deck) for one in cards)
    return 1 - unique_share - new / requests


# --- What they say --------------------------------------------------------------------------------------

Text = dict[str, Any]
"""Keys of a profile's prompt: `text` or `messages`, and `passages`."""


def _written(
    prompts: Sequence[SentPrompt], notes: list[str], *, marks: bool, share_prefix: bool
) -> tuple[list[Text], dict[str, str], str | None, int]:
    """Texts, passages, the passage that all share, and how many texts were captured; it adds to the notes.

    `marks`: some requests will bear one. `share_prefix`: such marks must leave beginnings alone, and so stand behind a
    prefix that all prompts share.
    """
    chats = [_chat(one.asked) for one in prompts]
    passages: dict[str, str] = {}
    shared = None
    if not any(chats):
        texts = _made_up(prompts, passages)
        if not any(one.asked.prompt_blocks for one in prompts):
            notes.append("How prompts begin alike is unknown; the profile's do not")
        [first, *others] = {tuple(one["passages"][:1]) for one in texts}
        if share_prefix and len(texts) > 1 and first and not others:
            [shared] = first
            for text in texts:
                del text["passages"][0]
        elif share_prefix and marks and passages:
            passages["plain"], shared = PLAIN_PREFIX, "plain"
        for text in texts:
            text["passages"] = text["passages"] or None
        return texts, passages, shared, 0

    # texts as they were; words for those that have none
    whole = [
        chat or [{"role": "user", "content": words(one.asked.exact_key, *one.length)}]
        for one, chat in zip(prompts, chats, strict=True)
    ]
    # the system message that all begin with: a profile puts it before them as it is, but for blanks around it
    first_turn = whole[0][0]
    system = first_turn["content"]
    if (
        share_prefix
        and (first_turn["role"] == "system" and system.strip() and system == system.strip())
        and all(chat[0] == first_turn for chat in whole)
        and all(any(turn["content"].strip() for turn in chat[1:]) for chat in whole)
        and not any(turn["role"] == "system" for chat in whole for turn in chat[1:])
    ):
        passages, shared = {"system": system}, "system"
        whole = [chat[1:] for chat in whole]
    texts = [
        {"text": chat[0]["content"]}
        if len(chat) == 1 and chat[0]["role"] == "user"
        else {"messages": chat}
        for chat in whole
    ]
    folded = sum(
        len(chat) == 1 and (one.asked.messages or 1) > 1
        for one, chat in zip(prompts, chats, strict=True)
    )
    if folded:
        notes.append(
            f"{folded:,} of {len(chats):,} prompts go as one message of the user: who said what is not certain"
        )
    if any(one.asked.images for one in prompts):
        notes.append("Images and other parts that are no text are not in the profile")
    if any("tools" in one.asked.options for one in prompts):
        notes.append("Tools are not sent as such; they stand as text before the messages")
    return texts, passages, shared, sum(map(bool, chats))


def _chat(asked: Asked) -> list[dict[str, str]]:
    """The messages of a captured prompt; none where its text was not kept, or says nothing that can be sent."""
    text = asked.prompt_text
    if text is None or not text.strip():
        return []
    turns = list(_TURN.finditer(text))
    # a content may look like a turn, too; only where the count is right nobody has to guess
    if not turns or len(turns) != asked.messages or turns[0].start():
        return [{"role": "user", "content": text}]
    ends = [*(turn.start() - 1 for turn in turns[1:]), len(text)]
    chat = [
        {"role": turn[1], "content": text[turn.end() : end]}
        for turn, end in zip(turns, ends, strict=True)
    ]
    return chat if any(one["content"].strip() for one in chat) else []


def _made_up(prompts: Sequence[SentPrompt], passages: dict[str, str]) -> list[Text]:
    """Words for all of them, with a passage for each stretch of blocks that the same prompts begin with.

    A block is of all before it, so the prompts that have one also have those before it: where the number of prompts
    stays, they are the same prompts.
    """
    users = Counter(block for one in prompts for block in one.blocks)
    texts: list[Text] = []
    named: dict[bytes, str] = {}
    taken: set[str] = set()
    for one in prompts:
        shared = takewhile(lambda block: users[block] > 1, one.blocks)
        runs = [list(run) for _, run in groupby(shared, key=users.__getitem__)]
        # the passages that it begins with, and words of its own up to its length
        left, in_chars = one.length
        per_block = (one.asked.block_tokens or 16.0) * (CHARS_PER_TOKEN if in_chars else 1.0)
        joint, own = (len(JOINT), OWN_CHARS) if in_chars else (0, 1)
        mine = []
        for run in runs:
            size = round(per_block * len(run))
            if left - size < own:
                break
            left -= size
            if run[-1] not in named:
                named[run[-1]] = f"p{len(named) + 1}"
                passages[named[run[-1]]] = words(run[-1].hex(), size - joint, in_chars)
            mine.append(named[run[-1]])
        seed = one.asked.prompt_key or one.asked.exact_key
        # short texts may fall together, and then grow
        for trial in count():
            text = words(f"{seed}{trial or ''}", left + trial // TRIALS, in_chars)
            if text not in taken:
                break
        taken.add(text)
        texts.append({"passages": mine, "text": text})
    return texts


def words(seed: str, length: int, in_chars: bool) -> str:
    """Words, equal for an equal seed: so many characters, else so many words."""
    wanted = max(1, length)
    # each word has at least two letters, and a space
    chosen = random.Random(seed).choices(WORDS, k=1 + wanted // 3 if in_chars else wanted)  # noqa: S311 - no secret
    text = " ".join(chosen)
    if in_chars:
        text = text[:wanted]
    return f"{text[:-1]}." if text.endswith(" ") else text


def _value(value: object) -> str:
    """A value as TOML writes it: like JSON, but for tables in a line."""
    if isinstance(value, str):
        # half a surrogate pair has no place in a file
        whole = value.encode("utf-8", "replace").decode()
        return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_value(one)}' for key, one in value.items())}}}"
    return json.dumps(value)
