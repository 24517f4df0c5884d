"""Text to token ids, and what the model says, the same every time. No model, no clock.

A token is up to six letters, up to three digits or one other sign, with a blank before it if there is
one; English comes to about four characters a token. An id is a checksum of the token's text: no table,
and no way back from an id to its text.
"""

import functools
import math
import random
import re
import zlib
from collections.abc import Iterable, Sequence

VOCABULARY = 248_320
"""Qwen3.5's; every id lies below it."""
MESSAGE_START = 0
MESSAGE_END = 1
END_OF_TEXT = 3
"""It is said and counted, but shows no text."""
_MARKS = 16
"""The lowest ids are kept for marks that no text can contain."""

TYPICAL_TOKENS = 400
"""Median length of an answer that nobody cuts off. Spread by a factor of e^0.5 (log-normal)."""
SPREAD = 0.5

_TOKEN = re.compile(r" ?(?:[^\W\d_]{1,6}|\d{1,3}|[^\s\w]|_)|\s")

# At most six letters each: with its blank every word is one token, also in the middle of a text.
_WORDS = (
    "the the the of of and and a a to in is was on that with as it for its by from this one had "
    "robot garden small light quiet slowly found under green metal leaves water stone path city "
    "harbor island answer model token server number people world first after before every could "
    "where while little bright across turned looked opened asked answer warm batch queue cache"
).split()
_DECK = (*(f" {word}" for word in _WORDS), ".", ".", ".", ".", ".", ",", ",", ",")


def token_ids(text: str) -> tuple[int, ...]:
    """Name the tokens of a text; equal beginnings give equal leading ids."""
    return piece_ids(_TOKEN.findall(text))


def piece_ids(texts: Iterable[str]) -> tuple[int, ...]:
    """Name the id of each token's text."""
    return tuple(_MARKS + _checksum(text) % (VOCABULARY - _MARKS) for text in texts)


@functools.lru_cache(maxsize=2**16)
def _checksum(text: str) -> int:
    # JSON can carry half a surrogate pair, which plain UTF-8 refuses
    return zlib.crc32(text.encode(errors="surrogatepass"))


def chat_ids(messages: Iterable[tuple[str, str]]) -> tuple[int, ...]:
    r"""Lay (role, text) pairs out as a chat template does, ready for the assistant to speak.

    Five tokens more a message and three at the end, as Qwen's `<|im_start|>user\n...<|im_end|>\n`.
    A conversation that goes on repeats the earlier ids exactly, so the prefix cache finds them.
    """
    (newline,) = piece_ids("\n")
    ids: list[int] = []
    for role, text in messages:
        ids += (MESSAGE_START, *piece_ids([role]), newline, *token_ids(text), MESSAGE_END, newline)
    return (*ids, MESSAGE_START, *piece_ids(["assistant"]), newline)


def pieces(prompt_ids: Sequence[int], count: int, *, seed: int = 0, salt: int = 0) -> list[str]:
    """Write `count` tokens of text for a prompt, one piece a token.

    A shorter answer is the beginning of a longer one, and `token_ids` of the joined pieces are their
    `piece_ids`: an answer that comes back in the next prompt is found in the prefix cache.
    """
    dice = random.Random(hash((seed, salt, *prompt_ids)))
    text: list[str] = []
    before = "."
    for drawn in dice.choices(_DECK, k=count):
        piece = " and" if len(drawn) == 1 and len(before) == 1 else drawn
        if before == ".":
            piece = piece.title()
        text.append(piece)
        before = piece
    if text:
        text[0] = text[0].lstrip()
    return text


def answer(
    prompt_ids: Sequence[int],
    max_tokens: int,
    *,
    seed: int,
    salt: int,
    min_tokens: int = 0,
    ignore_eos: bool = False,
) -> tuple[list[str], tuple[int, ...]]:
    """What the model says: a text piece for each token, and ids up to the one that ends it.

    `seed` is the model's; `salt` is 0 at temperature 0, so that equal prompts get equal answers.
    """
    dice = random.Random(hash((seed, salt, len(prompt_ids), *prompt_ids)))
    length = max(2, round(dice.lognormvariate(math.log(TYPICAL_TOKENS), SPREAD)))
    if ignore_eos or length > max_tokens:
        said = pieces(prompt_ids, max_tokens, seed=seed, salt=salt)
        # the engine stops where the ids end: one more, and the limit is what stops it
        return said, (*piece_ids(said), END_OF_TEXT)
    said = pieces(prompt_ids, max(length, min_tokens) - 1, seed=seed, salt=salt)
    return [*said, ""], (*piece_ids(said), END_OF_TEXT)
