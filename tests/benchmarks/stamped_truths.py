"""The stamped server with one more page, `/truth`: when each request came and when its tokens left, for tools that keep no texts.

    python tests/benchmarks/stamped_truths.py --port 0

It is started by `bench_selftest.py`, whose other tools report times and no stamps.
"""

import json
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from toolkit.bench import stamped
from toolkit.bench.selftest import StampedServer, stamped_server

PAGE_TIMEOUT_S = 60.0


@dataclass(slots=True, kw_only=True)
class Truth:
    """One answered request by the server's own clock, nanoseconds of `time.monotonic_ns`."""

    received_ns: int
    """When the request was read to its last byte."""
    first_sent_ns: int | None = None
    """When the first token was about to be handed to the socket."""
    last_sent_ns: int | None = None
    tokens: int = 0
    """Sent so far."""
    complete: bool = False


TRUTHS: deque[Truth] = deque(maxlen=100_000)


class NotedConnection(stamped._Connection):
    """Notes what it sends."""

    def send_token(self, due_ns: int) -> int | None:
        """Send the token that is due, if one can be sent now."""
        sent_ns, before = time.monotonic_ns(), self.left
        if before == self._tokens and not self._is_paused:
            self._truth = Truth(received_ns=self.received_ns)
            TRUTHS.append(self._truth)
        next_ns = super().send_token(due_ns)
        if self.left < before:
            truth = self._truth
            truth.first_sent_ns = truth.first_sent_ns or sent_ns
            truth.last_sent_ns = sent_ns
            truth.tokens += 1
            truth.complete = not self.left
        return next_ns


@contextmanager
def noted_server(pace: stamped.TokenPace) -> Iterator[StampedServer]:
    """Start it in a process of its own; it ends with the block, or with this process."""
    with stamped_server(pace, [__file__]) as server:
        yield server


def truths(server: StampedServer) -> tuple[Truth, ...]:
    """Every request so far, by the server's clock."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{server.url}/truth", timeout=PAGE_TIMEOUT_S) as page:
        return tuple(Truth(**each) for each in json.load(page)["requests"])


if __name__ == "__main__":
    stamped._Connection = NotedConnection  # type: ignore[misc]
    stamped.PAGES["GET /truth"] = lambda: {"requests": [asdict(each) for each in TRUTHS]}
    stamped.main()
