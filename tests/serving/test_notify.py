"""The service manager hears when clients are let in, that all is well, and when the end begins; never more than that."""

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.managers import Manager, manager

from toolkit.serving.notify import KEPT, Notify

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


@pytest.mark.parametrize("is_abstract", [True, False])
def test_a_manager_hears_the_word_that_clients_are_let_in(
    tmp_path: Path, is_abstract: bool
) -> None:
    with manager(None if is_abstract else tmp_path) as listener:
        Notify(listener.address, None).ready("Clients on\nhttp://x")
        assert listener.next() == {
            "READY": "1",
            "MAINPID": str(os.getpid()),
            "STATUS": "Clients on http://x",
        }


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


def test_the_end_is_told_once_and_nothing_after_it() -> None:
    with manager() as listener:
        notify, ends = Notify(listener.address, QUICK_S), asyncio.Event()

        async def listen() -> None:
            notify.ready("open")
            ends.set()
            await asyncio.to_thread(listener.until, "STOPPING")
            await asyncio.sleep(3 * QUICK_S)
            assert listener.waiting() == []

        told_on(notify, listen, ends=ends.wait)


def test_an_end_before_clients_were_let_in_is_told_too() -> None:
    with manager() as listener:
        ends = asyncio.Event()

        async def listen() -> None:
            ends.set()
            await asyncio.to_thread(listener.until, "STOPPING")

        told_on(Notify(listener.address, None), listen, ends=ends.wait)


def test_without_a_manager_nobody_is_told_and_nothing_is_asked() -> None:
    async def asked() -> bool:
        raise AssertionError("nobody wants to know")

    async def listen() -> None:
        notify.ready("open")
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    notify = Notify.from_environment({})
    told_on(notify, listen, is_well=asked)


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


def test_a_watchdog_without_a_socket_is_none() -> None:
    assert Notify.from_environment({"WATCHDOG_USEC": "30000000"}).watchdog_s is None


@pytest.mark.parametrize("address", ["/nowhere/notify", "@nobody-listens-here", "vsock:2:1234"])
def test_a_manager_that_is_gone_ends_nothing(address: str) -> None:
    Notify(address, None).ready("open")


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


def test_of_many_words_that_nobody_reads_the_newest_are_kept() -> None:
    with manager() as listener, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        _fill(other, listener)
        notify = Notify(listener.address, None)
        for number in range(KEPT + 3):
            notify.stopping(str(number))
        listener.waiting()
        notify.stopping("last")
        kept = [each["STATUS"] for each in listener.waiting()]
        # of 12 words the last 8
        assert kept == ["4", "5", "6", "7", "8", "9", "10", "last"]


def test_a_fault_of_ours_is_not_hidden() -> None:
    def broken() -> str:
        raise ValueError("no line")

    async def main() -> None:
        async with Notify("@nobody", None).telling(broken, well, never):
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    with pytest.raises(ValueError, match="no line"):
        asyncio.run(main())
