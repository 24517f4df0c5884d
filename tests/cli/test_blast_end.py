"""What `toolkit blast` says at its end: the strain on this machine, why a load died, how to go on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import feeder

from toolkit.cli.blast.progress import StoredBlast
from toolkit.cli.blast.verb import _show_end, resume_command, strain_of
from toolkit.errors import ToolkitError
from toolkit.records import Event, LoaderSecond, Run
from toolkit.store import Store


def second(at_s: int, worker: str = "0", **changes: Any) -> LoaderSecond:
    return LoaderSecond(run="r", at_s=at_s, worker=worker, **changes)


# --- the strain -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "strain"),
    [
        ([], None),
        ([second(1, cpu_share=0.99)], None),
        # a second counts once, however many workers were at their limit; what is not called limited is in no figure
        (
            [
                second(1, "0", limited=True, cpu_share=0.97, lag_ms=12.0),
                second(1, "1", limited=True, cpu_share=0.91, lag_ms=130.0),
                second(2, "0", cpu_share=0.99, lag_ms=500.0),
                second(3, "0", limited=True, cpu_share=0.5),
                second(4, "0"),
            ],
            "this machine was the limit in 2 of 4 s (50%): a process used up to 97% of a core and was up to 130 ms late. ",
        ),
        # a reason that nobody measured is none
        ([second(1, limited=True)], "this machine was the limit in 1 of 1 s (100%). "),
        (
            [second(1, limited=True, lag_ms=80.0)],
            "this machine was the limit in 1 of 1 s (100%): a process was up to 80 ms late. ",
        ),
    ],
)
def test_the_strain_is_the_seconds_in_which_this_machine_was_the_limit(
    seconds: list[LoaderSecond], strain: str | None
) -> None:
    rest = "These seconds describe it and not the hosts; use fewer users, more `--processes`, or a quieter machine"
    assert strain_of(seconds) == (strain and strain + rest)


# --- how to go on ------------------------------------------------------------------------------------


def test_the_way_on_repeats_what_the_run_does_not_remember() -> None:
    usual = Path("data/toolkit.db")
    assert resume_command(("my hosts.txt",), "r1", database=Path("other.db"), non_neutral=True) == (
        "toolkit blast 'my hosts.txt' --resume r1 --non-neutral --db other.db"
    )
    assert resume_command(
        (), "r1", database=usual, no_scout=True, insecure=True, ca="our ca.pem"
    ) == ("toolkit blast --resume r1 --no-scout --insecure --ca 'our ca.pem'")
    # the run keeps what its load is, and not how it is looked at
    assert resume_command((), "r1", database=usual, window=300.0, scout_every=0.5) == (
        "toolkit blast --resume r1 --window 300s --scout-every 0.5s"
    )


# --- a run that was to go on ------------------------------------------------------------------------


def test_a_load_that_dies_before_a_closed_run_goes_on_is_a_failure_and_shows_no_old_standings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = Event(run="r1", at=10.0, kind="start")
    with Store.open(tmp_path / "t.db") as store:
        store.add_run(Run(id="r1", verb="blast", started_at=10.0))
        store.add_event(start)
        store.end_run("r1", ended_at=20.0, client_ok=True)
        stored = StoredBlast(store, "r1", window_s=900.0)
        assert not stored.has_begun()

        def ended(code: int, *, was_stopped: bool) -> int:
            return _show_end(
                store,
                stored,
                code,
                ["Error: no port is free", "", "Hint: end some"],
                was_stopped=was_stopped,
                database=tmp_path / "t.db",
                not_neutral=None,
                again="toolkit blast --resume r1",
                as_json=False,
                is_demo=False,
            )

        with pytest.raises(ToolkitError) as caught:
            ended(1, was_stopped=False)
        assert (caught.value.message, caught.value.hint) == ("no port is free", "end some")
        assert ended(0, was_stopped=True) == 130
        assert capsys.readouterr() == ("", "Stopped before the first request\n")
        # it is the new beginning that counts, at whatever moment a clock that was set back places it
        store.add_event(replace(start, at=9.0, kind="resume"))
        assert stored.has_begun()


def test_the_last_table_tells_that_there_was_a_reveal_and_neither_its_terms_nor_its_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database, began = tmp_path / "t.db", feeder.BEGAN
    feeder.begin(database, "r1", started_s=began, seconds=30)
    with Store.open(database) as store:
        stored = StoredBlast(store, "r1", window_s=900.0)
        for at, kind in ((0, "start"), (10, "freeze"), (11, "reveal"), (12, "uncover")):
            text = '{"presenter": "abc"}' if kind == "reveal" else ""
            store.add_event(Event(run="r1", at=began + at, kind=kind, text=text))
        store.end_run("r1", ended_at=began + 30, client_ok=True)
        code = _show_end(
            store,
            stored,
            0,
            [],
            was_stopped=True,
            database=database,
            not_neutral=None,
            again="toolkit blast --resume r1",
            as_json=False,
            is_demo=False,
        )
    shown = capsys.readouterr().out
    assert code == 130
    assert "reveal" in shown
    assert "uncover" not in shown
    assert "presenter" not in shown
