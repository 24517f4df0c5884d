"""Text to token ids and back to plausible text, the same every time. No model, no clock, no chance."""

from collections.abc import Iterable, Sequence


def token_ids(text: str) -> tuple[int, ...]:
    """Cut text into tokens of about four characters; equal beginnings give equal leading ids."""
    raise NotImplementedError


def chat_ids(messages: Iterable[tuple[str, str]]) -> tuple[int, ...]:
    """Lay (role, text) pairs out as a chat template does, ready for the assistant to speak.

    A conversation that goes on repeats the earlier ids exactly: the prefix cache finds them.
    """
    raise NotImplementedError


def pieces(prompt_ids: Sequence[int], count: int, *, seed: int = 0, salt: int = 0) -> list[str]:
    """Write `count` tokens of text for a prompt, one piece a token.

    Equal arguments give equal text: at temperature 0 leave `salt` 0, else give each answer its own.
    A shorter answer is the beginning of a longer one.
    """
    raise NotImplementedError


def piece_ids(texts: Iterable[str]) -> tuple[int, ...]:
    """Name each piece's token id; `token_ids` of the joined text is the same."""
    raise NotImplementedError
