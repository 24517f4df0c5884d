"""What would the model say to this request? Text, token ids and where it ends. No clock, no chance of its own."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.sim.checks import Ask
from toolkit.sim.tokens import chat_ids, piece_ids, pieces

END_OF_TEXT = 3
"""Among the ids that no text has; it is said and counted, but shows no text."""

TYPICAL_TOKENS = 400
"""Median length of an answer that nobody cuts off. Spread by a factor of e^0.5 (log-normal)."""
SPREAD = 0.5

LOAD_PROMPT_TOKENS = 17
"""With the eight of the chat template 25, as the contest's clients sent."""
LOAD_OUTPUT_TOKENS = 256
"""As the contest's clients asked for."""


@dataclass(frozen=True, slots=True)
class Speech:
    """One answer, a text piece and an id per token; the last token of an ended one has no text."""

    pieces: tuple[str, ...]
    ids: tuple[int, ...]


def speech(ask: Ask, *, seed: int, salt: int) -> Speech:
    """Write the answer, as far as the request wants it.

    `seed` is the model's; `salt` is 0 at temperature 0, so that equal prompts get equal answers.
    """
    length = natural_length(ask.prompt_ids, seed, salt)
    if ask.ignore_eos or length > ask.max_tokens:
        texts = pieces(ask.prompt_ids, ask.max_tokens, seed=seed, salt=salt)
        # the engine stops where the ids end: one more, and the limit is what stops it
        return Speech(tuple(texts), (*piece_ids(texts), END_OF_TEXT))
    length = max(length, ask.min_tokens)
    texts = pieces(ask.prompt_ids, length - 1, seed=seed, salt=salt)
    return Speech((*texts, ""), (*piece_ids(texts), END_OF_TEXT))


def natural_length(prompt_ids: Sequence[int], seed: int, salt: int) -> int:
    """Draw how many tokens the model would say before it ends of itself; at least 2."""
    dice = random.Random(hash((seed, salt, len(prompt_ids), *prompt_ids)))
    return max(2, round(dice.lognormvariate(math.log(TYPICAL_TOKENS), SPREAD)))


def load_ask(number: int, seed: int, max_model_len: int) -> Ask:
    """Make the numbered request of a synthetic client, each with a prompt of its own."""
    words = pieces((number, seed), LOAD_PROMPT_TOKENS)
    prompt_ids = chat_ids([("user", "".join(words))])
    return Ask(
        kind="chat",
        prompt_ids=prompt_ids,
        max_tokens=max(1, min(LOAD_OUTPUT_TOKENS, max_model_len - len(prompt_ids))),
        min_tokens=0,
        ignore_eos=True,
        temperature=0.0,
        seed=None,
        stream=False,
        include_usage=False,
        continuous_usage=False,
        cache_key="",
    )
