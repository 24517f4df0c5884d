r"""A workload -> a blast profile that asks the same: which prompts how often, how long, how much of them begins alike.

The most frequent prompts come with their own weight; all others, the tail, become requests that bear a mark and so are
like no other. Where a prompt's text was not kept, words stand in for it: as many, the same for equal beginnings. It
says what the profile cannot tell, and by how much it differs. It writes no file; toolkit/profiles.py reads the text.

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
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count
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
"""Of a prompt whose length nobody told."""
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
    """What the profile cannot tell, and where its statistics differ from the workload's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrompt:
    """One prompt, and how it was asked."""

    count: int
    asked: Asked
    max_tokens: int | None
    is_guessed: bool = False
    """`max_tokens` is how long answers were, for want of a limit."""
    weight: float = 0.0
    in_tail: bool = False

    @property
    def length(self) -> tuple[int, bool]:
        """How long, and whether in characters; else in tokens."""
        if self.asked.prompt_chars:
            return self.asked.prompt_chars, True
        if self.asked.prompt_tokens:
            return self.asked.prompt_tokens, False
        return UNKNOWN_CHARS, True

    @property
    def chars(self) -> int:
        """The length in characters, for a token those of a word that stands for it."""
        length, in_chars = self.length
        return length if in_chars else WORD_CHARS * length

    @property
    def blocks(self) -> list[bytes]:
        """Its blocks, each told with all before it."""
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
    prompts = _prompts(columns)
    requests = sum(one.count for one in prompts)

    # the prompts that repeat, as many as there is room for, and the tail
    room, listed = most_chars, 0
    least = max(2, requests / DECK)
    for one in prompts:
        room -= one.chars
        if listed == most_prompts or one.count < least or (room < 0 and listed):
            break
        listed += 1
    weighted, unique_share = _weighted(prompts[:listed], prompts[listed:], most_prompts, most_chars)
    alike = _alike(prompts)
    marks = unique_share >= MANY_MARKS
    texts, passages, shared, real, notes = _written(
        weighted, marks=marks, share_prefix=alike >= MARKS_BEHIND or not marks
    )
    tail_prompts = sum(one.in_tail for one in weighted)

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
    each = 1 if in_chars else WORD_CHARS
    before = sum(one.chars * one.count for one in prompts) / requests / each
    all_weights = sum(one.weight for one in weighted)
    after = sum(one.chars * one.weight for one in weighted) / all_weights / each
    if abs(after - before) > 0.005 * before:
        unit = "characters" if in_chars else "tokens"
        notes.append(f"Prompt length: {before:,.0f} {unit} on average, {after:,.0f} by the profile")
    if guessed := sum(one.is_guessed for one in weighted):
        notes.append(
            f"{guessed:,} of {len(weighted):,} prompts were asked without `max_tokens`; it is the length that answers had"
        )
    if all(one.max_tokens is None for one in prompts):
        notes.append("No request set `max_tokens`; without it a blast takes its own default")

    kinds = {
        len(weighted): "with the texts that were captured",
        0: "in words that only have the same lengths and beginnings",
    }
    kind = kinds.get(real, f"{real:,} of them with the text that was captured")
    summary = f"Made of {len(columns):,} requests ({source}): {len(weighted):,} prompts, {kind}"
    streams = columns.per_request("stream")
    streams = streams[~np.isnan(streams)]
    head = {
        "summary": "".join(c if c.isprintable() else "?" for c in summary),
        "stream_share": round(float(streams.mean()), 4) if len(streams) else None,
        "max_tokens": max(0, *(one.max_tokens or 0 for one in weighted)) or None,
        "unique_share": unique_share or None,
        "shared_prefix": shared,
    }
    lines = [f"{key} = {_value(value)}" for key, value in head.items() if value is not None]
    if passages:
        lines += ["", "[passages]"]
        lines += [f"{name} = {_value(passage)}" for name, passage in passages.items()]
    for one, text in zip(weighted, texts, strict=True):
        lines += ["", "[[prompts]]", f"weight = {_value(one.weight)}"]
        if one.max_tokens is not None and one.max_tokens > 0:
            lines.append(f"max_tokens = {one.max_tokens}")
        lines += [f"{key} = {_value(value)}" for key, value in text.items()]
    return Synthesis(
        toml="\n".join([*lines, ""]),
        prompts=len(weighted) - tail_prompts,
        tail_prompts=tail_prompts,
        real=real,
        unique_share=unique_share,
        notes=tuple(notes),
    )


# --- Which prompts, how often ---------------------------------------------------------------------------


def _prompts(columns: RequestColumns) -> list[AskedPrompt]:
    """Every prompt, the most frequent first, of equal ones the first that came.

    Of all bodies that ask it: the text of whichever has one, the limit that most requests set. A blast limits every
    request: where nobody set a limit, the length that answers had comes nearest.
    """
    times = np.bincount(columns.exact, minlength=len(columns.asked)).tolist()
    _, firsts = np.unique(columns.exact, return_index=True)
    bodies: dict[int, list[int]] = {}
    for body, prompt in enumerate(columns.prompt[firsts].tolist()):
        bodies.setdefault(prompt, []).append(body)
    most = int(columns.prompt.max()) + 1
    # tokens of each prompt and of its answers, the mean of what is known
    means = []
    for values in (columns.prompt_tokens, columns.output_tokens):
        known = ~np.isnan(values)
        told = np.bincount(columns.prompt[known], minlength=most)
        sums = np.bincount(columns.prompt[known], weights=values[known], minlength=most)
        means.append(np.divide(sums, told, out=np.full(most, np.nan), where=told > 0).tolist())
    found = []
    for prompt, each in bodies.items():
        read, said = means[0][prompt], means[1][prompt]
        limits: Counter[int | None] = Counter()
        for body in each:
            limits[columns.asked[body].max_tokens] += times[body]
        limit = limits.most_common(1)[0][0]
        asked = columns.asked[next((b for b in each if columns.asked[b].prompt_text), each[0])]
        if asked.prompt_tokens is None and not isnan(read):
            asked = replace(asked, prompt_tokens=round(read))
        is_guessed = limit is None and not isnan(said)
        one = AskedPrompt(
            count=sum(times[body] for body in each),
            asked=asked,
            max_tokens=max(1, round(said)) if is_guessed else limit,
            is_guessed=is_guessed,
        )
        found.append(one)
    return sorted(found, key=lambda one: -one.count)


def _weighted(
    listed: Sequence[AskedPrompt], tail: Sequence[AskedPrompt], most_prompts: int, most_chars: int
) -> tuple[list[AskedPrompt], float]:
    """Prompts with weights, and the share of requests that bear a mark."""
    repeated, rest = sum(one.count for one in listed), sum(one.count for one in tail)
    share = repeated / (repeated + rest)
    # the share a of all weights that the listed prompts get (see the top); 0: they are not worth it
    of_listed = float(bool(repeated))
    if repeated and rest:
        apart = _apart(listed, tail)
        of_listed = min(1.0, max(share, sqrt(share / apart))) if apart else 1.0
        wrong = apart * (of_listed - share) + share * (1 - of_listed) / of_listed
        # of repeats, if each of them were like no other
        lost = (repeated - len(listed)) / (repeated + rest)
        if wrong >= LOST_WEIGHS * lost:
            of_listed = 0.0
    if not of_listed:
        listed, tail = [], [*listed, *tail]
        repeated, rest = 0, repeated + rest
    if not rest and listed[0].count <= MOST_WEIGHT:
        return [replace(one, weight=float(one.count)) for one in listed], 0.0

    def shown(weight: float) -> float:
        """Of a thousand, with as many digits as a deck of 10,000 cards tells apart."""
        return max(0.01, round(weight * 1000, 2))

    kept = [replace(one, weight=shown(of_listed * one.count / repeated)) for one in listed]
    if of_listed < 1:
        room = max(most_chars - sum(one.chars for one in listed), most_chars // 4)
        picked = _spread(tail, most_prompts, room)
        weight = shown((1 - of_listed) / len(picked))
        kept += [replace(one, weight=weight, in_tail=True) for one in picked]
    return kept, round(1 - share / of_listed, 4) if of_listed else 1.0


def _spread(tail: Sequence[AskedPrompt], most_prompts: int, most_chars: int) -> list[AskedPrompt]:
    """Some of the tail, evenly from the shortest to the longest: their lengths are distributed as all of them are."""
    requests = sorted(
        (place for place, one in enumerate(tail) for _ in range(one.count)),
        key=lambda place: tail[place].chars,
    )
    mean = max(1, sum(tail[place].chars for place in requests) // len(requests))
    wanted = max(1, min(most_prompts, len(tail), most_chars // mean))
    # the middle of each of `wanted` equal stretches
    places = [requests[(2 * k + 1) * len(requests) // (2 * wanted)] for k in range(wanted)]
    return [tail[place] for place in dict.fromkeys(places)]


def _apart(listed: Sequence[AskedPrompt], tail: Sequence[AskedPrompt]) -> float:
    """The largest difference between the two distributions of lengths (Kolmogorov and Smirnov's)."""
    values = np.array([one.chars for one in (*listed, *tail)], dtype=float)
    counts = np.array([one.count for one in (*listed, *tail)], dtype=float)
    order = np.argsort(values, kind="stable")
    is_tail = order >= len(listed)
    up = np.cumsum(np.where(is_tail, counts[order], 0.0)) / counts[len(listed) :].sum()
    down = np.cumsum(np.where(is_tail, 0.0, counts[order])) / counts[: len(listed)].sum()
    last = np.append(np.diff(values[order]) > 0, [True])  # after the last of equal lengths
    return float(np.abs(up - down)[last].max())


def _alike(prompts: Sequence[AskedPrompt]) -> float:
    """The share of all blocks of different prompts that another one begins with, too."""
    met: set[bytes] = set()
    blocks = shared = 0
    for one in prompts[:MOST_COMPARED]:
        mine = one.blocks
        blocks += len(mine)
        shared += sum(block in met for block in mine)
        met.update(mine)
    return shared / blocks if blocks else 0.0


def repeats(weighted: Sequence[AskedPrompt], unique_share: float, requests: int) -> float:
    """The share of so many requests by a profile that were asked before, as it is to be expected."""
    cards = [round(one.weight * 100) for one in weighted]
    deck = sum(cards) // gcd(*cards)
    if deck > max(DECK, len(cards)):
        deck = DECK
    plain = (1 - unique_share) * requests
    new = unique_share * requests
    for one in cards:
        times = one / sum(cards) * deck  # it is dealt in a round
        if requests <= deck:
            missed = (1 - plain / deck) ** times
        else:
            missed = unique_share ** (times * requests / deck)
        new += 1 - missed
    return 1 - new / requests


# --- What they say --------------------------------------------------------------------------------------

Text = dict[str, Any]
"""Keys of a profile's prompt: `text` or `messages`, and `passages`."""


def _written(
    prompts: Sequence[AskedPrompt], *, marks: bool, share_prefix: bool
) -> tuple[list[Text], dict[str, str], str | None, int, list[str]]:
    """Texts, passages, the passage that all share, how many texts were captured, and notes.

    `marks`: some requests will bear one. `share_prefix`: such marks must leave beginnings alone, and so stand behind a
    prefix that all prompts share.
    """
    chats = [_chat(one.asked) for one in prompts]
    if not any(chats):
        texts, passages, notes = _made_up(prompts)
        shared = None
        firsts = {(one.get("passages") or [None])[0] for one in texts}
        if share_prefix and len(texts) > 1 and len(firsts) == 1 and None not in firsts:
            [shared] = firsts
            for text in texts:
                del text["passages"][0]
                if not text["passages"]:
                    del text["passages"]
        elif share_prefix and marks and passages:
            passages["plain"], shared = PLAIN_PREFIX, "plain"
        return texts, passages, shared, 0, notes

    # texts as they were; words for those that have none
    whole = [
        chat or [{"role": "user", "content": words(one.asked.exact_key, *one.length)}]
        for one, chat in zip(prompts, chats, strict=True)
    ]
    passages, shared = {}, None
    # the system message that all begin with: a profile puts it before them as it is, but for blanks around it
    first = whole[0][0]
    system = first["content"]
    if (
        share_prefix
        and (first["role"] == "system" and system.strip() and system == system.strip())
        and all(chat[0] == first for chat in whole)
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
    notes = []
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
    return texts, passages, shared, sum(map(bool, chats)), notes


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
    said = [
        {"role": turn[1], "content": text[turn.end() : end]}
        for turn, end in zip(turns, ends, strict=True)
    ]
    return said if any(one["content"].strip() for one in said) else []


def _made_up(prompts: Sequence[AskedPrompt]) -> tuple[list[Text], dict[str, str], list[str]]:
    """Words for all of them, with a passage for each stretch of blocks that the same prompts begin with.

    A block is of all before it, so the prompts that have one also have those before it: where the number of prompts
    stays, they are the same prompts.
    """
    chains = [one.blocks for one in prompts]
    users = Counter(block for blocks in chains for block in blocks)
    texts: list[Text] = []
    passages: dict[str, str] = {}
    named: dict[bytes, str] = {}
    taken: set[str] = set()
    for one, blocks in zip(prompts, chains, strict=True):
        runs: list[list[bytes]] = []
        last = 0
        for block in blocks:
            if users[block] < 2:
                break
            if users[block] == last:
                runs[-1].append(block)
            else:
                runs.append([block])
            last = users[block]

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
        texts.append(({"passages": mine} if mine else {}) | {"text": text})
    notes = [] if any(chains) else ["How prompts begin alike is unknown; the profile's do not"]
    return texts, passages, notes


def words(seed: str, length: int, in_chars: bool) -> str:
    """Words, equal for an equal seed: so many characters, else so many words."""
    wanted = max(1, length)
    said: list[str] = []
    size, number = 0, 0
    while size < wanted:
        for byte in blake2b(f"{seed} {number}".encode(), digest_size=64).digest():
            word = WORDS[byte % len(WORDS)]
            said.append(word)
            size += len(word) + 1 if in_chars else 1
        number += 1
    if not in_chars:
        return " ".join(said[:wanted])
    text = " ".join(said)[:wanted]
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
