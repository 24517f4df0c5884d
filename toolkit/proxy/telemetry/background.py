"""A thread that writes what the event loop hands to it: a slow, full or lost disk never holds up an answer.

What there is no room for, or what cannot be written, is dropped and counted; it is said once when that begins and once when it is over.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundWriter(Generic[T]):
    """Takes records and writes them in batches, in order. `put` and `close` belong to one thread, all else to the writer's own."""

    interval_s: float
    """How often it writes; sooner where a batch is full."""
    batch_size: int
    max_held: int
    """Records that wait or are being written while the disk stalls, by their size; further ones are dropped."""
    close_s: float
    """Time for the last records: the reader of a pipe may have stopped for good."""

    def __init__(
        self,
        name: str,
        say: Callable[[str], None],
        broken: str,
        effect: str,
        again: str,
        *,
        size: Callable[[T], int] = lambda _: 1,
    ) -> None:
        """`say` gets a sentence of the next three when it can't write, and when it can again. `size`: of one record."""
        self._say, self._broken, self._effect, self._again = say, broken, effect, again
        self._size = size
        self._queue: deque[T] = deque()
        # each of these is changed by one thread alone: the first two by `put`'s, the others by the writer's
        self._taken = self._refused = 0
        self._finished = self._lost = 0
        self._is_broken = self._is_closing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Records that are lost: there was no room to hold them, or they could not be written."""
        return self._refused + self._lost

    def put(self, record: T) -> None:
        """Take one record, which must not change any more."""
        size = self._size(record)
        held = self._taken - self._finished + size
        if held > self.max_held:
            self._refused += 1
            return
        self._queue.append(record)
        self._taken += size
        if held >= self.batch_size and not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Write what there is, for at most `close_s`, and end; records that come later go nowhere."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(self.close_s)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait(self.interval_s)
            self._wake.clear()
            is_last, batch = self._is_closing, list[T]()
            try:
                while True:
                    self._prepare()
                    size = 0
                    while self._queue and size < self.batch_size:
                        batch.append(self._queue.popleft())
                        size += self._size(batch[-1])
                    if not batch:
                        break
                    try:
                        self._write(batch)
                    finally:
                        self._finished += size
                    batch = []
                    if self._is_broken:
                        self._is_broken = False
                        self._say(f"{self._again}: {self.dropped:,}")
            except Exception as error:  # noqa: BLE001 (said, and tried again: whatever is wrong, clients are served)
                self._lost += len(batch)
                if not self._is_broken:
                    self._is_broken = True
                    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    self._say(f"{self._broken}: {why}; {self._effect}")
        self._lost += len(self._queue)
        self._end()

    def _prepare(self) -> None:
        """Called before each batch, and when there is none."""

    def _write(self, batch: list[T]) -> None:
        """Write a batch, or raise: then what is left in the list is lost."""
        raise NotImplementedError  # the access log and the store's feed have their own

    def _end(self) -> None:
        """Close what was opened."""
