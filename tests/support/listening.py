"""How a test's server ends."""

import asyncio
from typing import cast

BEGIN_TURNS = 4
"""Of the event loop, until a connection that it has taken is served: the task that makes its transport, the transport's two
calls, and the handler's task."""


async def end_listening(server: asyncio.AbstractServer) -> None:
    """Take no more connections, let those taken begin, and close the server.

    asyncio (Python 3.11) forgets a connection that it took but had not set up when its server closed or its loop ended: its socket
    stays open until the collector finds it, in some later test, which then fails.
    """
    # uvloop's has `sockets`, too, but is no subclass of asyncio's
    for listening in cast("asyncio.Server", server).sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(BEGIN_TURNS):
        await asyncio.sleep(0)
    server.close()
