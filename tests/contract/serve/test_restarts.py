"""An engine of `toolkit serve` is killed under its clients: nobody's request is lost, and everybody is told how it goes on."""

import json
import os
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from contract.harness.clients import BODY, Client, ask, request
from contract.harness.programs import gone, rows, run, until
from contract.harness.servers import RECORDED
from contract.harness.stacks import ENGINE, Crowd, Stack, stack

KNOWN = {**BODY, "temperature": 0}
"""Asked before the engine dies, so that its answer is stored."""
STATUS_KEYS = set(
    "name state why kind model served_name preset team gpus url port pid since restarts ready_s kv_cache_tokens"
    " cold_ttft_ms warm_ttft_ms log hit_ratio requests_per_s admin_url proxy_url serve_pid".split()
)
UNKNOWN = {**BODY, "model": "nope"}


def assert_unknown(served: Stack) -> None:
    """A model that nobody serves: what a real vLLM answers, status and body."""
    reply = ask(served.url, UNKNOWN)
    assert reply.status == int((RECORDED / "err_unknown_model.status").read_text()), reply.body
    assert reply.json == json.loads((RECORDED / "err_unknown_model.body").read_bytes())
    assert "retry-after" not in reply.headers


def test_a_killed_engine_costs_its_clients_time_and_no_request(tmp_path: Path) -> None:
    # longer than a start takes on a busy machine: then all wait
    with stack(tmp_path, admission="wait = '2m'") as served:
        assert_unknown(served)
        assert ask(served.url, KNOWN).status == 200
        first = served.engines()["one"]
        with Crowd(served.url, 6) as crowd:
            until(lambda: crowd.answered > 20)
            os.kill(first["pid"], signal.SIGKILL)
            served.program.line(r"one: .*started again")
            at_kill = crowd.answered
            # while the engine starts: what is stored is answered, and what nobody serves is known
            hits = [ask(served.url, KNOWN) for _ in range(20)]
            assert_unknown(served)
            served.program.line(r"one: clients are let in again")
            until(lambda: crowd.answered > at_kill + 40)
            # and by order
            before_order = crowd.answered
            done = run("serve", "restart", "--folder", "serve", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            until(lambda: crowd.answered > before_order + 40)
            # what was stored outlives the engine's restarts: it comes back as what it was
            hits.append(ask(served.url, KNOWN))
        assert {(hit.status, hit.is_hit) for hit in hits} == {(200, True)}
        assert crowd.table == {
            "asked": crowd.asked, "answered": crowd.asked, "refused": 0, "lost": []
        }, served.program.text  # fmt: skip
        again = served.engines()["one"]
        assert (again["state"], again["restarts"], again["pid"] == first["pid"]) == ("up", 2, False)
        assert again.keys() >= STATUS_KEYS
        # a client's own slip is no error of ours, neither counted by kind nor in the ratio that alerts look at
        assert served.total("toolkit_proxy_errors_total") == 0
        assert served.total("toolkit_proxy_requests_total", code="4xx") == 2

        # one that had nothing to say for an hour is still on
        with closing(sqlite3.connect(tmp_path / "toolkit.db", timeout=30)) as database, database:
            database.execute("UPDATE runs SET started_at = started_at - 3600")
            database.execute("UPDATE events SET at = at - 3600")
        listed = rows(run("runs", "--db", "toolkit.db", "--json", cwd=tmp_path).stdout)
        assert [(each["verb"], each["state"]) for each in listed] == [("serve", "on")]

        # SIGTERM: the stream under way is finished, nobody is left, and the exit code is 0
        family = served.engine_processes()
        with Client(served.url) as client:
            client.send(request({**BODY, "max_tokens": 1000, "stream": True, "seed": 7}))
            client._more()
            served.program.process.send_signal(signal.SIGTERM)
            reply = client.reply()
        assert reply.is_whole
        assert reply.body.endswith(b"data: [DONE]\n\n")
        assert served.program.wait() == 0
        assert gone(family)


def test_what_cannot_wait_for_an_engine_is_told_when_to_come_again(tmp_path: Path) -> None:
    # no request waits long, the engine takes 1 s to start and half a second for the first request of each load, and nothing
    # was answered before it dies
    slow = ENGINE + "startup = '1s'\ncold-s = 5\n"
    with stack(tmp_path, slow, admission="wait = '200ms'\nqueue = 4") as served:
        first = served.engines()["one"]
        os.kill(first["pid"], signal.SIGKILL)
        with Crowd(served.url, 8) as crowd:
            served.program.line(r"one: clients are let in again")
            answered = crowd.answered
            until(lambda: crowd.answered > answered + 10)
        assert crowd.lost == []
        assert crowd.asked == crowd.answered + len(crowd.refused), crowd.table
        # it is known how long the start took the last time: 1 s, and 2 loads of half a second
        told = [int(each or 0) for each in crowd.refused]
        assert told, "nobody was refused"
        assert min(told) >= 1
        assert 2 <= max(told) <= 120
        assert served.total("toolkit_proxy_errors_total") == 0
        # some found the queue full
        assert served.total("toolkit_proxy_rejections_total") == len(told)
        assert served.total("toolkit_proxy_rejections_total", reason="restarting") > 0

        # cold and warm are of one load at every start, the lowest
        said = "\n".join(served.program.err)
        first_asked = re.findall(r"one: 1 at once \(cold\): TTFT ([\d.]+) ms", said)
        assert len(first_asked) == 2, said
        assert re.findall(r"one: cold TTFT (\d+) ms", said) == [
            f"{float(each):.0f}" for each in first_asked
        ]

        # kill -9 of serve itself leaves no engine
        family = served.engine_processes()
        assert len(family) >= 2
        served.program.process.kill()
        assert gone(family)
    # the run says so itself: nobody ended it
    listed = rows(run("runs", "--db", "toolkit.db", "--json", cwd=tmp_path).stdout)
    assert [(each["verb"], each["state"]) for each in listed] == [("serve", "cut")]
