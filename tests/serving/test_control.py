"""Orders reach the one serve of a folder, over a real socket."""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from toolkit.errors import ToolkitError
from toolkit.serving.control import LOCK, SOCKET, give, heard, held, is_served

Say = Callable[[str], None]


async def echo(order: Mapping[str, Any], _: Say) -> Mapping[str, Any]:
    return {"heard": order["order"]}


async def answer_to(folder: Path, order: Mapping[str, Any], carry: Any = echo) -> Any:
    said: list[str] = []
    with held(folder):
        async with heard(folder, carry):
            return await asyncio.to_thread(give, folder, order, said.append), said


def test_an_order_is_carried_out_and_its_result_comes_back(tmp_path: Path) -> None:
    told, _ = asyncio.run(answer_to(tmp_path, {"order": "status"}))
    assert told == {"heard": "status"}


def test_what_is_said_meanwhile_arrives_in_its_order(tmp_path: Path) -> None:
    async def talk(_: Mapping[str, Any], say: Say) -> Mapping[str, Any]:
        say("one")
        say("two")
        return {}

    told, said = asyncio.run(answer_to(tmp_path, {"order": "stop"}, talk))
    assert (told, said) == ({}, ["one", "two"])


def test_an_error_comes_back_with_its_hint(tmp_path: Path) -> None:
    async def refuse(_: Mapping[str, Any], __: Say) -> Mapping[str, Any]:
        raise ToolkitError("no room", "Stop something")

    with pytest.raises(ToolkitError) as told:
        asyncio.run(answer_to(tmp_path, {"order": "swap"}, refuse))
    assert (told.value.message, told.value.hint) == ("no room", "Stop something")


def test_a_bug_is_told_to_who_asked_and_the_next_order_is_heard(tmp_path: Path) -> None:
    async def fail(order: Mapping[str, Any], _: Say) -> Mapping[str, Any]:
        if order["order"] == "bad":
            raise KeyError("x")
        return {}

    async def scene() -> None:
        with held(tmp_path):
            async with heard(tmp_path, fail):
                with pytest.raises(ToolkitError, match="KeyError"):
                    await asyncio.to_thread(give, tmp_path, {"order": "bad"}, print)
                assert await asyncio.to_thread(give, tmp_path, {"order": "good"}, print) == {}

    asyncio.run(scene())


@pytest.mark.parametrize("line", [b"no json\n", b"[1]\n", b"\xff\n", b"", b"x" * (2**20 + 9)])
def test_what_is_no_order_is_carried_out_by_nobody(tmp_path: Path, line: bytes) -> None:
    async def scene() -> None:
        async def never(_: Mapping[str, Any], __: Say) -> Mapping[str, Any]:
            raise AssertionError

        with held(tmp_path):
            async with heard(tmp_path, never):
                reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET)
                writer.write(line)
                writer.write_eof()
                # reset: it was closed with what it had not read
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()

    asyncio.run(scene())


def test_only_its_owner_may_give_orders(tmp_path: Path) -> None:
    async def scene() -> None:
        with held(tmp_path):
            async with heard(tmp_path, echo):
                for name in (SOCKET, LOCK):
                    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600

    asyncio.run(scene())


def test_a_folder_that_it_makes_is_its_owners_alone(tmp_path: Path) -> None:
    with held(tmp_path / "new"):
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_a_lock_that_is_a_link_empties_nobodys_file(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / LOCK).symlink_to(precious)
    with pytest.raises(ToolkitError, match="cannot be written"), held(tmp_path):
        pass
    assert precious.read_text() == "kept"


def test_what_takes_the_sockets_place_is_told(tmp_path: Path) -> None:
    (tmp_path / SOCKET).mkdir()
    with pytest.raises(ToolkitError, match="no orders can be heard"):
        asyncio.run(answer_to(tmp_path, {"order": "status"}))


def test_who_may_give_no_orders_is_told_so_and_not_that_nobody_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # root may connect to everybody's: the system's refusal is made up
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("socket.socket.connect", refuse)
    with pytest.raises(ToolkitError, match="takes no orders from you"):
        give(tmp_path, {"order": "status"}, print)


def test_a_socket_that_was_left_behind_is_no_hindrance(tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET))
    told, _ = asyncio.run(answer_to(tmp_path, {"order": "status"}))
    assert told == {"heard": "status"}


def test_a_second_serve_in_a_folder_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(ToolkitError, match=rf"pid {os.getpid()}"), held(tmp_path):
        pass


def test_a_folder_whose_serve_was_killed_is_free(tmp_path: Path) -> None:
    source = (
        "import sys, time; from pathlib import Path; from toolkit.serving.control import held\n"
        "with held(Path(sys.argv[1])):\n    print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path)], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert is_served(tmp_path)
        child.send_signal(signal.SIGKILL)
    assert not is_served(tmp_path)
    with held(tmp_path):
        assert is_served(tmp_path)


def test_a_path_longer_than_a_sockets_is_reached_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 120)
    told, _ = asyncio.run(answer_to(folder, {"order": "status"}))
    assert told == {"heard": "status"}
    assert not (folder / SOCKET).exists()


def test_where_nobody_serves_the_order_says_so(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="no serve runs in") as told:
        give(tmp_path, {"order": "status"}, print)
    assert "toolkit serve" in told.value.hint


def test_an_order_under_way_ends_with_the_serve_and_its_asker_is_told(tmp_path: Path) -> None:
    async def scene() -> None:
        began = asyncio.Event()

        async def hang(_: Mapping[str, Any], __: Say) -> Mapping[str, Any]:
            began.set()
            await asyncio.Event().wait()
            return {}

        with held(tmp_path):
            async with heard(tmp_path, hang):
                giving = asyncio.create_task(
                    asyncio.to_thread(give, tmp_path, {"order": "restart"}, print)
                )
                await began.wait()
            with pytest.raises(ToolkitError, match="ended before it had answered"):
                await giving

    asyncio.run(scene())
