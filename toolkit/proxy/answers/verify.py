"""A stored answer and the same request's answer of today: do they say the same? Where not, where they part first.

It compares what each says, in either mode: texts, reasoning, tool calls, finish reasons, token counts. Ids, times and
fingerprints differ by themselves. What is told of a difference never holds any of the answer's text.
"""

from dataclasses import dataclass

from toolkit.proxy.answers.statements import Statements, json_value, spelled, statements
from toolkit.proxy.exchange import Kept

WHAT = {
    # the last name of a place in an answer -> what stands there; everything else is a `value`
    **dict.fromkeys(("text", "content", "refusal"), "text"),
    **dict.fromkeys(("reasoning", "reasoning_content", "thinking"), "reasoning"),
    **dict.fromkeys(("name", "arguments", "input"), "tool_call"),
    **dict.fromkeys(("finish_reason", "stop_reason", "status"), "finish_reason"),
    **dict.fromkeys(("prompt_tokens", "input_tokens"), "tokens"),
    **dict.fromkeys(("completion_tokens", "output_tokens", "tokens"), "tokens"),
    "body": "body",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two answers part first."""

    what: str
    """One of WHAT's values, or `value`: a metric's label."""
    where: str
    """E.g., `choices[0].text`."""
    at: int | None = None
    """The first character that differs, counted from 0; None for what is no text."""
    length: int | None = None
    """Characters of the stored one, and of the other."""
    length_again: int | None = None


def same(kept: Kept, again: Kept) -> Difference | None:
    """None if both say the same."""
    stored, fresh = statements(kept), statements(again)
    is_crossed = kept.streamed != again.streamed
    # reasoning is written before the text, and the text before the reason to end: what parts first is told
    for where in _places(stored, fresh):
        one, other = stored.get(where), fresh.get(where)
        if one == other and type(one) is type(other):
            continue
        what = WHAT.get(where.rpartition(".")[2].partition("[")[0], "value")
        if what == "tokens" and (one is None or other is None):
            # not asked for, or not told in this mode
            continue
        if is_crossed and what == "tool_call" and _is_one_value(one, other):
            continue
        return _difference(what, where, one, other)
    return None


def _places(stored: Statements, fresh: Statements) -> dict[str, None]:
    """All places that either has, in the order of the stored answer."""
    return dict.fromkeys((*stored, *fresh))


def _difference(what: str, where: str, one: object, other: object) -> Difference:
    # a text that is not there has no characters
    one, other = ("" if each is None else each for each in (one, other))
    if not isinstance(one, str) or not isinstance(other, str):
        return Difference(what=what, where=where)
    alike = _alike(one, other)
    return Difference(what=what, where=where, at=alike, length=len(one), length_again=len(other))


def _alike(one: str, other: str) -> int:
    """How many characters two texts begin with in common, by halves: comparing slices is faster than characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_one_value(one: object, other: object) -> bool:
    """Whether two texts are one JSON value in two spellings: in a whole body a server may have written arguments anew."""
    if not isinstance(one, str) or not isinstance(other, str):
        return False
    values = [json_value(text.encode("utf-8", "surrogatepass")) for text in (one, other)]
    # compared as text: to Python, true is 1
    return None not in values and len({spelled(value) for value in values}) == 1
