"""kill -9 of a blast, of one of its workers and of who reads along: at most a second is lost, the file is sound, the run goes on."""

import re
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from contract.harness.blasts import by_requests, recount
from contract.harness.clients import get
from contract.harness.databases import is_sound, select
from contract.harness.fleets import Fleet, fleet
from contract.harness.programs import rows, run, toolkit, until
from contract.harness.servers import Asked, answer, chat, server

LOAD = "--non-neutral --rate 10 --users 20 --no-scout --max-tokens 4 --processes 2".split()


def answered(servers: Fleet) -> dict[str, int]:
    """What each server has counted as answered in full, by its own metrics page."""
    told = {}
    for name, url in servers.urls.items():
        page = get(url, "/metrics").body.decode()
        samples = re.findall(
            r'^vllm:request_success_total\{[^}]*finished_reason="(?:stop|length)"[^}]*\} (\S+)',
            page,
            re.MULTILINE,
        )
        told[name] = round(sum(map(float, samples)))
    return told


def when_still(servers: Fleet) -> dict[str, int]:
    """The same, once nothing more ends."""
    seen = [answered(servers)]

    def is_still() -> bool:
        seen.append(answered(servers))
        return seen[-1] == seen[-2]

    until(is_still, step_s=0.5)
    return seen[-1]


def kept(file: Path) -> dict[str, int]:
    """What the file holds as answered, canaries too."""
    found = select(
        file,
        "SELECT name, sum(ok) AS ok FROM tallies JOIN hosts ON hosts.id = host_id GROUP BY name",
    )
    return {each["name"]: each["ok"] for each in found}


def newest(file: Path) -> int:
    """The last second in the file."""
    if not file.is_file():
        return 0
    try:
        return int(select(file, "SELECT coalesce(max(at_s), 0) AS at_s FROM tallies")[0]["at_s"])
    except Exception:  # noqa: BLE001 (its tables are being made)
        return 0


def check_recount(file: Path, run_id: str, cwd: Path) -> list[dict[str, Any]]:
    """The board is what the file's rows add up to."""
    told = rows(run("board", "--json", "--db", file, cwd=cwd).stdout)
    at_s, seconds = told[0]["at"], told[0]["counted_s"]
    counted = recount(file, run_id, at_s - 899, at_s)
    for one in told:
        assert one["run"] == run_id
        for key, figure in counted[one["name"]].figures(seconds).items():
            assert one[key] == (None if figure is None else pytest.approx(figure, rel=1e-9)), key
    assert {one["name"]: (one["rank"], one["tied"]) for one in told} == by_requests(counted)
    return told


def test_kills_cost_at_most_a_second_and_never_the_file_and_the_run_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "blast.db"
    with fleet({"a": "gptq-int4", "b": "gptq-int4"}) as servers:
        hosts = servers.write(tmp_path)
        words = ("blast", hosts, *LOAD, "--db", file)
        with toolkit(*words, "--duration", "120s", cwd=tmp_path) as blast:
            began_s = until(lambda: newest(file))
            with toolkit("board", "--watch", "--json", "--db", file, cwd=tmp_path) as reader:
                reader.line(r'"name"')
                reader.end(signal.SIGKILL)

            # a worker: a process that has no children and no others below it, of which there are two
            family = blast.family()
            parents = {each.ppid() for each in family}
            workers = [each for each in family[1:] if each.pid not in parents]
            assert len(workers) >= 2, blast.text
            workers[-1].kill()
            killed_s = int(time.time())
            until(lambda: newest(file) >= killed_s + 3)
            assert is_sound(file)

            # the whole of it, once the file holds the second after those that were counted here
            owed, owed_s = answered(servers), int(time.time())
            until(lambda: newest(file) > owed_s, step_s=0.02)
            # those that load before the command, which would else have them end in order
            for each in reversed(blast.family()):
                each.kill()
        assert is_sound(file)
        held, truth = kept(file), when_still(servers)
        # the worker's unfinished second is lost, that is 10 requests a second and host, and up to 20 under way, shared by two
        assert all(held[name] >= owed[name] - 20 for name in owed), (held, owed, blast.text)
        assert all(held[name] <= truth[name] for name in owed), (held, truth)
        seconds = {each["at_s"] for each in select(file, "SELECT at_s FROM loader_seconds")}
        assert seconds >= set(range(began_s, owed_s + 1))
        (listed,) = rows(run("runs", "--json", "--db", file, cwd=tmp_path).stdout)
        assert (listed["verb"], listed["ended_at"]) == ("blast", None)
        check_recount(file, listed["run"], tmp_path)

        # it goes on, and an orderly end loses nothing
        done = run(*words, "--resume", listed["run"], "--duration", "4s", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        gained = {name: kept(file)[name] - held[name] for name in held}
        assert gained == {name: count - truth[name] for name, count in when_still(servers).items()}
        told = check_recount(file, listed["run"], tmp_path)
        assert [(one["name"], one["ok"]) for one in rows(done.stdout)] == [
            (one["name"], one["ok"]) for one in told
        ]
        assert all(one["ended"] for one in told)


def test_a_killed_blast_knows_whom_it_was_to_ask_and_one_that_goes_on_has_no_end(
    tmp_path: Path,
) -> None:
    """Of one host nothing was heard before the kill; then as if the run had been ended, and another loader took it up again."""
    file = tmp_path / "blast.db"

    def silent(asked: Asked) -> None:
        asked.is_gone(60)

    def states() -> list[tuple[str, int, bool]]:
        listed = rows(run("runs", "--json", "--db", file, cwd=tmp_path).stdout)
        return [(each["state"], each["hosts"], each["ended_at"] is None) for each in listed]

    models = answer({"object": "list", "data": [{"id": "tiny", "object": "model"}]})
    with (
        server({"/v1/models": models, "*": silent}) as mute,
        server({"/v1/models": models, "*": chat()}) as well,
    ):
        (tmp_path / "hosts.txt").write_text(f"mute {mute.url}\nwell {well.url}\n")
        load = "--non-neutral --rate 5 --users 4 --no-scout --mix 0 --canaries 0 --duration 120s"
        words = ("blast", "hosts.txt", *load.split(), "--db", file)
        with toolkit(*words, cwd=tmp_path) as blast:
            until(lambda: newest(file))
            for each in reversed(blast.family()):
                each.kill()
        board = rows(run("board", "--json", "--db", file, cwd=tmp_path).stdout)
        assert {one["name"]: (one["ok"] > 0, one["errors"]) for one in board} == {
            "well": (True, 0),
            "mute": (False, 0),
        }
        # for a while nobody can tell a run that was killed from one that is on
        assert [each[1:] for each in states()] == [(2, True)]

        before = newest(file)
        with closing(sqlite3.connect(file, timeout=30)) as database, database:
            database.execute("UPDATE runs SET ended_at = started_at + 1")
        assert states() == [("ended", 2, False)]
        with toolkit(*words, "--resume", board[0]["run"], cwd=tmp_path) as blast:
            until(lambda: newest(file) > before)
            assert states() == [("on", 2, True)]
            for each in reversed(blast.family()):
                each.kill()
    assert [each[1:] for each in states()] == [(2, True)]
