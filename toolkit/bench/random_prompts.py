"""Prompts of exactly so many tokens by a server's own tokenizer: which lengths are wanted, and words that make them. No I/O.

Tokenizers part a text at its blanks first, so n words that are one token each, with the blank before them, are n tokens
more. Which words these are, and how many tokens stand around a prompt (a chat's template), the server itself tells:
`calibration` asks how many tokens a few texts have, and checks what follows from it.
"""

import random
import re
from collections.abc import Generator
from dataclasses import dataclass, replace

from toolkit.bench.plan import MOST_TOKENS
from toolkit.profiles import Prompt

DEVIATIONS = 3
"""So many standard deviations from the mean a normal distribution is cut off: 3 draws of 1,000 would lie beyond."""
FIRST = "Read"
"""Each prompt's first word, which has no blank before it."""
WORDS = tuple(
    (
        "the of and to in is that for it was on with as be at by this had not are but from or have an they which one"
        " you were all her she there would their we him been has when who will no more if out so said what up its"
        " about into than them can only other time new some could these two may first then do any like my now over"
        " such our man me even most made after also did many"
    ).split()
)
INEXACT = "the lengths of its prompts are estimates, a word for a token: it does not count tokens, or not by words"
LEAST_WORDS = 8
"""Different ones; with fewer, prompts would hardly differ."""
LEAST_OWN = 6
"""Words that a prompt needs to be like no other: of 30 words, one of 700 million."""
MOST_COUNTS = 30
"""Of texts, while words are looked for; those found until then are enough."""
CALIBRATION_S = 60.0
"""No count begins later: a host that takes so long is given estimates."""
RANDOM_PROMPT = Prompt(name="random", messages=({"role": "user", "content": FIRST},))
"""Stands for all of them in a profile."""


class NotCountedError(Exception):
    """A host did not answer what it was to count: it is down, refuses, or takes too long. The text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of prompts or of answers."""

    least: int
    most: int
    mean: float | None = None
    """Of a normal distribution; None: each length is as likely as any other."""
    deviation: float = 0.0

    def __str__(self) -> str:
        if self.mean is not None:
            return f"{self.mean:,.0f} tokens on average (deviation {self.deviation:,.0f})"
        if self.least == self.most:
            return f"{self.least:,} tokens"
        return f"{self.least:,} to {self.most:,} tokens"

    def at(self, key: str) -> int:
        """The length that belongs to a key: equal at every host, in every run."""
        draw = random.Random(key)  # noqa: S311 (it must repeat itself)
        if self.mean is None:
            return draw.randint(self.least, self.most)
        return min(self.most, max(self.least, round(draw.gauss(self.mean, self.deviation))))


def read_lengths(text: str) -> Lengths | None:
    """Read `512`, `256:1024` (evenly from one to the other) or `normal:512:64` (mean, standard deviation); None for what is none."""
    found = re.fullmatch(r"(normal:)?([0-9]{1,8})(?::([0-9]{1,8}))?", text.strip(), re.ASCII)
    if found is None or (found[1] and not found[3]):
        return None
    first, second = int(found[2]), int(found[3] or found[2])
    if found[1]:
        least, most = max(1, first - DEVIATIONS * second), first + DEVIATIONS * second
        wanted = Lengths(least=least, most=most, mean=first, deviation=second)
    else:
        wanted = Lengths(least=first, most=second)
    return wanted if 1 <= min(first, wanted.least) <= wanted.most <= MOST_TOKENS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What one server's prompts are made of."""

    words: tuple[str, ...] = WORDS
    around: int = 1
    """Tokens of a prompt that says FIRST, with all that the server puts around it."""
    is_exact: bool = False
    """The server, or its tokenizer's file, counted; else a word is taken for a token, as INEXACT says."""

    @property
    def least(self) -> int:
        """Tokens of the shortest prompt that is like no other."""
        return self.around + LEAST_OWN

    def refusal(self, lengths: Lengths) -> str | None:
        """Why prompts of such lengths cannot be made here; None: they can."""
        if lengths.least >= self.least:
            return None
        return (
            f"no prompt can have {lengths.least} tokens here: its beginning and what stands around it are"
            f" {self.around}, and {LEAST_OWN} more tell it from others; ask for {self.least} or more"
        )

    def text(self, tokens: int, key: str, *, shared: str | None = None) -> str:
        """A prompt of so many tokens; equal keys give equal ones. `shared`: of what all but its last words are made."""
        count = max(0, tokens - self.around)
        words: list[str] = []
        if shared is not None:
            draw = random.Random(shared)  # noqa: S311 (it must repeat itself)
            words = draw.choices(self.words, k=max(0, count - LEAST_OWN))
        draw = random.Random(key)  # noqa: S311 (likewise)
        return " ".join((FIRST, *words, *draw.choices(self.words, k=count - len(words))))


def calibration(lengths: Lengths | None = None) -> Generator[str, int | None, Words]:
    """Find the words of one token each; it yields texts, and is sent how many tokens a prompt of each has.

    None says that the host answered without a count, a NotCountedError thrown into it that there was no answer. Prompts of
    the least and of the most tokens are counted, too: a tokenizer that does not part texts at blanks is found out.
    """
    around = yield FIRST
    if around is None:
        return Words()
    counts = 0

    def single(words: tuple[str, ...]) -> Generator[str, int | None, tuple[str, ...]]:
        nonlocal counts
        if counts == MOST_COUNTS:
            return ()
        counts += 1
        counted = yield " ".join((FIRST, *words))
        if counted is None:
            return ()
        extra = abs(counted - around - len(words))
        if not extra:
            return words
        # a count of all words that is far off does not follow from words at all
        if len(words) == 1 or (words is WORDS and 2 * extra > len(WORDS)):
            return ()
        middle = len(words) // 2
        return (yield from single(words[:middle])) + (yield from single(words[middle:]))

    found = yield from single(WORDS)
    if len(found) < LEAST_WORDS:
        return Words(around=around)
    words = Words(words=found, around=around, is_exact=True)
    if lengths is None or lengths.least < words.least:
        return words
    if (yield words.text(lengths.least, "checked")) != lengths.least:
        return replace(words, is_exact=False)
    if lengths.most > lengths.least:
        try:
            counted = yield words.text(lengths.most, "checked")
        except NotCountedError:
            # longer than the model's context, it may be: that says nothing of the shorter prompts
            return words
        if counted not in (lengths.most, None):
            return replace(words, is_exact=False)
    return words
