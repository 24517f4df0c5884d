"""Runs the process of the load with what goes on beside it, and ends all of it cleanly. It owns the signals."""

import asyncio
import signal
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.cli.blast.child import LoadProcess
from toolkit.errors import ToolkitError

STOPPING = "Stopping: answers under way are waited for, 30 s at most; Ctrl-C again quits at once"
OTHERS_WORDS = (
    "TOOLKIT_HOSTS TOOLKIT_CANARIES TOOLKIT_MIX TOOLKIT_MAX_TOKENS TOOLKIT_MODEL TOOLKIT_RATE TOOLKIT_PROFILE"
    " TOOLKIT_REQUEST_TIMEOUT TOOLKIT_CA TOOLKIT_INSECURE"
).split()
"""Variables for a plain Locust, as all that begin with LOCUST_: they would change what this verb's command line says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the process of the load ended."""

    code: int
    """Its exit code, negative for a signal."""
    was_stopped: bool
    """Somebody asked for it: Ctrl-C or SIGTERM."""


class Drive:
    """One run of the load's process. `besides` go on as long as it does; a failure of theirs costs no measurement."""

    def __init__(
        self,
        child: LoadProcess,
        environment: Mapping[str, str],
        besides: Sequence[Callable[[], Coroutine[Any, Any, None]]],
        *,
        on_line: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._child, self._environment, self._besides = child, environment, besides
        self._on_line, self._say = on_line, say
        self._stops = 0

    async def run(self) -> Ended:
        """Run to the end. Raises KeyboardInterrupt when somebody is impatient, with nothing left running."""
        self._listen()
        self._child.start(self._environment, self._on_line)
        tasks = [asyncio.create_task(self._beside(work)) for work in self._besides]
        # a look listens to SIGTERM itself and would end alone; its listening begins with its first step
        await asyncio.sleep(0)
        self._listen()
        try:
            code = await self._child.ended()
        finally:
            self._child.kill()
            for task in tasks:
                task.cancel()
            faults = await asyncio.gather(*tasks, return_exceptions=True)
        if self._stops > 1:
            raise KeyboardInterrupt
        for fault in faults:
            if isinstance(
                fault, Exception
            ):  # a slip of ours; what was measured is stored all the same
                raise fault
        return Ended(code=code, was_stopped=bool(self._stops))

    async def _beside(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except (ToolkitError, OSError) as error:
            told = error.message if isinstance(error, ToolkitError) else str(error)
            self._say(f"Warning: {told}; the load goes on")

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup's
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _hang_up(self) -> None:
        # of one closed terminal its shell tells and then the kernel: the second is nobody's haste
        if not self._stops:
            self._stop()

    def _stop(self) -> None:
        self._stops += 1
        if self._stops == 1:
            self._say(STOPPING)
            self._child.interrupt()
        else:
            self._child.kill()


def environment(own: Mapping[str, str], keys_in: Collection[str]) -> Mapping[str, str]:
    """Ours for the child: the variables in `keys_in` hold the hosts' keys, which no command line may show."""
    kept = {
        name: word
        for name, word in own.items()
        if name in keys_in or not (name.startswith("LOCUST_") or name in OTHERS_WORDS)
    }
    # a library's warning to its developers is nothing that a user can mend
    return kept | {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}
