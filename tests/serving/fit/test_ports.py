"""Who holds a port, on real sockets; and the kernel's tables, as they stand in files."""

import os
import socket
from pathlib import Path

import pytest

from toolkit.serving.fit.facts import Port
from toolkit.serving.fit.ports import address_of, ports


def listening(
    address: str = "127.0.0.1", *, reuse_port: bool = False, reuse_address: bool = False
) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.socket(family)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(reuse_port))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse_address))
    server.bind((address, 0))
    server.listen()
    return server


def look(number: int, host: str = "0.0.0.0") -> Port:
    (found,) = ports([number], host)
    return found


def test_a_holder_is_found_by_its_socket() -> None:
    with listening() as server:
        found = look(server.getsockname()[1])
    (holder,) = found.holders
    assert (holder.address, holder.family, holder.pids) == ("127.0.0.1", "IPv4", (os.getpid(),))
    assert holder.command is not None
    assert "pytest" in holder.command or "python" in holder.command
    assert (found.refusal, found.bound_only) == ("EADDRINUSE", False)


def test_a_holder_of_the_other_family_is_found_and_refuses_nobody() -> None:
    with listening("::1") as server:
        found = look(server.getsockname()[1], "127.0.0.1")
    assert [(each.address, each.family) for each in found.holders] == [("::1", "IPv6")]
    assert found.refusal is None


def test_a_holder_that_shares_its_port_is_found_although_binding_succeeds() -> None:
    """As vLLM: both sockets set SO_REUSEPORT."""
    with listening(reuse_port=True) as server, listening_too(server) as second:
        found = look(server.getsockname()[1])
        assert second.getsockname()[1] == server.getsockname()[1]
    assert len(found.holders) == 2


def listening_too(server: socket.socket) -> socket.socket:
    second = socket.socket()
    second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    second.bind(server.getsockname())
    second.listen()
    return second


def test_a_server_that_is_bound_and_does_not_listen_yet_is_seen() -> None:
    with socket.socket() as loading:
        loading.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        loading.bind(("127.0.0.1", 0))
        found = look(loading.getsockname()[1])
    assert (found.refusal, found.bound_only, found.holders) == ("EADDRINUSE", True, ())


@pytest.mark.parametrize("reuse", [True, False])
def test_connections_that_just_ended_take_a_port_only_of_a_server_that_did_not_allow_it(
    reuse: bool,
) -> None:
    with listening(reuse_address=reuse) as server:
        number = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", number)) as client:
            accepted, _ = server.accept()
            accepted.close()  # who closes first keeps the port in TIME_WAIT
            assert client.recv(1) == b""
    found = look(number, "127.0.0.1")
    assert (found.bound_only, found.holders) == (False, ())
    assert (found.refusal, found.ending) == ((None, False) if reuse else ("EADDRINUSE", True))


def test_looking_leaves_the_port_as_it_was() -> None:
    with listening() as server:
        number = server.getsockname()[1]
    assert look(number).refusal is None
    with socket.socket() as again:
        again.bind(("127.0.0.1", number))


def test_an_address_that_is_not_this_machines_is_refused() -> None:
    assert look(8000, "192.0.2.1").refusal == "EADDRNOTAVAIL"
    assert look(8000, "no.such.host.invalid").refusal is not None


def test_a_port_that_is_asked_for_twice_is_looked_at_once() -> None:
    assert [each.number for each in ports([7001, 7002, 7001], "127.0.0.1")] == [7001, 7002]


@pytest.mark.parametrize(
    ("word", "address"),
    [
        ("0100007F", "127.0.0.1"),
        ("00000000", "0.0.0.0"),
        ("0400000A", "10.0.0.4"),
        ("00000000000000000000000000000000", "::"),
        ("00000000000000000000000001000000", "::1"),
        ("B80D01200000000067452301EFCDAB89", "2001:db8::123:4567:89ab:cdef"),
    ],
)
def test_addresses_are_read_as_the_kernel_writes_them(word: str, address: str) -> None:
    assert address_of(word) == address


def test_without_proc_the_holders_are_unknown(tmp_path: Path) -> None:
    (found,) = ports([8000], "127.0.0.1", proc=tmp_path)
    assert found.error is not None
    assert found.holders == ()


def test_a_holder_whose_process_may_not_be_seen_stays_without_a_name(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    row = "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 4242 1\n"
    (tmp_path / "net/tcp").write_text(f"  sl  local_address ...\n{row}\n   1: torn\n")
    (found,) = ports([8000, 8001], "127.0.0.1", proc=tmp_path)[:1]  # 0x1F40 is 8000
    (holder,) = found.holders
    assert (holder.address, holder.pids, holder.command) == ("127.0.0.1", (), None)


def test_reserved_ports_are_known_from_the_kernels_list(tmp_path: Path) -> None:
    (tmp_path / "sys/net/ipv4").mkdir(parents=True)
    (tmp_path / "sys/net/ipv4/ip_local_reserved_ports").write_text("7000-7002,7010\n")
    found = ports([7000, 7001, 7002, 7003, 7010], "127.0.0.1", proc=tmp_path)
    assert [each.reserved for each in found] == [True, True, True, False, True]
