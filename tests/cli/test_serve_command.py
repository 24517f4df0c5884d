"""`toolkit serve` with the simulator for an engine: the whole stack as a user runs it."""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from support.served import FAST, ONE, Crowd, runs, serving, stack_file, wait_until

from toolkit.records import LoaderSecond, Run
from toolkit.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_door_opens_once_all_are_warm_and_what_was_told_says_so(tmp_path: Path) -> None:
    with serving(tmp_path, str(stack_file(tmp_path, ONE))) as served:
        served.until_open()
        # the URL comes on the other stream
        served.until_said("Ready: clients on")
        said = "\n".join(served.said)
        assert said.index("ready after") < said.index("cold TTFT") < said.index("Ready: clients on")
        assert served.ask("hello", model="qwen")[0] == 200
        engine = served.engines()["one"]
        assert (engine["state"], engine["restarts"], engine["served_name"]) == ("up", 0, "qwen")
        # the simulator's blocks: 1,097 of 16 tokens
        assert engine["kv_cache_tokens"] == 17_552
        assert engine["cold_ttft_ms"] > 0 < engine["warm_ttft_ms"]
        table = served.order("status").stdout
        assert "17,552" in table
        assert served.url in table
        second = served.order("run", "--sim", "gptq-int4")
        assert second.returncode == 1
        assert f"pid {served.process.pid}" in second.stderr
        stopped = served.order("stop")
        assert stopped.returncode == 0, stopped.stderr
        assert served.process.wait(10) == 0
    with Store.open_readonly(tmp_path / "toolkit.db") as store:
        (run,) = store.runs(verb="serve")
        told = [event.text for _, event in store.events(run.id)]
    assert run.ended_at is not None
    assert told[0].startswith("ready after ")
    assert "warm TTFT" in told[1]
    assert json.loads(run.settings)["engines"][0]["model"] == "gptq-int4"


def test_an_engine_that_is_killed_comes_back_warm_and_hits_are_answered_all_the_while(
    tmp_path: Path,
) -> None:
    more = "[guard]\nbackoff = '1s'\nlook = '200ms'"
    with serving(tmp_path, str(stack_file(tmp_path, ONE, more=more))) as served:
        served.until_open()
        assert served.ask("known", model="qwen", temperature=0)[0] == 200
        before = served.engines()["one"]
        with Crowd(served, "qwen", text="known").asking(1) as crowd:
            os.kill(before["pid"], signal.SIGKILL)
            served.until_said("is started again")
            during = len(crowd.answers)
            wait_until(lambda: served.engines()["one"]["state"] == "up")
            assert len(crowd.answers) > during
        # the same words started it: what was stored holds still, in the outage and after
        assert set(crowd.answers) == {(200, "hit")}
        assert served.ask("known", model="qwen", temperature=0)[1]["cache-status"].count("hit") == 1
        after = served.engines()["one"]
        assert (after["restarts"], after["pid"] == before["pid"]) == (1, False)
        assert served.ask("unknown", model="qwen")[0] == 200
    with Store.open_readonly(tmp_path / "toolkit.db") as store:
        (run,) = store.runs(verb="serve")
        kinds = [event.kind for _, event in store.events(run.id) if event.run]
    assert kinds.count("restart") == 1


def test_a_swap_under_load_fails_no_request(tmp_path: Path) -> None:
    with serving(tmp_path, str(stack_file(tmp_path, ONE))) as served:
        served.until_open()
        served.ask("known", model="qwen")
        before = served.engines()["one"]
        with Crowd(served, "qwen").asking(2) as crowd:
            done = served.order("swap", "--model", "awq")
            assert done.returncode == 0, done.stderr
            asked = len(crowd.answers)
            wait_until(lambda: len(crowd.answers) > asked + 20)
        assert {status for status, _ in crowd.answers} == {200}
        after = served.engines()["one"]
        assert (after["model"], after["state"], after["served_name"]) == ("awq", "up", "qwen")
        assert not runs(before["pid"])
        # another model's answer is not given for this one's
        assert served.ask("known", model="qwen")[1]["cache-status"].count("hit") == 0
        # and back again, to the place where the first one was
        back = served.order("swap", "one", "--model", "gptq-int4", "--in-place", "--yes")
        assert back.returncode == 0, back.stderr
        assert served.ask("a new one", model="qwen")[0] == 200


def test_a_swap_during_a_blast_or_with_a_gap_wants_to_be_meant(tmp_path: Path) -> None:
    with serving(tmp_path, str(stack_file(tmp_path, ONE))) as served:
        served.until_open()
        pid = served.engines()["one"]["pid"]
        asked = served.order("swap", "--model", "awq", "--in-place", answer="n\n")
        assert asked.returncode == 1
        assert "There will be a gap" in asked.stderr
        assert "Error rate" in asked.stderr
        with Store.open(tmp_path / "toolkit.db") as store:
            now = int(time.time())
            store.add_run(Run(id="b1a57", verb="blast", started_at=now))
            store.add_loader_seconds([LoaderSecond(run="b1a57", at_s=now, worker="w")])
        for words in (["swap", "--model", "awq"], ["restart"]):
            refused = served.order(*words)
            assert refused.returncode == 1
            assert "a blast is on (run `b1a57`)" in refused.stderr
        assert served.engines()["one"]["pid"] == pid
        restarted = served.order("restart", "--yes")
        assert restarted.returncode == 0, restarted.stderr
        assert served.engines()["one"]["pid"] != pid
    with Store.open_readonly(tmp_path / "toolkit.db") as store:
        texts = [event.text for _, event in store.events("b1a57")]
    # whoever looks at the blast's board sees it
    assert texts == ["one: restarted by order"]


def test_after_kill_9_the_next_serve_finds_and_ends_what_was_left(tmp_path: Path) -> None:
    stack = str(stack_file(tmp_path, ONE))
    with serving(tmp_path, stack) as served:
        served.until_open()
        served.ask("known", model="qwen")
        engine = served.engines()["one"]["pid"]
        keeper = psutil.Process(engine).parent()
        assert keeper is not None
        # nobody is left who could end the engine: neither serve nor its keeper
        keeper.suspend()
        served.process.kill()
        keeper.kill()
        served.process.wait()
        assert runs(engine)
    with serving(tmp_path, stack) as served:
        served.until_open()
        assert f"its engine `one.a` (pid {engine}) is ended now" in "\n".join(served.said)
        assert not runs(engine)
        assert served.ask("known", model="qwen")[1]["cache-status"].count("hit") == 1


def test_a_closed_terminal_ends_it_in_order(tmp_path: Path) -> None:
    with serving(tmp_path, str(stack_file(tmp_path, ONE))) as served:
        served.until_open()
        engine = served.engines()["one"]["pid"]
        served.process.send_signal(signal.SIGHUP)
        assert served.process.wait(60) == 0
        assert not runs(engine)
    with Store.open_readonly(tmp_path / "toolkit.db") as store:
        (run,) = store.runs(verb="serve")
    assert run.ended_at is not None


def test_of_several_engines_one_that_cannot_start_keeps_none_from_serving(tmp_path: Path) -> None:
    engines = (
        FAST.format("red", "red-model"),
        FAST.format("blue", "blue-model"),
        FAST.format("bad", "bad-model").replace("gptq-int4", "nobody"),
    )
    more = "[guard]\nrestarts = 0\nlook = '200ms'"
    with serving(tmp_path, str(stack_file(tmp_path, *engines, more=more))) as served:
        served.until_open()
        told = served.engines()
        assert [told[name]["state"] for name in ("red", "blue", "bad")] == ["up", "up", "down"]
        assert "nobody" in told["bad"]["why"]
        for name in ("red-model", "blue-model"):
            assert served.ask("hello", model=name)[0] == 200
        # no restart is allowed: the first fall is a crash loop, which the others do not feel
        os.kill(told["red"]["pid"], signal.SIGKILL)
        assert "toolkit serve restart red" in served.until_said("stays down")
        assert served.engines()["red"]["state"] == "down"
        assert served.ask("hello", model="red-model")[1]["cache-status"].count("hit") == 1
        assert served.ask("how are you", model="blue-model")[0] == 200
        which = served.order("restart")
        assert "name the engine" in which.stderr
        assert served.order("restart", "red").returncode == 0
        assert served.ask("how are you", model="red-model")[0] == 200


def test_where_no_engine_comes_up_the_cause_is_the_error(tmp_path: Path) -> None:
    stack = stack_file(tmp_path, ONE.replace("gptq-int4", "nobody"))
    with serving(tmp_path, str(stack)) as served:
        assert served.process.wait(60) == 1
    errors = [line for line in served.said if line.startswith("Error: ")]
    assert len(errors) == 1
    assert "nobody" in errors[0]
    assert served.url == ""
