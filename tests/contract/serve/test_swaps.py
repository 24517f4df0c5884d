"""`toolkit serve swap`: another engine takes the place of one under its clients, and what stands in the way changes nothing."""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from contract.harness.clients import BODY, Client, ask, request
from contract.harness.databases import select
from contract.harness.programs import gone, run, runs, toolkit, until
from contract.harness.stacks import ENGINE, Crowd, Stack, stack

KNOWN = {**BODY, "temperature": 0}
"""Asked before, so that its answer is stored."""
HERE = ("--folder", "serve")


def swap(served: Stack, *words: object, answer: str = "") -> str:
    """Swap, and what it said; it must have done it."""
    done = run("serve", "swap", *words, *HERE, cwd=served.folder, stdin=answer)
    assert done.returncode == 0, done.stderr
    return done.stderr


def refused(served: Stack, *words: object, answer: str = "") -> str:
    """Give an order that is not carried out; what it said."""
    done = run("serve", *words, *HERE, cwd=served.folder, stdin=answer)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    return done.stderr


def is_stored(served: Stack) -> bool:
    reply = ask(served.url, KNOWN)
    assert reply.status == 200, reply.body
    return reply.is_hit


def test_a_successor_takes_over_without_a_gap_and_its_answers_are_its_own(tmp_path: Path) -> None:
    with stack(tmp_path) as served:
        first = served.engines()["one"]
        assert not is_stored(served)
        with Crowd(served.url, 4) as crowd:
            until(lambda: crowd.answered > 10)
            # more at a time is the same engine to whoever asks: what is stored holds
            swap(served, "--set", "max-num-seqs=32")
            second = served.engines()["one"]
            assert is_stored(served)
            # other dice are other answers, though no page of the engine tells; who is in the midst of one gets all of it
            with Client(served.url) as client:
                client.send(
                    request(
                        {**BODY, "max_tokens": 4000, "ignore_eos": True, "stream": True, "seed": 7}
                    )
                )
                swap(served, "--set", "seed=5")
                reply = client.reply()
            assert reply.is_whole
            assert reply.body.endswith(b"data: [DONE]\n\n")
            assert not is_stored(served)
            # and another model is another; clients go on calling it what they did
            swap(served, "one", "--model", "awq")
            third = served.engines()["one"]
            assert not is_stored(served)
            # one that does not come up changes nothing
            said = refused(served, "swap", "--set", "no-such-setting=1")
            assert "no_such_setting" in said
            assert served.engines()["one"] | {"hit_ratio": 0, "requests_per_s": 0} == third | {
                "hit_ratio": 0,
                "requests_per_s": 0,
            }
            assert is_stored(served)
            answered = crowd.answered
            until(lambda: crowd.answered > answered + 10)
        assert crowd.table == {
            "asked": crowd.asked, "answered": crowd.asked, "refused": 0, "lost": []
        }, served.program.text  # fmt: skip
        # they stand in two places in turn, and nobody is left in the other one
        assert first["port"] != third["port"] == second["port"]
        assert len({each["pid"] for each in (first, second, third)}) == 3
        assert [runs(each["pid"]) for each in (first, second, third)] == [0, 0, 1]
        assert (third["model"], third["served_name"], third["state"]) == ("awq", "tiny", "up")
        # whoever took over is watched, too
        os.kill(third["pid"], signal.SIGKILL)
        served.program.line(r"one: clients are let in again")
        assert ask(served.url, {**BODY, "seed": 3}).status == 200
        assert "there is no engine `two`" in refused(served, "swap", "two", "--model", "fp8")
        assert "--model" in run("serve", "swap", *HERE, cwd=tmp_path).stderr
        served.program.end(signal.SIGTERM)
    events = select(
        tmp_path / "toolkit.db", "SELECT * FROM events WHERE run_number IS NOT NULL ORDER BY at"
    )
    models = [each["text"] for each in events if each["kind"] == "model"]
    assert models == [
        "--max-num-seqs - -> 32", "--seed - -> 5", "gptq-int4 -> awq"
    ]  # fmt: skip


def test_where_there_is_no_room_beside_it_a_swap_has_a_gap_and_asks_first(tmp_path: Path) -> None:
    alone = "spare_port = 'none'\n" + ENGINE
    with stack(tmp_path, alone, admission="wait = '2m'") as served:
        first = served.engines()["one"]
        assert not is_stored(served)
        said = refused(served, "swap", "--model", "awq", answer="n\n")
        assert "There will be a gap" in said
        assert "Error rate" in said
        assert served.engines()["one"]["pid"] == first["pid"]

        # who asks meanwhile waits
        with Crowd(served.url, 3) as crowd:
            until(lambda: crowd.answered > 5)
            assert "in its place" in swap(served, "--model", "awq", answer="y\n")
            assert not is_stored(served)
            second = served.engines()["one"]
            # one that does not come up in the place of the old one has the old one started again
            said = refused(served, "swap", "--set", "no-such-setting=1", "--yes")
            assert "no_such_setting" in said
            assert "the one before serves again" in said
            answered = crowd.answered
            until(lambda: crowd.answered > answered + 5)
        assert crowd.lost == []
        assert crowd.refused == []
        third = served.engines()["one"]
        assert (second["model"], second["port"]) == ("awq", first["port"])
        assert (third["model"], third["state"], third["port"]) == ("awq", "up", first["port"])
        assert is_stored(served)

        # while somebody measures it wants to be meant
        blast = ("blast", served.url, "--users", 1, "--duration", "60s", "--db", "toolkit.db")
        with toolkit(*blast, "--non-neutral", "--max-tokens", 4, cwd=tmp_path):

            def seconds() -> int:
                with closing(sqlite3.connect(tmp_path / "toolkit.db", timeout=30)) as database:
                    (found,) = database.execute("SELECT count(*) FROM loader_seconds").fetchone()
                    return int(found)

            until(lambda: seconds() > 0)
            for words in (("swap", "--model", "fp8"), ("restart",)):
                assert "a blast is on" in refused(served, *words)
            done = run("serve", "restart", "--yes", *HERE, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        assert served.engines()["one"]["pid"] not in {
            each["pid"] for each in (first, second, third)
        }


def test_one_order_at_a_time_and_the_end_waits_for_none(tmp_path: Path) -> None:
    with stack(tmp_path) as served:
        # the first of them waits for a successor that never says it is ready
        slow = ("swap", "--set", "startup=10m")
        with toolkit("serve", *slow, *HERE, cwd=tmp_path) as waiting:
            waiting.line(r"one: the new engine starts beside the old one")
            assert "is being swapped" in refused(served, "restart")
            until(lambda: len(served.engine_processes()) > 2)
            family = served.engine_processes()
            done = run("serve", "stop", *HERE, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert waiting.wait() == 1
            assert served.program.wait() == 0
            assert gone(family)
        assert "no serve runs in `serve`" in refused(served, "status")
