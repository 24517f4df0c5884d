"""Bytes of an answer of `/v1/embeddings` -> what was timed: it has no token, and is over with its last byte. No clock, no I/O."""

from contextlib import suppress

import orjson

from toolkit.protocol.completion import Answer, Completion


class Embeddings(Completion):
    """Reads one such answer, as `Completion` reads a text's: E2E is all that it has, and the prompt's tokens."""

    __slots__ = ()

    def end(self, at: float, broken: str | None = None) -> Answer:
        """What the answer was; call it once."""
        answer = super().end(at, broken)
        answer.finish_reason = answer.output_tokens = None
        return answer

    def _read_whole(self, body: bytes, *, is_whole: bool) -> None:
        said = None
        if is_whole and 200 <= self._status < 300 and not self.too_large:
            with suppress(orjson.JSONDecodeError):
                said = orjson.loads(body)
        found = said if type(said) is dict else {}
        rows = found.get("data")
        if (
            type(rows) is list
            and rows
            and all(type(r) is dict and r.get("embedding") for r in rows)
        ):
            self._take_object({**found, "choices": [{"finish_reason": "stop"}]}, body)
        elif type(said) is dict and not found.get("error"):
            self._blame("garbage", "the body has no embeddings")
        else:
            super()._read_whole(body, is_whole=is_whole)
