"""One entry of an answer's `choices`, whole or in pieces -> what it said, and whether a piece has a token. No clock."""

from typing import Any

MAX_COUNT = 2**53
"""A token count from here on is nonsense, and a float would lose its last digits."""

ROLE, EMPTY, REASONING, VISIBLE = range(4)
"""What a piece of a choice is: the first, which only tells the role; one without a token; a token of reasoning; one that
a user sees."""


class Choice:
    """What one choice of an answer has said so far."""

    __slots__ = ("_spoke", "_tokens", "finish_reason", "reasoning", "text", "tool_calls")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.tool_calls: list[str] = []
        self.finish_reason: str | None = None
        self._spoke = False
        self._tokens = 0

    def take(self, said: dict[str, Any]) -> int:
        """Take one entry of `choices`, and return what it is."""
        reason = said.get("finish_reason")
        if type(reason) is str and reason:
            self.finish_reason = reason
        delta = said.get("delta") or said.get("message")
        if type(delta) is not dict:
            # legacy completions
            delta = {"content": said.get("text")}
        content = delta.get("content")
        if len(delta) == 1 and type(content) is str and content:
            self.text.append(content)
            kind = VISIBLE
        else:
            kind = self._take_delta(delta)
        if kind == EMPTY and not self._spoke and "role" in delta:
            kind = ROLE
        self._spoke = True
        return kind

    def _take_delta(self, delta: dict[str, Any]) -> int:
        kind = EMPTY
        # of the two names of reasoning, a server in transition sends both with the same text
        if _keep(delta.get("reasoning_content"), self.reasoning) or _keep(
            delta.get("reasoning"), self.reasoning
        ):
            kind = REASONING
        for text in (delta.get("content"), delta.get("refusal")):
            if _keep(text, self.text):
                kind = VISIBLE
        calls = delta.get("tool_calls")
        # the legacy form is one call without a list around it
        for call in (
            *(calls if type(calls) is list else ()),
            {"function": delta.get("function_call")},
        ):
            function = call.get("function") if type(call) is dict else None
            if type(function) is dict:
                for text in (function.get("name"), function.get("arguments")):
                    if _keep(text, self.tool_calls):
                        kind = VISIBLE
        return kind

    def growth(self, usage: dict[str, Any]) -> int:
        """By how many tokens `usage` beside this choice grew: vLLM (0.32, serving.py) counts each choice apart there."""
        before = self._tokens
        self._tokens = token_count(usage.get("completion_tokens")) or before
        return self._tokens - before


def token_count(value: object) -> int | None:
    """A number of tokens; `true`, -1, 1.5 and "12" are none."""
    return value if type(value) is int and 0 <= value < MAX_COUNT else None


def _keep(text: object, texts: list[str]) -> bool:
    if type(text) is not str or not text:
        return False
    texts.append(text)
    return True
