r"""What a profile's prompts say: the text that was captured, else words in its place, the same for equal beginnings.

    "user: Hi"                 -> text = "Hi"
    "system: A\nuser: Hi"      -> messages, or the system's as the passage that all prompts have before them
    blocks 1 2 3, 200 chars    -> words for the blocks that other prompts begin with, too, and words of its own

Words stand for one token each, as the usual tokenizers have it. It chooses no prompt and no weight.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Any, Protocol

from toolkit.protocol.request import HASH_BYTES
from toolkit.records import Asked

CHARS_PER_TOKEN = 4.0
"""Where blocks are told in tokens and prompts in characters: 64 bytes are taken for 16 tokens everywhere here."""
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


class PlannedPrompt(Protocol):
    """What is to be written."""

    @property
    def asked(self) -> Asked:
        """What is known of it."""

    @property
    def length(self) -> tuple[int, bool]:
        """How long, and whether in characters; else in tokens."""


@dataclass(slots=True, kw_only=True)
class Written:
    """Keys of a profile's prompts, by place, and what they share."""

    prompts: list[dict[str, Any]]
    passages: dict[str, str] = field(default_factory=dict)
    shared_prefix: str | None = None
    real: int = 0
    notes: list[str] = field(default_factory=list)


def written(prompts: Sequence[PlannedPrompt], *, marks: bool, share_prefix: bool) -> Written:
    """Write all prompts of a profile. `marks`: some of its requests will bear one.

    `share_prefix`: such marks must leave beginnings alone, and so stand behind a prefix that all prompts share.
    """
    chats = [_chat(one.asked) for one in prompts]
    if any(chats):
        return _captured(prompts, chats, share_prefix=share_prefix or not marks)
    return _made_up(prompts, marks=marks, share_prefix=share_prefix or not marks)


# --- Captured -----------------------------------------------------------------------------------


def _chat(asked: Asked) -> list[dict[str, Any]]:
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


def _captured(
    prompts: Sequence[PlannedPrompt], chats: Sequence[list[dict[str, Any]]], *, share_prefix: bool
) -> Written:
    """Texts as they were; words for those that have none."""
    whole = [
        chat or [{"role": "user", "content": words(one.asked.exact_key, *one.length)}]
        for one, chat in zip(prompts, chats, strict=True)
    ]
    made = Written(prompts=[], real=sum(map(bool, chats)))
    system = _common_system(whole) if share_prefix else None
    if system is not None:
        made.passages, made.shared_prefix = {"system": system}, "system"
        whole = [chat[1:] for chat in whole]
    made.prompts = [_told(chat) for chat in whole]
    made.notes += _left_out(prompts, chats)
    return made


def _left_out(prompts: Sequence[PlannedPrompt], chats: Sequence[list[dict[str, Any]]]) -> list[str]:
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
    return notes


def _common_system(chats: Sequence[list[dict[str, Any]]]) -> str | None:
    """The system message that all begin with; a profile puts it before them as it is, but for blanks around it."""
    first = chats[0][0]
    text = str(first["content"])
    if first["role"] != "system" or not text.strip() or text != text.strip():
        return None
    is_common = all(
        chat[0] == first
        and any(turn["content"].strip() for turn in chat[1:])
        and not any(turn["role"] == "system" for turn in chat[1:])
        for chat in chats
    )
    return text if is_common else None


def _told(chat: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(chat) == 1 and chat[0]["role"] == "user":
        return {"text": chat[0]["content"]}
    return {"messages": list(chat)}


# --- Made up ------------------------------------------------------------------------------------


def _made_up(prompts: Sequence[PlannedPrompt], *, marks: bool, share_prefix: bool) -> Written:
    """Words for all of them, with a passage for each stretch of blocks that the same prompts begin with."""
    chains = [chain(one.asked) for one in prompts]
    users = Counter(block for blocks in chains for block in blocks)
    made = Written(prompts=[])
    known: dict[bytes, str] = {}
    taken: set[str] = set()
    for one, blocks in zip(prompts, chains, strict=True):
        made.prompts.append(_made_of(one, _stretches(blocks, users), known, made.passages, taken))
    if share_prefix:
        _share_prefix(made, marks=marks)
    if not any(chains):
        made.notes.append("How prompts begin alike is unknown; the profile's do not")
    return made


def chain(asked: Asked) -> list[bytes]:
    """A prompt's blocks, each told with all before it."""
    hashes = asked.prompt_blocks
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


def _stretches(blocks: Sequence[bytes], users: Counter[bytes]) -> list[list[bytes]]:
    """Runs of blocks that the same prompts begin with, others than this one among them.

    A block is of all before it, so the prompts that have one also have those before it: where the number of prompts
    stays, they are the same prompts.
    """
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
    return runs


def _made_of(
    one: PlannedPrompt,
    runs: Sequence[Sequence[bytes]],
    known: dict[bytes, str],
    passages: dict[str, str],
    taken: set[str],
) -> dict[str, Any]:
    """One prompt: the passages that it begins with, and words of its own up to its length."""
    left, in_chars = one.length
    per_block = (one.asked.block_tokens or 16.0) * (CHARS_PER_TOKEN if in_chars else 1.0)
    joint, own = (len(JOINT), OWN_CHARS) if in_chars else (0, 1)
    named: list[str] = []
    for run in runs:
        size = round(per_block * len(run))
        if left - size < own:
            break
        left -= size
        if run[-1] not in known:
            known[run[-1]] = f"p{len(known) + 1}"
            passages[known[run[-1]]] = words(run[-1].hex(), size - joint, in_chars)
        named.append(known[run[-1]])
    told: dict[str, Any] = {"passages": named} if named else {}
    return told | {"text": _unlike(one, left, in_chars, taken)}


def _unlike(one: PlannedPrompt, length: int, in_chars: bool, taken: set[str]) -> str:
    """Words that no other prompt has: short ones may fall together, and then grow."""
    seed = one.asked.prompt_key or one.asked.exact_key
    for trial in count():
        text = words(f"{seed}{trial or ''}", length + trial // TRIALS, in_chars)
        if text not in taken:
            break
    taken.add(text)
    return text


def _share_prefix(made: Written, *, marks: bool) -> None:
    """Put what all prompts begin with where a mark comes behind it."""
    firsts = {(one.get("passages") or [None])[0] for one in made.prompts}
    if len(made.prompts) > 1 and len(firsts) == 1 and None not in firsts:
        [made.shared_prefix] = firsts
        for one in made.prompts:
            del one["passages"][0]
            if not one["passages"]:
                del one["passages"]
    elif marks and made.passages:
        made.passages["plain"] = PLAIN_PREFIX
        made.shared_prefix = "plain"


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
