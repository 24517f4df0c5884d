"""Name lookups that wait for nobody: one that hangs holds up neither the others nor the process's end.

It runs what it is given, each in a thread of its own, and looks nothing up itself.
"""

import errno
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class LookupThreads(ThreadPoolExecutor):
    """A daemon thread for each name lookup.

    asyncio's own pool has cpu+4 threads, so six hosts with a dead name server would make all the
    others wait, and the process could not end before the resolver gives up (10 s and more).
    """

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn` in a thread of its own."""
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 (handed to whoever waits for the future)
                future.set_exception(error)

        try:
            threading.Thread(target=run, daemon=True).start()
        except RuntimeError as error:  # a container may allow few threads
            future.set_exception(OSError(errno.EAGAIN, str(error)))
        return future
