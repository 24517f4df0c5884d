"""Waits until an engine says that it is ready: `GET /health`, small and bounded. It runs no model and reads no body."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from toolkit.errors import ToolkitError

ASK_S = 0.25
"""Between two questions; vLLM binds its port early and listens only when it is ready."""
ANSWER_S = 5.0
HEAD_BYTES = 4096
"""Of an answer; its first line is all that is looked at."""


async def ready(
    url: str, key: str | None, limit_s: float, is_alive: Callable[[], bool] = lambda: True
) -> float:
    """Seconds until the engine at this base URL was healthy.

    Raises ToolkitError when it is not in time, or when `is_alive` says that nobody is there any more.
    """
    loop = asyncio.get_running_loop()
    started, last = loop.time(), "nobody listens"
    while True:
        if not is_alive():
            raise ToolkitError(f"the engine at `{url}` ended before it was ready", "See its log")
        left_s = limit_s - (loop.time() - started)
        if left_s <= 0:
            raise ToolkitError(
                f"the engine at `{url}` was not ready after {limit_s:g} s: {last}",
                "See its log; a large model wants longer: `ready` in a stack file, or --ready",
            )
        last = await answer(url, key, min(left_s, ANSWER_S))
        if last == "HTTP 200":
            return loop.time() - started
        await asyncio.sleep(min(ASK_S, max(left_s, 0)))


async def answer(url: str, key: str | None = None, limit_s: float = ANSWER_S) -> str:
    """What `/health` says in a word: `HTTP 200`, or why not."""
    try:
        return await asyncio.wait_for(_asked(url, key), limit_s)
    except TimeoutError:
        return f"no answer in {limit_s:.1f} s"
    except OSError as error:
        # asyncio writes the address into the error's own text
        return os.strerror(error.errno).lower() if error.errno else "no connection"


async def _asked(url: str, key: str | None) -> str:
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    reader, writer = await asyncio.open_connection(
        parts.hostname, port, limit=HEAD_BYTES, ssl=tls or None
    )
    try:
        writer.write(_request(parts.path.rstrip("/") + "/health", parts.netloc, key))
        await writer.drain()
        line = await reader.readline()
    except ValueError:
        return "an answer that is no HTTP"  # a line without an end
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    words = line.decode("latin-1").split()
    is_http = len(words) > 1 and words[0].startswith("HTTP/") and words[1].isdecimal()
    return f"HTTP {words[1]}" if is_http else "an answer that is no HTTP"


def _request(path: str, host: str, key: str | None) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"host: {host.rpartition('@')[2]}", "connection: close"]
    if key:
        lines.append(f"authorization: Bearer {key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
