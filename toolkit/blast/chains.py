"""A chain of dependent calls: each step's prompt holds the answer before it. Pure texts.

An application asks several times for one thing: route, generate, correct, format. Each call waits for the one before, so
a user of a chain keeps a host less busy than one of single requests.
"""

from collections.abc import Sequence

from toolkit.profiles import ANSWER, Message

MOST_ANSWER_CHARS = 2_000
"""Of an answer are handed on: about 500 tokens, so that a chain cannot grow out of a model's context."""


def step_messages(before: Sequence[Message], template: str, answer: str) -> list[Message]:
    """The messages of the step after an answer: the first step's system messages, and the template filled in."""
    system = [message for message in before if message.get("role") == "system"]
    return [*system, {"role": "user", "content": filled(template, answer)}]


def filled(template: str, answer: str) -> str:
    """The template with the answer's beginning in its place; what no request can carry becomes `?`."""
    # an answer's JSON may hold half a surrogate pair, and no UTF-8 does
    sendable = answer[:MOST_ANSWER_CHARS].encode(errors="replace").decode()
    return template.replace(ANSWER, sendable)


def step_name(prompt: str, step: int) -> str:
    """How results call a step; the first one bears the prompt's name."""
    return prompt if step == 1 else f"{prompt}/{step}"
