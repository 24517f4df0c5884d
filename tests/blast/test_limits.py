"""What a machine must have for a blast: each lack is a sentence, and enough is none."""

import pytest

from toolkit.blast import limits
from toolkit.blast.limits import Concern

JULY_2025_S = 1_751_328_000.0  # 2025-07-01 00:00 UTC: 181 days after 2025 began
DAY_S = 86_400.0


def test_one_open_file_less_than_users_and_spare_ones_stops_the_blast() -> None:
    # 1,000 users and 256 files beside them
    assert limits.open_files(1_256, users=1_000, processes=1) is None
    lacking = limits.open_files(1_255, users=1_000, processes=1)
    assert lacking is not None
    assert lacking.stops
    assert lacking.text == (
        "1,000 users need 1,256 open files in a process, and `ulimit -n` allows 1,255"
    )
    assert "ulimit -n 1256" in lacking.fix


def test_processes_share_the_users_rounded_up() -> None:
    # 1,001 users on 4 processes: 251 in the fullest one, and 256
    assert limits.open_files(507, users=1_001, processes=4) is None
    assert limits.open_files(506, users=1_001, processes=4) is not None


def test_no_limit_is_no_concern() -> None:
    assert limits.open_files(None, users=10**9, processes=1) is None
    assert limits.ports(None, users_per_host=10**9) is None
    assert limits.disk(None, expected_bytes=10**15) is None


@pytest.mark.parametrize(
    ("users", "stops"), [(14_000, None), (14_001, False), (28_000, False), (28_001, True)]
)
def test_ports_are_counted_for_each_host(users: int, stops: bool | None) -> None:
    found = limits.ports(28_000, users_per_host=users)
    assert (found and found.stops) == stops


def test_the_sentence_about_ports_has_both_figures() -> None:
    found = limits.ports(28_000, users_per_host=30_000)
    assert found is not None
    assert found.text == (
        "30,000 users a host need as many ports, and this machine has 28,000 for connections to one host"
    )


def test_growth_is_the_bar_of_150_megabytes_an_hour_for_twenty_hosts() -> None:
    # 2,100 B x 20 x 3,600 s = 151.2 MB
    assert limits.growth_bytes(hosts=20, duration_s=3600) == 151_200_000


def test_a_disk_keeps_a_hundred_megabytes_beside_the_blast() -> None:
    assert limits.disk(302_000_000, expected_bytes=202_000_000) is None
    found = limits.disk(301_999_999, expected_bytes=202_000_000)
    assert found is not None
    assert not found.stops
    assert found.text == (
        "the blast may write 202 MB to the database, where 302 MB are free and 100 MB should stay so"
    )
    # a short blast on a full disk: `0 MB` would make no sense
    small = limits.disk(1_000_000, expected_bytes=60_000)
    assert small is not None
    assert small.text == (
        "the blast may write 60 kB to the database, where 1 MB are free and 100 MB should stay so"
    )


def test_a_clock_that_begins_anew_is_doubted() -> None:
    assert limits.clock(JULY_2025_S, newest_s=None) is None
    found = limits.clock(3 * DAY_S, newest_s=JULY_2025_S)
    assert found is not None
    assert found.text == "this machine's clock says 1970-01-04 00:00 UTC"


def test_a_clock_before_the_last_run_is_doubted() -> None:
    assert limits.clock(JULY_2025_S, newest_s=JULY_2025_S) is None
    found = limits.clock(JULY_2025_S, newest_s=JULY_2025_S + DAY_S)
    assert found is not None
    assert not found.stops
    assert found.text == (
        "this machine's clock says 2025-07-01 00:00 UTC, but the last run in the database began at "
        "2025-07-02 00:00 UTC"
    )


def test_what_stops_the_blast_is_told_first() -> None:
    mild = Concern(about="disk", text="t", fix="f", stops=False)
    grave = Concern(about="ports", text="t", fix="f", stops=True)
    assert limits.known(None, mild, None, grave) == [grave, mild]
    assert limits.known(None, None) == []
