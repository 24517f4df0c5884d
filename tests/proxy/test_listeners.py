"""Sockets for several workers on one port, which is nobody else's."""

import asyncio
import socket

import pytest

from toolkit.errors import ToolkitError
from toolkit.proxy.workers import listeners


def close(opened: list[list[socket.socket]]) -> None:
    for mine in opened:
        for each in mine:
            each.close()


def ports(opened: list[list[socket.socket]]) -> set[int]:
    return {each.getsockname()[1] for mine in opened for each in mine}


@pytest.mark.parametrize("count", [1, 3])
def test_a_port_that_another_proxy_has_is_refused_though_it_could_be_shared(count: int) -> None:
    first = listeners("127.0.0.1", 0, 2)
    (port,) = ports(first)
    try:
        with pytest.raises(ToolkitError, match="cannot listen on") as caught:
            listeners("127.0.0.1", port, count)
        assert str(port) in caught.value.message
        assert "--port" in caught.value.hint
        # its own may be joined by a worker that is started again
        close(listeners("127.0.0.1", port, 1, joins=True))
    finally:
        close(first)
    close(listeners("127.0.0.1", port, count))


async def test_a_proxy_of_one_process_is_refused_beside_one_of_several_and_the_other_way_round() -> (
    None
):
    async def alone(port: int) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(asyncio.Protocol, "127.0.0.1", port)

    several = listeners("127.0.0.1", 0, 2)
    (port,) = ports(several)
    with pytest.raises(OSError, match="in use"):
        await alone(port)
    close(several)
    server = await alone(port)
    with pytest.raises(ToolkitError):
        listeners("127.0.0.1", port, 2)
    server.close()
    await server.wait_closed()


def test_a_name_with_two_addresses_is_listened_to_on_each_that_the_machine_has() -> None:
    opened = listeners("localhost", 0, 2)
    try:
        assert len(ports(opened)) == 1
        assert all(mine for mine in opened)
    finally:
        close(opened)


def test_a_host_that_is_none_of_this_machine_is_refused() -> None:
    # 192.0.2.0/24 is for documentation: nobody has such an address
    with pytest.raises(ToolkitError, match=r"192\.0\.2\.1"):
        listeners("192.0.2.1", 0, 2)
