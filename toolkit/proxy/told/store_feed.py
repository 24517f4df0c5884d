"""Requests that were served -> rows for the store, in batches, by a thread of its own. It knows no database: it is given one to hand to.

They become Seen rows, as a capture's would, with how the cache served each. They become no Shots: a Shot is a request that our own
load generator planned, of a run with a plan, a slot and a named prompt. A client's request has none of these, and would stand in
bench's tables as if it had been measured under them.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from toolkit.proxy.exchange import Served
from toolkit.proxy.told.stderr import say
from toolkit.records import Asked, Seen

EVERY_S = 1.0
BATCH = 4096
HELD_ROWS = 50_000
"""As many wait while the store is slow; further ones are dropped and counted."""
CLOSE_S = 5.0

Hand = Callable[[Sequence[Seen]], None]


class StoreFeed:
    """Takes what was served, and hands it on once a second. `put` and `close` belong to one thread.

    `opened` is entered, used and left in the feed's own thread, as a database's connection wants it. What it or its function raises
    costs the batch and is told by `tell`, once until it works again.
    """

    __slots__ = (
        *("_closing", "_is_broken", "_lost", "_opened", "_refused", "_rows", "_server", "_tell"),
        *("_thread", "_wake"),
    )

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[Hand]],
        *,
        server: str | None = None,
        tell: Callable[[str], None] = say,
    ) -> None:
        """`server`: address and port that clients ask."""
        self._opened, self._server, self._tell = opened, server, tell
        self._rows: deque[tuple[Served, Asked | None]] = deque()
        # the first is changed by `put`'s thread alone, the second by the feed's
        self._refused = self._lost = 0
        self._is_broken = self._closing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store feed", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Rows that are in no store: too many waited, or they could not be handed on."""
        return self._refused + self._lost

    def put(self, served: Served, asked: Asked | None = None) -> None:
        """Take one request that ended; nobody may change it any more."""
        if len(self._rows) >= HELD_ROWS:
            self._refused += 1
        else:
            self._rows.append((served, asked))

    def close(self) -> None:
        """Hand on what there is, for at most CLOSE_S, and end."""
        self._closing = True
        self._wake.set()
        self._thread.join(CLOSE_S)

    # --- In the feed's own thread -----------------------------------------------------------------

    def _run(self) -> None:
        while True:
            is_last = self._closing
            try:
                with self._opened() as hand:
                    self._hand_on(hand)
            except Exception as error:  # noqa: BLE001 (told; whatever the store's fault is, clients are served)
                self._fail(error)
            else:
                return
            if is_last:
                self._lost += len(self._rows)
                return
            self._wake.wait(EVERY_S)

    def _hand_on(self, hand: Hand) -> None:
        """Until it is closed, or the store fails."""
        while True:
            is_last = self._closing
            while self._rows:
                self._hand_batch(hand)
            if is_last:
                return
            self._wake.wait(EVERY_S)

    def _hand_batch(self, hand: Hand) -> None:
        taken = [self._rows.popleft() for _ in range(min(BATCH, len(self._rows)))]
        try:
            hand([seen(served, asked, self._server) for served, asked in taken])
        except Exception:
            self._lost += len(taken)
            raise
        if self._is_broken:
            self._is_broken = False
            self._tell(f"The store takes requests again; rows lost: {self.dropped:,}")

    def _fail(self, error: Exception) -> None:
        if not self._is_broken:
            self._is_broken = True
            self._tell(f"Cannot store requests: {error or type(error).__name__}; it is tried again")


def seen(served: Served, asked: Asked | None, server: str | None) -> Seen:
    """What the store keeps of a request; without the whole of what it asked, at least its keys."""
    return Seen(
        ts=served.ts,
        client=served.team or None,
        server=server,
        method=served.method,
        path=served.path or None,
        asked=_by_keys(served) if asked is None else asked,
        status=served.status,
        ttft_ms=served.ttft_ms,
        latency_ms=served.latency_ms,
        prompt_tokens=served.prompt_tokens,
        cached_tokens=served.cached_tokens,
        output_tokens=served.output_tokens,
        finish_reason=served.finish_reason,
        cache=served.cache,
    )


def _by_keys(served: Served) -> Asked | None:
    if served.exact_key is None:
        return None
    return Asked(
        exact_key=served.exact_key,
        request_key=served.request_key,
        prompt_key=served.prompt_key,
        body_bytes=served.body_bytes,
        model=served.model,
        stream=served.stream,
    )
