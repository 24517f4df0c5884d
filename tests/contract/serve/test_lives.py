"""Engines that hang, die for good, or never start; a serve that is killed, begun twice, or looked after by a service manager."""

import os
import signal
import socket
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from contract.harness.clients import BODY, Client, Reply, ask
from contract.harness.programs import Program, free_port, gone, rows, run, runs, toolkit, until
from contract.harness.stacks import ENGINE, stack, write_stack

KNOWN = {**BODY, "temperature": 0}
"""Asked before, so that its answer is stored."""
HERE = ("--folder", "serve")
OTHER = ENGINE.replace('"one"', '"two"').replace('"tiny"', '"other"')


def test_one_that_hangs_is_started_again_and_one_that_falls_too_often_stays_down(
    tmp_path: Path,
) -> None:
    # as long as one that is well may take on a busy machine
    guard = "backoff = '100ms'\nstuck = '3s'\nanswer = '3s'\nask = '3s'\nrestarts = 1"
    with stack(tmp_path, guard=guard) as served:
        assert ask(served.url, KNOWN).status == 200
        first = served.engines()["one"]
        # it takes connections and answers none of them
        os.kill(first["pid"], signal.SIGSTOP)
        served.program.line(r"one: no page for .*, and no token .*started again")
        assert ask(served.url, KNOWN).is_hit
        served.program.line(r"one: clients are let in again")
        second = served.engines()["one"]
        assert (second["state"], second["restarts"]) == ("up", 1)
        assert not runs(first["pid"])

        os.kill(second["pid"], signal.SIGKILL)
        served.program.line(r"one: stays down: 1 restarts within 600 s: a crash loop")
        third = until(lambda: (now := served.engines()["one"])["state"] == "down" and now)
        assert "crash loop" in third["why"]
        assert third["pid"] is None or not runs(third["pid"])
        # what is stored is answered still, and all else is told so at once
        assert ask(served.url, KNOWN).is_hit
        assert ask(served.url, {**BODY, "seed": 1}).status in (502, 503)
        # until somebody has it tried again
        done = run("serve", "restart", *HERE, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert ask(served.url, {**BODY, "seed": 2}).status == 200
        assert served.engines()["one"]["restarts"] == 2
        table = run("serve", "status", *HERE, cwd=tmp_path)
        assert "one" in table.stdout
        assert "up" in table.stdout
        assert served.url in table.stdout + table.stderr


def test_of_several_engines_those_that_can_serve_do_and_one_that_fell_is_not_replaced_by_another(
    tmp_path: Path,
) -> None:
    bad = OTHER.replace('"two"', '"bad"').replace("gptq-int4", "nobody")
    with stack(tmp_path, ENGINE, OTHER, bad, admission="wait = '2m'") as served:
        # they may share a GPU: each begins once the one before is warm
        said = "\n".join(served.program.err)
        assert said.index("one: cold TTFT") < said.index("two: ready after")
        told = served.engines()
        assert {name: each["state"] for name, each in told.items()} == {
            "one": "up", "two": "up", "bad": "down"
        }  # fmt: skip
        assert "nobody" in told["bad"]["why"]
        assert ask(served.url, {**BODY, "model": "other"}).status == 200
        assert "name the engine" in run("serve", "restart", *HERE, cwd=tmp_path).stderr

        # a second one in the same folder is refused, and told who has it
        second = run("serve", "--sim", "awq", "--port", 0, "--no-preflight", *HERE, cwd=tmp_path)
        assert second.returncode == 1
        assert f"another serve (pid {served.program.process.pid}) runs in `serve`" in second.stderr
        assert served.engines()["one"]["pid"] == told["one"]["pid"]

        # a second Ctrl-C ends it at once; its engines end all the same
        family = served.engine_processes()
        served.program.process.send_signal(signal.SIGSTOP)
        served.program.process.send_signal(signal.SIGINT)
        served.program.process.send_signal(signal.SIGCONT)
        served.program.line("Ending")
        served.program.process.send_signal(signal.SIGINT)
        assert served.program.wait() in (0, 130)
        assert gone(family)


def test_where_no_engine_comes_up_the_cause_is_the_error(tmp_path: Path) -> None:
    file = write_stack(tmp_path, ENGINE.replace("gptq-int4", "nobody"))
    done = run("serve", file, *HERE, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert "nobody" in error
    # somebody else listens where it is to stand: nobody may take that for the engine
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        file = write_stack(tmp_path, f"port = {port}\n{ENGINE}")
        done = run("serve", file, *HERE, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot listen on port {port}" in done.stderr


def stored_rows(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "serve" / "proxy-cache.db", timeout=30)) as file:
        return int(file.execute("SELECT count(*) FROM answers").fetchone()[0])


def test_what_a_killed_serve_left_is_ended_by_the_next_and_other_words_show_no_stored_answer(
    tmp_path: Path,
) -> None:
    with stack(tmp_path) as served:
        assert ask(served.url, KNOWN).status == 200
        # a kill may cost what was answered within the last second
        until(lambda: stored_rows(tmp_path) > 0)
        engine = psutil.Process(served.engines()["one"]["pid"])
        reaper = engine.parent()
        assert reaper is not None
        # nobody is left who could end the engine: neither serve nor its reaper
        reaper.suspend()
        served.program.process.kill()
        reaper.kill()
        served.program.wait()
        assert runs(engine.pid)
        words = ("serve", tmp_path / "stack.toml", *HERE)
        with toolkit(*words, cwd=tmp_path) as again:
            url = again.line(r"Ready: clients on (\S+);")[1]
            again.line(rf"its engine `one.a` \(pid {engine.pid}\) is ended now")
            assert not runs(engine.pid)
            # the same words answer the same
            assert ask(url, KNOWN).is_hit
            # a closed terminal ends it in order
            assert again.end(signal.SIGHUP) == 0
    text = (tmp_path / "stack.toml").read_text()
    (tmp_path / "stack.toml").write_text(text.replace("[engine.flags]", "[engine.flags]\nseed = 5"))
    with toolkit(*words, cwd=tmp_path) as other:
        url = other.line(r"Ready: clients on (\S+);")[1]
        assert not ask(url, KNOWN).is_hit
    listed = rows(run("runs", "--db", "toolkit.db", "--json", cwd=tmp_path).stdout)
    assert sorted(each["state"] for each in listed) == ["cut", "cut", "ended"]


def test_what_is_stored_is_answered_from_the_first_moment_and_all_else_once_an_engine_is_warm(
    tmp_path: Path,
) -> None:
    port = free_port()
    file = write_stack(tmp_path, ENGINE + "startup = '5s'\n", admission="wait = '2m'")
    file.write_text(file.read_text().replace("[proxy]\nport = 0", f"[proxy]\nport = {port}"))
    url = f"http://127.0.0.1:{port}"

    def known() -> Reply | None:
        # a hit takes no seconds; what is no hit waits for the engine, and is asked again
        try:
            with Client(url, timeout_s=5.0) as client:
                return client.ask(KNOWN)
        except OSError:
            return None

    with toolkit("serve", file, *HERE, cwd=tmp_path) as first:
        first.line(r"Ready: clients on")
        assert ask(url, KNOWN).status == 200
        assert first.end(signal.SIGTERM) == 0
    with toolkit("serve", file, *HERE, cwd=tmp_path) as again, ThreadPoolExecutor() as threads:
        # it starts as long as is wanted here, however busy the machine is
        starting = until(lambda: [each for each in again.family() if "--startup" in each.cmdline()])
        for each in starting:
            each.suspend()
        assert until(known).is_hit
        new = threads.submit(ask, url, {**BODY, "seed": 1})
        (loading,) = rows(run("serve", "status", "--json", *HERE, cwd=tmp_path).stdout)
        hit = until(known)
        # not a word that it is ready, and no engine that could have answered
        assert (hit.is_hit, loading["state"], again.out) == (True, "starting", [])
        assert not new.done()
        for each in starting:
            each.resume()
        again.line(r"Ready: clients on")
        reply = new.result()
        assert (reply.status, reply.is_hit) == (200, False)


def test_a_service_manager_hears_that_it_begins_serves_lives_and_ends(tmp_path: Path) -> None:
    heard: list[str] = []
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)

        def hears(word: str) -> str:
            while True:
                heard.append(manager.recv(4096).decode())
                if word in heard[-1]:
                    return heard[-1]

        env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000000"}
        file = write_stack(tmp_path)
        with toolkit("serve", file, *HERE, cwd=tmp_path, env=env) as served:
            assert "STATUS=Starting" in hears("EXTEND_TIMEOUT_USEC=")
            ready = hears("READY=1")
            assert f"MAINPID={served.process.pid}" in ready
            assert not any("WATCHDOG=1" in each for each in heard)
            alive = hears("WATCHDOG=1")
            assert "one up" in alive
            # what it starts is not to speak for it
            engine = rows(run("serve", "status", "--json", *HERE, cwd=tmp_path).stdout)[0]
            assert "NOTIFY_SOCKET" not in psutil.Process(engine["pid"]).environ()
            assert served.end(signal.SIGTERM) == 0
            hears("STOPPING=1")


def test_an_engine_behind_a_key_and_one_without_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "secret-word")
    keyed = 'key_env = "ENGINE_KEY"\n' + ENGINE
    with stack(tmp_path, keyed) as served:
        engine = served.engines()["one"]
        # clients need none, the engine is asked with it, and nobody sees it
        assert ask(served.url).status == 200
        assert ask(engine["url"]).status == 401
        assert "secret-word" not in served.program.text
        assert not any(
            "secret-word" in word for each in served.engine_processes() for word in each.cmdline()
        )
    text = (tmp_path / "stack.toml").read_text()
    head, _, rest = text.partition("[proxy]")
    (tmp_path / "stack.toml").write_text("proxy = false\n" + head + rest[rest.index("[warm]") :])
    with toolkit("serve", tmp_path / "stack.toml", *HERE, cwd=tmp_path) as alone:
        url = alone.line(r"Ready: clients on (\S+);")[1]
        assert ask(url, key="secret-word").status == 200
        (told,) = rows(run("serve", "status", "--json", *HERE, cwd=tmp_path).stdout)
        assert (told["proxy_url"], told["admin_url"], told["hit_ratio"]) == (url, None, None)


def front_workers(program: Program) -> list[psutil.Process]:
    """The proxy's processes beside serve's own."""
    return [each for each in program.family()[1:] if "toolkit.cli.proxy.worker" in each.cmdline()]


def test_a_front_worker_that_dies_comes_back_and_no_engine_notices(tmp_path: Path) -> None:
    file = write_stack(tmp_path)
    file.write_text(file.read_text().replace("[proxy]\n", "[proxy]\nworkers = 2\n"))
    with toolkit("serve", file, *HERE, cwd=tmp_path) as served:
        url = served.line(r"Ready: clients on (\S+);")[1]
        (before,) = rows(run("serve", "status", "--json", *HERE, cwd=tmp_path).stdout)
        assert ask(url, KNOWN).status == 200
        killed = front_workers(served)[-1]
        killed.kill()
        served.line(rf"Worker .*{killed.pid}.*SIGKILL.*started again")
        until(
            lambda: (
                killed.pid not in {each.pid for each in front_workers(served)}
                and front_workers(served)
            )
        )
        until(lambda: ask(url, KNOWN).is_hit)
        for seed in range(10):
            until(lambda seed=seed: ask(url, {**BODY, "seed": seed}).status == 200)
        (after,) = rows(run("serve", "status", "--json", *HERE, cwd=tmp_path).stdout)
        assert (after["pid"], after["since"], after["state"]) == (
            before["pid"],
            before["since"],
            "up",
        )
        family = served.family()[1:]
        assert served.end(signal.SIGTERM) == 0
        assert gone(family)
