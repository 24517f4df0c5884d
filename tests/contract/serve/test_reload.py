"""`toolkit serve reload`: other limits, teams, times to live and upstreams, while clients ask on over their connections."""

import itertools
from pathlib import Path

import pytest
from contract.harness.clients import BODY, Client, ask
from contract.harness.programs import run, toolkit, until
from contract.harness.servers import chat, server
from contract.harness.stacks import ENGINE, Crowd, Stack, write_stack

HERE = ("--folder", "serve")


@pytest.mark.parametrize("workers", [1, 2])
def test_what_the_file_says_of_the_proxy_holds_from_then_on_and_nobody_s_request_is_lost(
    tmp_path: Path, workers: int
) -> None:
    file = write_stack(tmp_path, ENGINE)
    first = file.read_text().replace("[proxy]\n", f"[proxy]\nworkers = {workers}\n")
    (tmp_path / "keys").touch(mode=0o600)
    file.write_text(first)

    def reload(text: str) -> str:
        """With another file; what it said."""
        file.write_text(text)
        done = run("serve", "reload", *HERE, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def refused(text: str) -> str:
        file.write_text(text)
        done = run("serve", "reload", *HERE, cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        return done.stderr

    with toolkit("serve", file, *HERE, cwd=tmp_path) as running, server({}) as other:
        url = running.line(r"Ready: clients on (\S+);")[1]
        served = Stack(running, url, "", tmp_path)
        before = served.engines()["one"]
        other.pages["*"] = chat("I am another")
        named = f'[[proxy.upstream]]\nname = "other"\nurl = "{other.url}"\nprobes = false\n'
        with Crowd(url, 4, stays=True) as clients:
            until(lambda: clients.answered > 20)
            # nothing else: nothing happens
            reload(first)
            # a time to live: what is stored from now on is kept no longer
            reload(first + "[proxy.cache]\nttl = '1s'\n")
            known = {**BODY, "seed": 77_000_000}
            assert not ask(url, known).is_hit
            until(lambda: not ask(url, known).is_hit)
            # a limit
            reload(
                first.replace("[proxy.admission]\n", "[proxy.admission]\nmax_output_tokens = 30\n")
            )
            until(lambda: ask(url, {**BODY, "max_tokens": 31, "seed": 1}).status == 400)
            reload(first)
            until(lambda: ask(url, {**BODY, "max_tokens": 31, "seed": 1}).status == 200)
            # another server beside the engine, and away again
            reload(first + named)
            numbers = itertools.count(10_000)
            until(lambda: ask(url, {**BODY, "seed": next(numbers)}).text == "I am another")
            reload(first)
            answered = clients.answered
            until(lambda: clients.answered > answered + 20)
            texts = {ask(url, {**BODY, "seed": 20_000 + n}).text for n in range(10)}
            assert "I am another" not in texts
            # what only a restart can change is refused, and all else of that file, too
            tight = first.replace(
                "[proxy.admission]\n", "[proxy.admission]\nmax_output_tokens = 3\n"
            )
            assert "`workers` can't be changed" in refused(
                tight.replace("workers = ", "workers = 1")
            )
            assert "toolkit serve swap" in refused(tight.replace("0.1", "0.2"))
            assert "another" in refused(tight.replace("rounds = 2", "rounds = 3"))
            assert refused("nonsense")
            assert ask(url, {**BODY, "max_tokens": 31, "seed": 2}).status == 200
        assert (clients.lost, clients.refused) == ([], [])

        # keys: of those that ask on over a connection of theirs, too
        (tmp_path / "keys").write_text("red one-key\nred another-key\n")
        team = first.replace("[proxy]\n", '[proxy]\nkeys_file = "keys"\n')
        team += "[[proxy.team]]\nname = 'red'\n"
        with Client(url) as client:
            assert client.ask().status == 200
            reload(team)
            until(lambda: client.ask().status == 401)
            until(lambda: client.ask(key="one-key").status == 200)
            assert client.ask(key="one-key").status == 200
            (tmp_path / "keys").write_text("red another-key\n")
            reload(team)
            until(lambda: client.ask(key="one-key").status == 401)
            assert ask(url, key="another-key").status == 200
        after = served.engines()["one"]
        assert (after["pid"], after["since"]) == (before["pid"], before["since"])


def test_without_a_serve_or_a_proxy_there_is_nothing_to_reload(tmp_path: Path) -> None:
    done = run("serve", "reload", *HERE, cwd=tmp_path)
    assert done.returncode == 1
    assert "no serve runs in `serve`" in done.stderr
    # a file only says where its serve runs
    (tmp_path / "stack.toml").write_text(f"folder = 'there'\n[[engine]]\n{ENGINE}")
    done = run("serve", "reload", "stack.toml", cwd=tmp_path)
    assert done.returncode == 1
    assert "no serve runs in `there`" in done.stderr
