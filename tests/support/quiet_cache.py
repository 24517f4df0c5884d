"""A cache file whose thread does nothing: a test flushes when it wants to."""

from toolkit.proxy.cache.sqlite import SqliteCache


class QuietCache(SqliteCache):
    """`flush` does what the thread does in each round."""

    def _run(self) -> None:
        self._end.wait()
