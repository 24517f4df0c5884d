"""What `toolkit blast` says at its end: the strain on this machine, why a load died, how to go on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.blasting import wanted

from toolkit.cli.blast import end as blast_end
from toolkit.cli.blast.drive import Ended
from toolkit.cli.blast.end import resume_command, strain_of
from toolkit.cli.blast.plan import ReadyBlast, plan_of
from toolkit.cli.blast.run import Following, _relay
from toolkit.errors import ToolkitError
from toolkit.records import Event, Host, LoaderSecond, Run
from toolkit.store import Store


def second(at_s: int, worker: str = "0", **changes: Any) -> LoaderSecond:
    return LoaderSecond(run="r", at_s=at_s, worker=worker, **changes)


def blast(**changes: Any) -> ReadyBlast:
    options = wanted(**changes)
    plan = plan_of(options, [Host(name="a", url="http://10.0.0.4:8000")])
    return ReadyBlast(
        options=options, run="r1", plan=plan, keys={"a": "hunter2!"}, not_neutral=None
    )


def failure(code: int, lines: list[str], *, is_begun: bool) -> ToolkitError:
    ended = Ended(code=code, was_stopped=False)
    return blast_end._failure(blast(), ended, lines, is_begun=is_begun)


# --- the strain -------------------------------------------------------------------------------------


def test_a_second_counts_once_however_many_workers_were_at_their_limit() -> None:
    seconds = [
        second(1, "0", limited=True, cpu_share=0.97, lag_ms=12.0),
        second(1, "1", limited=True, cpu_share=0.91, lag_ms=130.0),
        second(2, "0", cpu_share=0.99, lag_ms=500.0),  # not called limited, so not in the figures
        second(3, "0", limited=True, cpu_share=0.5),
        second(4, "0"),
    ]
    strain = strain_of(seconds)
    assert strain is not None
    assert strain.sentence == (
        "this machine was the limit in 2 of 4 s (50%): a process used up to 97% of a core and was up to 130 ms "
        "late. These seconds describe it and not the hosts; use fewer users, more `--processes`, or a quieter "
        "machine"
    )


def test_a_strain_whose_reason_nobody_measured_has_none() -> None:
    strain = strain_of([second(1, limited=True)])
    assert strain is not None
    assert strain.sentence.startswith(
        "this machine was the limit in 1 of 1 s (100%). These seconds"
    )
    lagging = strain_of([second(1, limited=True, lag_ms=80.0)])
    assert lagging is not None
    assert "(100%): a process was up to 80 ms late. These" in lagging.sentence
    busy = strain_of([second(1, limited=True, cpu_share=0.95)])
    assert busy is not None
    assert "(100%): a process used up to 95% of a core. These" in busy.sentence


def test_without_a_limited_second_there_is_no_strain() -> None:
    assert strain_of([]) is None
    assert strain_of([second(1, cpu_share=0.99)]) is None


# --- why it died ------------------------------------------------------------------------------------


def test_what_the_load_refuses_is_told_in_its_own_words() -> None:
    error = failure(1, ["Profile x", "Error: no hosts", "", "Hint: write some"], is_begun=False)
    assert (error.message, error.hint) == ("no hosts", "write some")


def test_a_load_that_fails_without_a_word_of_its_own_is_quoted() -> None:
    error = failure(2, [*map(str, range(20)), "ImportError: no gevent"], is_begun=False)
    assert error.message.startswith(
        "the load ended with exit code 2 before its first request; it said:\n13\n"
    )
    assert error.message.endswith("\nImportError: no gevent")
    assert failure(3, [], is_begun=False).message == (
        "the load ended with exit code 3 before its first request"
    )


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (-9, "was killed by SIGKILL"),
        (-63, "was killed by signal 63"),
        (0, "ended with exit code 0"),
    ],
)
def test_a_load_that_dies_in_the_midst_says_how_and_how_to_go_on(code: int, how: str) -> None:
    error = failure(code, ["Traceback (most recent call last):"], is_begun=True)
    assert error.message == f"the load of run `r1` {how}; what it had counted up to then is kept"
    assert error.hint == "Go on with `toolkit blast --resume r1`"


def test_its_own_error_in_the_midst_is_told_with_the_way_on() -> None:
    error = failure(1, ["Error: the disk is full", "Hint: free some"], is_begun=True)
    assert error.message.startswith(
        "the load of run `r1` ended with exit code 1: the disk is full; "
    )
    assert error.hint.startswith("Go on with")


def test_the_way_on_repeats_what_the_run_does_not_remember() -> None:
    told = blast(hosts=("my hosts.txt",), non_neutral=True, database=Path("other.db"))
    assert resume_command(told) == (
        "toolkit blast 'my hosts.txt' --resume r1 --non-neutral --db other.db"
    )
    told = blast(no_scout=True, insecure=True, ca="our ca.pem")
    assert resume_command(told) == (
        "toolkit blast --resume r1 --no-scout --insecure --ca 'our ca.pem'"
    )
    # the run keeps what its load is, and not how it is looked at
    told = blast(window=300.0, scout_every=0.5)
    assert resume_command(told) == "toolkit blast --resume r1 --window 300s --scout-every 0.5s"


def test_the_board_that_shows_it_again_is_that_of_its_own_file(tmp_path: Path) -> None:
    told = blast(database=tmp_path / "other.db")
    with Store.open(tmp_path / "other.db") as store:
        (kept,) = blast_end._notes(told, store)
    assert f"`toolkit board --run r1 --db {tmp_path}/other.db`" in kept


# --- a run that was to go on ------------------------------------------------------------------------


def test_a_load_that_dies_before_a_closed_run_goes_on_is_a_failure_and_shows_no_old_standings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = blast(database=tmp_path / "t.db", resume="r1")
    start = Event(run="r1", at=10.0, kind="start")
    with Store.open(tmp_path / "t.db") as store:
        store.add_run(Run(id="r1", verb="blast", started_at=10.0))
        store.add_event(start)
        store.end_run("r1", ended_at=20.0, client_ok=True)
        following = Following(told, store)
        assert not following.has_begun()
        lines = ["Error: no port is free", "", "Hint: end some"]

        def told_of(ended: Ended) -> int:
            return blast_end.tell(
                told, store, following.board, ended, lines, has_begun=following.has_begun()
            )

        with pytest.raises(ToolkitError) as caught:
            told_of(Ended(code=1, was_stopped=False))
        assert (caught.value.message, caught.value.hint) == ("no port is free", "end some")
        assert told_of(Ended(code=0, was_stopped=True)) == 130
        assert capsys.readouterr() == ("", "Stopped before the first request\n")
        # it is the new beginning that counts, at whatever moment a clock that was set back places it
        store.add_event(replace(start, at=9.0, kind="resume"))
        assert following.has_begun()


# --- what is passed on ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "Blast of 2 hosts: a, b",
        "Run 3f: 2 users a host, 4 together",
        "Waiting up to 30 s for 2 answers; Ctrl-C leaves them",
        "Error: x",
        "  File x",
        "",
        "KeyboardInterrupt",
        "Fatal Python error: init_import_site: Failed to import the site module",
        "Python runtime state: initialized",
        "2026-11-21T11:34:57Z",
    ],
)
def test_what_is_said_here_already_is_not_passed_on(line: str) -> None:
    said: list[str] = []
    _relay(line, said.append)
    assert said == []


def test_what_only_the_load_knows_is_passed_on() -> None:
    said: list[str] = []
    _relay("The last seconds could not be stored and are lost", said.append)
    assert said == ["The last seconds could not be stored and are lost"]


def test_a_blast_that_is_printed_shows_no_key() -> None:
    assert "hunter2!" not in repr(blast())
