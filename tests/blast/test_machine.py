"""Who is on the machine that makes the load, and what that machine lacks for a blast."""

import resource
import socket
import time
from pathlib import Path

import pytest

from toolkit.blast import machine
from toolkit.blast.machine import Lack, local_hosts, place_here, routes_to, sentence
from toolkit.hosts import one_host
from toolkit.records import Host

JULY_2025_S = 1_751_328_000.0  # 2025-07-01 00:00 UTC: 181 days after 2025 began
DAY_S = 86_400.0


# --- is a host on it? ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hostname", "routes", "place"),
    [
        ("10.0.0.4", [("10.0.0.4", "10.0.0.9")], None),
        ("gpu.example", [("192.0.2.7", "10.0.0.9")], None),
        ("gpu.example", [("192.0.2.7", None)], None),
        # loopback is here whatever the system says
        *[
            ("some.name", [(address, None)], address)
            for address in ("127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1")
        ],
        # so is an address that packets to it would leave from
        *[
            ("gpu.example", [(address, address)], address)
            for address in ("10.0.0.9", "2001:db8::9", "fe80::9%eth0")
        ],
        ("gpu.example", [("2001:DB8:0::9", "2001:db8::9")], "2001:DB8:0::9"),
        ("gpu.example", [("192.0.2.7", "10.0.0.9"), ("10.0.0.9", "10.0.0.9")], "10.0.0.9"),
        # names and addresses that need no look-up
        *[
            (name, [], name)
            for name in (
                "localhost",
                "LOCALHOST",
                "api.localhost",
                "localhost.",
                "127.0.0.1",
                "::1",
                "Loader",
            )
        ],
        *[(name, [], None) for name in ("notlocalhost", "localhost.example", "loader.example")],
    ],
)
def test_a_host_is_here_by_its_address_or_its_name(
    hostname: str, routes: list[tuple[str, str | None]], place: str | None
) -> None:
    assert place_here(hostname, routes, {"loader"}) == place


def test_packets_to_loopback_leave_from_loopback() -> None:
    assert routes_to("127.0.0.1") == [("127.0.0.1", "127.0.0.1")]


def test_the_way_to_a_name_is_the_way_to_its_addresses_unless_nobody_is_asked() -> None:
    assert {address for address, _ in routes_to("localhost")} in (
        {"127.0.0.1"},
        {"::1"},
        {"127.0.0.1", "::1"},
    )
    assert routes_to("localhost", ask_resolver=False) == []
    assert routes_to("127.0.0.1", ask_resolver=False) != []
    assert routes_to(f"{'a' * 64}.invalid") == []


def test_hosts_here_keep_the_order_of_the_list_and_their_names() -> None:
    addresses = {"c": "127.0.0.1", "far": "192.0.2.1", "a": "127.0.0.2", "b": "127.0.0.1"}
    hosts = [Host(name=name, url=f"http://{place}:8000") for name, place in addresses.items()]
    assert local_hosts(hosts) == [("c", "127.0.0.1"), ("a", "127.0.0.2"), ("b", "127.0.0.1")]


def test_an_address_of_an_interface_is_found_to_be_our_own() -> None:
    """The one that packets to a documentation address (RFC 5737) would bear; loopback's where there is no way."""
    ((_, source),) = routes_to("192.0.2.1")
    own = source or "127.0.0.1"
    assert local_hosts([Host(name="self", url=f"http://{own}:8000")]) == [("self", own)]
    assert local_hosts([one_host("http://192.0.2.1:9")]) == []


def test_a_machine_is_known_by_its_short_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Loader.example.org")
    hosts = [one_host(f"http://{name}:9") for name in ("loader.example.org", "LOADER", "other")]
    found = local_hosts(hosts, ask_resolver=False)
    assert [place for _, place in found] == ["loader.example.org", "loader"]


def test_the_sentence_names_three_and_counts_the_rest() -> None:
    several = [(name, "::1") for name in "abcde"]
    assert sentence(several[:1]) == "`a` (::1) is on this machine"
    assert sentence(several[:2]) == "`a` (::1) and `b` (::1) are on this machine"
    assert sentence(several[:3]) == "`a` (::1), `b` (::1) and `c` (::1) are on this machine"
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


def test_a_machine_that_does_not_tell_its_limits_lacks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lacks(monkeypatch, users=10**9, duration_s=1e12) == []


def test_one_open_file_less_than_users_and_spare_ones_stops_the_blast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 1,000 users and 256 files beside them
    assert lacks(monkeypatch, files=1_256, users=1_000) == []
    (lacking,) = lacks(monkeypatch, files=1_255, users=1_000)
    assert lacking.stops
    assert (
        lacking.text
        == "1,000 users need 1,256 open files in a process, and `ulimit -n` allows 1,255"
    )
    assert "ulimit -n 1256" in lacking.fix
    # 1,001 users on 4 processes: 251 in the fullest one, and 256
    assert lacks(monkeypatch, files=507, users=1_001, processes=4) == []
    assert len(lacks(monkeypatch, files=506, users=1_001, processes=4)) == 1


@pytest.mark.parametrize(
    ("users", "stops"), [(28_000, []), (28_002, [False]), (56_000, [False]), (56_002, [True])]
)
def test_ports_are_counted_for_each_host(
    monkeypatch: pytest.MonkeyPatch, users: int, stops: list[bool]
) -> None:
    found = lacks(monkeypatch, ports=28_000, hosts=2, users=users)
    assert [lack.stops for lack in found] == stops
    assert all(f"{users // 2:,} users a host need as many ports" in lack.text for lack in found)


def test_a_disk_keeps_a_hundred_megabytes_beside_the_blast(monkeypatch: pytest.MonkeyPatch) -> None:
    # the bar of 150 MB an hour for twenty hosts: 2,100 B x 20 x 3,600 s = 151.2 MB
    assert lacks(monkeypatch, free=251_200_000, hosts=20, duration_s=3600) == []
    assert lacks(monkeypatch, free=251_199_999, hosts=20, duration_s=3600) == [
        Lack(
            "the blast may write 151 MB to the database, where 251 MB are free and 100 MB should stay so",
            "Free some space, or put the database elsewhere with `--db`",
        )
    ]
    # a short blast on a full disk: `0 MB` would make no sense
    (small,) = lacks(monkeypatch, free=1_000_000, duration_s=30)
    assert small.text.startswith("the blast may write 63 kB to the database, where 1 MB are free")


def test_a_clock_that_begins_anew_or_goes_back_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lacks(monkeypatch) == lacks(monkeypatch, newest_s=JULY_2025_S) == []
    (anew,) = lacks(monkeypatch, now_s=3 * DAY_S, newest_s=JULY_2025_S)
    assert anew.text == "this machine's clock says 1970-01-04 00:00 UTC"
    (back,) = lacks(monkeypatch, newest_s=JULY_2025_S + DAY_S)
    assert not back.stops
    assert back.text == (
        "this machine's clock says 2025-07-01 00:00 UTC, but the last run in the database began at "
        "2025-07-02 00:00 UTC"
    )


def test_the_soft_limit_of_open_files_is_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"soft": 512}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits["soft"], 4096))
    assert machine.open_files_limit() == 512
    limits["soft"] = resource.RLIM_INFINITY
    assert machine.open_files_limit() is None


@pytest.mark.parametrize(
    ("text", "ports"),
    [("32768\t60999\n", 28_232), ("5 5\n", 1), ("nonsense\n", None), (None, None)],
)
def test_both_ends_of_the_port_range_count(
    tmp_path: Path, text: str | None, ports: int | None
) -> None:
    file = tmp_path / "range"
    if text is not None:
        file.write_text(text)
    assert machine.ports_for_one_host(file) == ports


def test_free_space_is_that_of_the_nearest_folder_that_is_there(tmp_path: Path) -> None:
    free = machine.free_bytes(tmp_path / "not" / "there" / "toolkit.db")
    assert free is not None
    assert free > 0
