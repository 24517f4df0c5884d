"""What one process tells of what it served, and where: its counters, the log, the store. It reads the wall clock."""

import time
from typing import TYPE_CHECKING

from toolkit.proxy.exchange import Served
from toolkit.proxy.told.counters import Counters
from toolkit.proxy.told.log_lines import event_line, line
from toolkit.records import Asked

if TYPE_CHECKING:
    from toolkit.proxy.told.request_log import RequestLog
    from toolkit.proxy.told.store_feed import StoreFeed


class Telling:
    """Takes each request once, when all is over, and each event."""

    def __init__(self, log: "RequestLog | None", feed: "StoreFeed | None") -> None:
        self.counters = Counters()
        self.log, self.feed = log, feed

    def tell(self, served: Served, asked: Asked | None) -> None:
        """Take a request; one that was a hit of very bytes was taken by the desk."""
        self.counters.take(served)
        if self.log is not None:
            self.log.write(line(served, prompt=None if asked is None else asked.prompt_text))
        if self.feed is not None:
            self.feed.put(served, asked)

    def event(self, kind: str, told: dict[str, object]) -> None:
        """Take what is no request."""
        self.counters.note(kind)
        if kind == "retry":
            self.counters.fail_upstream(str(told["upstream"]), str(told["why"]))
        elif kind == "failed" and told.get("upstream"):
            self.counters.fail_upstream(str(told["upstream"]), str(told["kind"]))
        if self.log is not None:
            self.log.write(event_line(time.time(), kind, told))
