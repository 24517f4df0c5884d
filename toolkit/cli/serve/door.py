"""The proxy of a served stack: opened in this process or as several workers, and steered through its own admin."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import aiohttp

from toolkit.cli.proxy.run import refuse_without_file, team_keys, tellers, told
from toolkit.cli.proxy.workers import workers_of
from toolkit.errors import ToolkitError
from toolkit.proxy.keyring import TeamKey
from toolkit.proxy.processes.server import Proxy
from toolkit.proxy.settings import Settings
from toolkit.proxy.settings_file import checked
from toolkit.proxy.stored.shared_cache import SharedCache
from toolkit.proxy.upstreams.identity import ANY

Say = Callable[[str], None]
ADMIN_S = 10.0
"""For an answer of the admin, which is this process or one of its own."""


class Door:
    """The proxy, as the house needs it (serving.gate.Front)."""

    def __init__(self, settings: Settings, port: int, admin: int, closing: "Closing") -> None:
        self.url = f"http://{_reached(settings.host)}:{port}"
        self.admin_url = f"http://{_reached(settings.admin_host)}:{admin}"
        self._closing = closing
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=ADMIN_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def drain(self, upstream: str, why: str, back_in_s: float | None) -> None:
        """Send it no more."""
        await self._do("/drain", {"upstream": upstream, "why": why, "back_in_s": back_in_s})

    async def undrain(self, upstream: str, start_s: float | None) -> None:
        """Send it requests again."""
        await self._do("/undrain", {"upstream": upstream, "start_s": start_s})

    async def state(self) -> Mapping[str, Any]:
        """As its admin tells it."""
        try:
            async with self._session.get(f"{self.admin_url}/state") as answer:
                return dict(await answer.json())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unanswered(error) from error

    async def forget(self, model: str | None) -> None:
        """Let a model's stored answers go; None: all."""
        await self._do("/purge", {"all": True} if model is None else {"model": model})

    async def stop(self) -> None:
        """Take no more, end what is under way, and close."""
        try:
            await self._closing()
        finally:
            await self._session.close()

    async def _do(self, path: str, what: Mapping[str, Any]) -> None:
        try:
            async with self._session.post(f"{self.admin_url}{path}", json=what) as answer:
                if answer.status != 200:
                    error = (await answer.json())["error"]
                    why = f"the proxy refused `{path}`: {error['message']}"
                    raise ToolkitError(why, error.get("hint") or "")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unanswered(error) from error


Closing = Callable[[], Any]


def variables_and_keys(settings: Settings) -> tuple[dict[str, str], list[TeamKey]]:
    """What the proxy's settings name; asked before any engine is started, as a missing key is told at once."""
    refuse_without_file(settings)
    return checked(settings, os.environ), team_keys(settings)


async def open_door(settings: Settings, is_others: bool, say: Say) -> Door:
    """Open the proxy. `is_others`: what is stored was answered by others, and becomes unreachable first."""
    variables, keys = variables_and_keys(settings)
    if is_others and settings.cache.file is not None:
        await asyncio.to_thread(_begin_generation, settings)
        say("Another model or other flags than the last time: what is stored of those is not shown")
    for line in told(settings):
        say(line)
    if settings.workers > 1:
        return await _several(settings, variables, keys, say)
    return await _alone(settings, variables, keys, say)


async def _alone(
    settings: Settings, variables: Mapping[str, str], keys: list[TeamKey], say: Say
) -> Door:
    opened = ExitStack()
    log, feed = tellers(settings, opened)
    proxy = Proxy(settings, variables=variables, keys=keys, log=log, feed=feed, say=say)

    async def close() -> None:
        try:
            await proxy.stop()
        finally:
            await asyncio.to_thread(opened.close)

    try:
        await proxy.start()
    except ToolkitError as error:
        await close()
        # serve has no such option as `toolkit proxy` has
        hint = error.hint.replace("--admin-port", "the proxy's `admin_port`")
        raise ToolkitError(error.message, hint) from error
    except BaseException:
        await close()
        raise
    return Door(settings, *proxy.ports, close)


async def _several(
    settings: Settings, variables: Mapping[str, str], keys: list[TeamKey], say: Say
) -> Door:
    workers = workers_of(settings, variables, keys, say)
    ready: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(workers.run(lambda port, admin: ready.set_result((port, admin))))

    async def close() -> None:
        workers.end()
        await running

    try:
        await asyncio.wait((ready, running), return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        workers.end()
        with contextlib.suppress(ToolkitError):
            await running
        raise
    if not ready.done():
        await running
        raise ToolkitError("the proxy's workers ended at once", "Its own words are above")
    return Door(settings, *ready.result(), close)


def _begin_generation(settings: Settings) -> None:
    """Raise the epochs of all models in the file: the proxy takes them over when it starts."""
    cache = settings.cache
    assert cache.file is not None
    file = SharedCache(cache.file, cache.file_bytes)
    try:
        for model in {*file.epochs(), ANY}:
            file.bump(model)
    finally:
        file.close()


def _unanswered(error: Exception) -> ToolkitError:
    why = str(error) or type(error).__name__
    return ToolkitError(f"the proxy's admin does not answer: {why}", "Is the machine overloaded?")


def _reached(host: str) -> str:
    """An address to ask at, of one that is listened on."""
    found = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"[{found}]" if ":" in found else found
