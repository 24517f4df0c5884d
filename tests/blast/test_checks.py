"""What the machine of the tests tells of itself: the way to its own addresses, its limits, its disk."""

import resource
import socket
from pathlib import Path

import pytest

from toolkit.blast import checks
from toolkit.blast.neutrality import LocalRoute, neighbours
from toolkit.hosts import one_host
from toolkit.records import Host


def routes(url: str, *, ask_resolver: bool = True) -> tuple[LocalRoute, ...]:
    (target,) = checks.targets([one_host(url)], ask_resolver=ask_resolver)
    return target.routes


def test_packets_to_loopback_leave_from_loopback() -> None:
    assert routes("http://127.0.0.1:9") == (LocalRoute(address="127.0.0.1", source="127.0.0.1"),)


def test_the_way_to_a_name_is_the_way_to_its_addresses() -> None:
    found = routes("http://localhost:9")
    assert {route.address for route in found} <= {"127.0.0.1", "::1"}
    assert found


def test_without_the_resolver_a_name_has_no_way_and_an_address_has() -> None:
    assert routes("http://localhost:9", ask_resolver=False) == ()
    assert routes("http://127.0.0.1:9", ask_resolver=False) != ()


def test_a_name_that_nobody_can_look_up_has_no_way() -> None:
    assert routes(f"http://{'a' * 64}.invalid:9") == ()


def test_looking_sends_nothing_to_the_host() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        routes(f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(BlockingIOError):
            server.recv(1)


def test_every_host_has_its_own_target_in_the_order_of_the_list() -> None:
    hosts = [Host(name=name, url=f"http://127.0.0.{n}:8000") for n, name in enumerate("cab", 1)]
    found = checks.targets(hosts)
    assert [(one.name, one.hostname) for one in found] == [
        ("c", "127.0.0.1"),
        ("a", "127.0.0.2"),
        ("b", "127.0.0.3"),
    ]
    assert [one.name for one in neighbours(found)] == ["c", "a", "b"]


def test_an_address_of_an_interface_is_found_to_be_our_own() -> None:
    """The one that packets to a documentation address (RFC 5737) would bear; loopback's where there is no way."""
    (abroad,) = routes("http://192.0.2.1:9")
    own = abroad.source or "127.0.0.1"
    (found,) = neighbours(checks.targets([Host(name="self", url=f"http://{own}:8000")]))
    assert found.place == own
    assert neighbours(checks.targets([one_host("http://192.0.2.1:9")])) == []


def test_a_machine_is_known_by_its_short_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "loader.example.org")
    assert checks.own_names() == {"loader.example.org", "loader"}


def test_the_soft_limit_of_open_files_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"soft": 512}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits["soft"], 4096))
    assert checks.open_files_limit() == 512
    limits["soft"] = resource.RLIM_INFINITY
    assert checks.open_files_limit() is None


@pytest.mark.parametrize(
    ("text", "ports"), [("32768\t60999\n", 28_232), ("5 5\n", 1), ("nonsense\n", None)]
)
def test_both_ends_of_the_port_range_count(tmp_path: Path, text: str, ports: int | None) -> None:
    (tmp_path / "range").write_text(text)
    assert checks.ports_for_one_host(tmp_path / "range") == ports


def test_a_system_without_such_a_file_tells_no_ports(tmp_path: Path) -> None:
    assert checks.ports_for_one_host(tmp_path / "none") is None


def test_free_space_is_that_of_the_nearest_folder_that_is_there(tmp_path: Path) -> None:
    deep = tmp_path / "not" / "there" / "toolkit.db"
    free = checks.free_bytes(deep)
    assert free is not None
    assert free > 0
