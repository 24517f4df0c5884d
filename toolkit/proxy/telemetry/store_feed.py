"""Requests that were served -> rows for the store, in batches, by a thread of its own. It knows no database, only a function to call.

They become Seen rows, as a capture's would, with how the cache served each. They are no Shots: those are requests that our own load
generator planned, and a client's would stand in bench's tables as if it had been measured there.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

from toolkit.proxy.telemetry.background import BackgroundWriter
from toolkit.proxy.telemetry.metrics import Served
from toolkit.records import Asked, Seen

Hand = Callable[[Sequence[Seen]], None]


class StoreFeed(BackgroundWriter[tuple[Served, Asked | None]]):
    """Hands on what was served once a second.

    `opened` is entered, used and left in the feed's own thread, as a database's connection wants it. What its function raises costs
    the batch, and it is opened anew.
    """

    interval_s, close_s = 1.0, 5.0
    batch_size, max_held = 4096, 50_000

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[Hand]],
        *,
        server: str | None = None,
        say: Callable[[str], None],
    ) -> None:
        """`server`: the proxy's own address and port."""
        self._opened, self._server = opened, server
        self._stack = ExitStack()
        self._hand: Hand | None = None
        again = "The store takes requests again; rows lost"
        super().__init__("store feed", say, "Cannot store requests", "it is tried again", again)

    def _prepare(self) -> None:
        if self._hand is None:
            self._hand = self._stack.enter_context(self._opened())

    def _write(self, batch: list[tuple[Served, Asked | None]]) -> None:
        assert self._hand is not None
        try:
            self._hand([self._row(*each) for each in batch])
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self._hand = None
        self._stack.close()

    def _row(self, served: Served, asked: Asked | None) -> Seen:
        return Seen(
            ts=served.ts,
            client=served.team or None,
            server=self._server,
            method=served.method,
            path=served.path or None,
            asked=asked,
            status=served.status,
            ttft_ms=served.ttft_ms,
            latency_ms=served.latency_ms,
            prompt_tokens=served.prompt_tokens,
            cached_tokens=served.cached_tokens,
            output_tokens=served.output_tokens,
            finish_reason=served.finish_reason,
            cache=served.cache,
        )
