"""What one process reports of what it serves: counters and pages for Prometheus, a line of the log, a row of the store."""

import time

from toolkit.proxy.telemetry.access_log import AccessLog, event_line
from toolkit.proxy.telemetry.metrics import Counters
from toolkit.proxy.telemetry.store_feed import StoreFeed


class Telemetry:
    """Gets each request once, at its end, from `Handler.finish`, and each event (e.g., a retry). It reads the wall clock."""

    def __init__(self, log: AccessLog | None = None, feed: StoreFeed | None = None) -> None:
        self.counters = Counters()
        self.log, self.feed = log, feed

    def event(self, kind: str, fields: dict[str, object]) -> None:
        """Count and log what is no request, e.g., `retry`."""
        self.counters.add("events", kind)
        if kind == "retry" or (kind == "failed" and fields.get("upstream")):
            why = fields["why" if kind == "retry" else "kind"]
            self.counters.add("upstream_errors", str(fields["upstream"]), str(why))
        if self.log is not None:
            self.log.put(event_line(time.time(), kind, fields))
