"""Who is on the machine that makes the load, and what that machine lacks for a blast."""

import resource
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from toolkit.blast import machine
from toolkit.blast.machine import Lack, local_hosts, sentence
from toolkit.hosts import one_host
from toolkit.records import Host

JULY_2025_S = 1_751_328_000.0  # 2025-07-01 00:00 UTC: 181 days after 2025 began
DAY_S = 86_400.0


# --- is a host on it? ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hostname", "addresses", "place"),
    [
        ("10.0.0.4", ["10.0.0.4"], None),
        ("gpu.example", ["192.0.2.7"], None),
        ("gpu.example", [], None),
        # loopback is here whatever the system says
        *(
            ("some.name", [address], address)
            for address in ("127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1")
        ),
        # so is an address of an interface
        *(
            ("gpu.example", [address], address)
            for address in ("10.0.0.9", "2001:db8::9", "2001:DB8:0::9", "fe80::9%eth0")
        ),
        ("gpu.example", ["192.0.2.7", "10.0.0.9"], "10.0.0.9"),
        # names that need no look-up
        *((name, [], name) for name in ("localhost", "api.localhost", "localhost.", "loader")),
        ("loader.example.org", [], "loader.example.org"),
        *((name, [], None) for name in ("notlocalhost", "localhost.example", "loader.example")),
    ],
)
def test_a_host_is_here_by_its_address_or_its_name(
    monkeypatch: pytest.MonkeyPatch, hostname: str, addresses: list[str], place: str | None
) -> None:
    def looked_up(name: str, *_: object, **__: object) -> list[Any]:
        assert name == hostname
        return [(None, None, None, None, (address, 9)) for address in addresses]

    own = {"eth0": ["02:42:ac:11:00:02", "10.0.0.9", "2001:db8::9", "fe80::9%eth0"]}
    interfaces = {
        name: [SimpleNamespace(address=address) for address in each] for name, each in own.items()
    }
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    monkeypatch.setattr(socket, "gethostname", lambda: "Loader.example.org")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    host = one_host(f"http://{f'[{hostname}]' if ':' in hostname else hostname}:8000")
    assert local_hosts([host]) == ([(host.name, place)] if place else [])


def test_this_machines_own_addresses_are_found_and_the_lists_order_stays() -> None:
    own = [
        each.address
        for several in psutil.net_if_addrs().values()
        for each in several
        if each.family == socket.AF_INET
    ]
    # a documentation address (RFC 5737) is nobody's, and a label of 64 characters no name
    places = ["127.0.0.2", "192.0.2.1", *own, f"{'a' * 64}.invalid"]
    hosts = [Host(name=f"h{n}", url=f"http://{place}:8000") for n, place in enumerate(places)]
    expected = [(host.name, place) for host, place in zip(hosts, places, strict=True)]
    assert local_hosts(hosts) == [expected[0], *expected[2:-1]]
    # whoever asks no resolver knows an address, and no name but its own
    names = [one_host(f"http://{word}:9") for word in ("127.0.0.1", "localhost", "some.name")]
    found = local_hosts(names, ask_resolver=False)
    assert found == [("127.0.0.1:9", "127.0.0.1"), ("localhost:9", "localhost")]


def test_the_sentence_names_three_and_counts_the_rest() -> None:
    several = [(name, "::1") for name in "abcde"]
    assert sentence(several[:1]) == "`a` (::1) is on this machine"
    assert sentence(several[:2]) == "`a` (::1) and `b` (::1) are on this machine"
    assert sentence(several) == "`a` (::1), `b` (::1), `c` (::1) and 2 more are on this machine"


# --- what does it lack? -------------------------------------------------------------------------------


def lacks(
    monkeypatch: pytest.MonkeyPatch,
    *,
    files: int | None = None,
    ports: int | None = None,
    free: int | None = None,
    now_s: float = JULY_2025_S,
    **asked: float | None,
) -> list[Lack]:
    monkeypatch.setattr(machine, "open_files_limit", lambda: files)
    monkeypatch.setattr(machine, "ports_for_one_host", lambda: ports)
    monkeypatch.setattr(machine, "free_bytes", lambda _: free)
    monkeypatch.setattr(time, "time", lambda: now_s)
    usual = {"hosts": 1, "users": 1, "processes": 1, "duration_s": 1.0, "newest_s": None}
    return list(machine.lacks(**{**usual, **asked}, database=Path("toolkit.db")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "stops", "text"),
    [
        # a machine that does not say what its limits are lacks nothing
        ({"users": 10**9, "duration_s": 1e12}, None, ""),
        # 1,000 users and 256 files beside them; 1,001 users on 4 processes: 251 in the fullest one, and 256
        ({"files": 1_256, "users": 1_000}, None, ""),
        (
            {"files": 1_255, "users": 1_000},
            True,
            "1,000 users need 1,256 open files in a process, and `ulimit -n` allows 1,255",
        ),
        ({"files": 507, "users": 1_001, "processes": 4}, None, ""),
        ({"files": 506, "users": 1_001, "processes": 4}, True, "1,001 users need 507 open files"),
        # ports are counted for each host
        ({"ports": 28_000, "hosts": 2, "users": 28_000}, None, ""),
        ({"ports": 28_000, "hosts": 2, "users": 28_002}, False, "14,001 users a host need as many"),
        ({"ports": 28_000, "hosts": 2, "users": 56_000}, False, "this machine has only 28,000"),
        ({"ports": 28_000, "hosts": 2, "users": 56_002}, True, "this machine has 28,000"),
        # the bar of 150 MB an hour for twenty hosts: 2,100 B x 20 x 3,600 s = 151.2 MB, and 100 MB beside it
        ({"free": 251_200_000, "hosts": 20, "duration_s": 3600}, None, ""),
        (
            {"free": 251_199_999, "hosts": 20, "duration_s": 3600},
            False,
            "the blast may write 151 MB to the database, where 251 MB are free and 100 MB should stay so",
        ),
        ({"free": 1_000_000, "duration_s": 30}, False, "may write 63 kB to the database"),
        # a clock that begins anew or goes back
        ({"newest_s": JULY_2025_S}, None, ""),
        (
            {"now_s": 3 * DAY_S, "newest_s": JULY_2025_S},
            False,
            "this machine's clock says 1970-01-04 00:00 UTC",
        ),
        (
            {"newest_s": JULY_2025_S + DAY_S},
            False,
            "this machine's clock says 2025-07-01 00:00 UTC, but the last run in the database began at 2025-07-02 00:00 UTC",
        ),
    ],
)
def test_what_is_lacking_is_a_sentence_and_stops_what_would_surely_fail(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], stops: bool | None, text: str
) -> None:
    found = lacks(monkeypatch, **facts)
    assert [one.stops for one in found] == ([] if stops is None else [stops])
    assert all(text in one.text and one.fix for one in found)


def test_the_limits_are_the_systems_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for soft, limit in ((512, 512), (resource.RLIM_INFINITY, None)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, 4096))
        assert machine.open_files_limit() == limit
    file = tmp_path / "range"
    assert machine.ports_for_one_host(file) is None
    for text, ports in (("32768\t60999\n", 28_232), ("5 5\n", 1), ("nonsense\n", None)):
        file.write_text(text)
        assert machine.ports_for_one_host(file) == ports
    # of the nearest folder that is there
    assert (machine.free_bytes(tmp_path / "not" / "there" / "toolkit.db") or 0) > 0
