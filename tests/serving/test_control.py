"""Orders reach the one serve of a folder, over a real socket."""

import asyncio
import contextlib
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from toolkit.errors import ToolkitError
from toolkit.serving.control import LOCK, SOCKET, give, heard, held

Say = Callable[[str], None]


async def echo(order: Mapping[str, Any], _: Say) -> Mapping[str, Any]:
    return {"heard": order["order"]}


async def test_a_bug_is_told_to_who_asked_and_the_next_order_is_heard(tmp_path: Path) -> None:
    async def fail(order: Mapping[str, Any], _: Say) -> Mapping[str, Any]:
        if order["order"] == "bad":
            raise KeyError("x")
        return {}

    with held(tmp_path):
        async with heard(tmp_path, fail):
            with pytest.raises(ToolkitError, match="KeyError"):
                await asyncio.to_thread(give, tmp_path, {"order": "bad"}, print)
            assert await asyncio.to_thread(give, tmp_path, {"order": "good"}, print) == {}


@pytest.mark.parametrize("line", [b"no json\n", b"[1]\n", b"\xff\n", b"", b"x" * (2**20 + 9)])
async def test_what_is_no_order_is_carried_out_by_nobody(tmp_path: Path, line: bytes) -> None:
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


async def test_only_its_owner_may_give_orders(tmp_path: Path) -> None:
    with held(tmp_path):
        async with heard(tmp_path, echo):
            for name in (SOCKET, LOCK):
                assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_lock_that_is_a_link_empties_nobodys_file(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / LOCK).symlink_to(precious)
    with pytest.raises(ToolkitError, match="cannot be written"), held(tmp_path):
        pass
    assert precious.read_text() == "kept"
