"""The service manager hears when clients are let in and that all is well; never more than that."""

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from support.managers import Manager, manager

from toolkit.serving.notify import Notify

QUICK_S = 0.1
"""A sign of life wanted so often comes twice in it."""


async def well() -> bool:
    return True


async def never() -> None:
    await asyncio.Event().wait()


def told_on(
    notify: Notify,
    listen: Callable[[], Awaitable[None]],
    *,
    is_well: Callable[[], Awaitable[bool]] = well,
    ends: Callable[[], Awaitable[object]] = never,
) -> None:
    async def main() -> None:
        async with notify.telling(lambda: "serves\n2 engines", is_well, ends):
            await listen()

    asyncio.run(main())


@pytest.mark.parametrize("hangs", [False, True])
def test_none_comes_while_the_house_is_not_well_or_can_not_say(hangs: bool) -> None:
    with manager() as listener:
        notify = Notify(listener.address, QUICK_S)
        states = [True]

        async def is_well() -> bool:
            if not states[0] and hangs:
                await never()
            return states[0]

        async def listen() -> None:
            notify.ready("open")
            await asyncio.to_thread(listener.until, "WATCHDOG")
            states[0] = False
            ill = [await asyncio.to_thread(listener.next) for _ in range(6)]
            # one may have been on its way
            assert not any("WATCHDOG" in each for each in ill[1:])
            assert ill[-1] == {"STATUS": "Not well: serves 2 engines"}
            states[0] = True
            await asyncio.to_thread(listener.until, "WATCHDOG")

        told_on(notify, listen, is_well=is_well)


def test_a_loop_that_is_frozen_gives_no_sign_of_life() -> None:
    with manager() as listener:
        notify = Notify(listener.address, QUICK_S)

        async def listen() -> None:
            notify.ready("open")
            await asyncio.to_thread(listener.until, "WATCHDOG")
            # nothing else runs in this loop meanwhile: five times as long as a sign of life may take
            listener.waiting()
            threading.Event().wait(5 * QUICK_S)
            assert listener.waiting() == []
            await asyncio.to_thread(listener.until, "WATCHDOG")

        told_on(notify, listen)


def test_the_environment_is_read_once_and_left_to_nobody_whom_we_start() -> None:
    with manager() as listener:
        environ = {
            "NOTIFY_SOCKET": listener.address,
            "WATCHDOG_USEC": "30000000",
            "WATCHDOG_PID": str(os.getpid()),
            "HOME": "/",
        }
        notify = Notify.from_environment(environ)
        assert environ == {"HOME": "/"}
        assert notify.watchdog_s == 30.0
        notify.ready("open")
        assert listener.next()["READY"] == "1"


@pytest.mark.parametrize(
    "told",
    [
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "0"},
        {},
    ],
)
def test_signs_of_life_that_nobody_wants_of_us_are_not_given(told: dict[str, str]) -> None:
    assert Notify.from_environment({"NOTIFY_SOCKET": "@x"} | told).watchdog_s is None


def test_a_manager_that_reads_late_holds_up_nothing_and_loses_no_word() -> None:
    with manager() as listener, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        _fill(other, listener)
        notify = Notify(listener.address, QUICK_S)
        notify.ready("open")
        assert "READY" not in {word for each in listener.waiting() for word in each}
        notify.stopping("ends")
        assert [set(each) & {"READY", "STOPPING"} for each in listener.waiting()] == [
            {"READY"},
            {"STOPPING"},
        ]


def _fill(other: socket.socket, listener: Manager) -> None:
    """Send until nothing more fits."""
    other.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            other.sendto(b"STATUS=x", listener.address.replace("@", "\0", 1))
