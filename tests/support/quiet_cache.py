"""A shared cache whose thread does nothing: a test writes and mends when it wants to."""

from toolkit.proxy.stored.shared_cache import SharedCache


class QuietCache(SharedCache):
    """`flush` writes; `mend` does what the thread does first in each round."""

    def _write_on(self) -> None:
        self._end.wait()

    def mend(self) -> None:
        with self._write_lock:
            self._mend()
