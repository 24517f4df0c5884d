"""Where answers are kept: how long, in how much room, through a restart, in a file that is damaged, another's or gone, and until a purge."""

import itertools
import json
import os
import random
import signal
import sqlite3
import stat
import threading
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import BODY, CHAT, Client, ask
from contract.harness.databases import is_sound, select
from contract.harness.programs import run, until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Asked, Server, chat, server

COUNT = "select count(*) as n from answers"
KIB = 2**10
MIB = 2**20


def other(number: int, **more: Any) -> dict[str, Any]:
    return BODY | {"seed": number} | more


def noise(number: int, size: int = 64 * KIB) -> str:
    """A text that no packing makes much smaller."""
    return random.Random(number).randbytes(size // 2).hex()


class Engine:
    """Says which seed it was asked for and how often it has been, and `size` characters of noise; streamed where that is wanted."""

    def __init__(self, size: int = 0) -> None:
        self.size, self.asked = size, 0

    def __call__(self, asked: Asked) -> None:
        self.asked += 1
        seed = json.loads(asked.body).get("seed", 0)
        asked.send(chat(f"{seed} {self.asked} {noise(seed, self.size)}"))


def filed(folder: Path, wanted: int) -> Path:
    """The cache file, once so many answers are in it: they are written behind the answers' backs."""
    file = folder / "data" / "proxy-cache.db"
    until(lambda: count(file) == wanted)
    return file


def count(file: Path) -> int:
    """Of the answers in it; one that is made anew has no tables yet."""
    with suppress(sqlite3.OperationalError):
        return int(select(file, COUNT)[0]["n"])
    return -1


def is_stored(door: Proxy, number: int, **more: Any) -> bool:
    """Whether there is an answer; none is asked for."""
    body = other(number, **more)
    return ask(door.url, body, headers=["cache-control: only-if-cached"]).is_hit


def test_an_answer_lives_as_long_as_the_settings_say_in_memory_and_in_the_file(
    tmp_path: Path,
) -> None:
    engine = Engine()
    with server({"*": engine}) as upstream:
        with proxy(upstream.url, '[cache]\nttl = "40m"\n', cwd=tmp_path) as door:
            ask(door.url)
            with Client(door.url) as client:
                for _ in range(4):
                    told = client.ask().headers
                    left = int(told["cache-status"].partition("ttl=")[2])
                    assert 2400 - 600 < left <= 2400
                    assert int(told["age"]) <= 2400 - left + 1
            row = select(filed(tmp_path, 1), "select ends_at - put_at as life from answers")
            assert row[0]["life"] == pytest.approx(2400, abs=1)
        # one that is over is gone, from memory, and from the file for who starts then
        for settings in ('[cache]\nttl = "1s"\n', '[cache]\nttl = "1s"\nfile = "none"\n'):
            with proxy(upstream.url, settings, cwd=tmp_path) as door:
                first = ask(door.url, other(1)).text
                until(lambda door=door, first=first: ask(door.url, other(1)).text != first)
        with sqlite3.connect(tmp_path / "data" / "proxy-cache.db") as file:
            file.execute("update answers set ends_at = put_at")
        with proxy(upstream.url, cwd=tmp_path) as door:
            assert not is_stored(door, 1)
            until(lambda: select(tmp_path / "data" / "proxy-cache.db", COUNT) == [{"n": 0}])


@pytest.mark.parametrize("file", ["data/proxy-cache.db", "none"])
def test_a_purge_lets_go_what_it_names_and_says_how_many(tmp_path: Path, file: str) -> None:
    teams = "".join(f'[[team]]\nname = "{n}"\nkey_env = "{n.upper()}"\n' for n in ("red", "blue"))
    settings = f'[cache]\nfile = "{file}"\n{teams}'
    keys = {"RED": "red-key", "BLUE": "blue-key"}
    has_file = file != "none"
    with (
        server({"*": Engine()}) as upstream,
        proxy(upstream.url, settings, cwd=tmp_path, env=keys) as door,
    ):
        those = [(team, model) for team in ("red", "blue") for model in ("tiny", "big")]

        def hits() -> set[tuple[str, str]]:
            only = ["cache-control: only-if-cached"]
            return {
                (team, model)
                for team, model in those
                if ask(door.url, BODY | {"model": model}, key=f"{team}-key", headers=only).is_hit
            }

        def purged(what: object) -> int:
            for team, model in those:
                ask(door.url, BODY | {"model": model}, key=f"{team}-key")
            assert hits() == set(those)
            said = ask(door.admin, what, path="/purge")
            assert said.status == 200, said.body
            return int(said.json["purged"])

        # without a file nothing knows whose an answer is: all go
        assert purged({"team": "red"}) == (2 if has_file else 4)
        assert hits() == ({("blue", "tiny"), ("blue", "big")} if has_file else set())
        assert purged({"model": "big"}) == (2 if has_file else 4)
        assert hits() == ({("red", "tiny"), ("blue", "tiny")} if has_file else set())
        one = {"request": {"team": "red", "path": CHAT, "body": BODY | {"model": "tiny"}}}
        assert purged(one) == 1
        assert hits() == {each for each in those if each != ("red", "tiny")}
        assert purged({"all": True}) == 4
        assert hits() == set()


def test_a_purge_by_team_costs_no_other_team_an_answer_that_is_stored_meanwhile(
    tmp_path: Path,
) -> None:
    """The purge has to wait for the file, and ends while another team is being answered."""
    teams = "".join(f'[[team]]\nname = "{n}"\nkey_env = "{n.upper()}"\n' for n in ("red", "blue"))
    keys = {"RED": "red-key", "BLUE": "blue-key"}
    with server({"*": Engine()}) as upstream, proxy(upstream.url, teams, cwd=tmp_path, env=keys) as door:  # fmt: skip
        ask(door.url, other(0), key="red-key")
        file, asked, said = filed(tmp_path, 1), itertools.count(1), []
        with closing(sqlite3.connect(file, isolation_level=None)) as raw:
            raw.execute("begin immediate")
            purge = {"team": "red"}
            purging = threading.Thread(
                target=lambda: said.append(ask(door.admin, purge, path="/purge").json)
            )
            purging.start()
            for number in asked:
                assert ask(door.url, other(number), key="blue-key").status == 200
                if number == 5:
                    raw.execute("rollback")
                if not purging.is_alive():
                    break
        assert said == [{"purged": 1}]
        for number in range(1, next(asked)):
            assert ask(door.url, other(number), key="blue-key").is_hit
        assert not ask(door.url, other(0), key="red-key").is_hit


def test_the_file_is_its_owner_s_and_one_that_others_could_read_is_taken_from_them(
    tmp_path: Path,
) -> None:
    def modes() -> dict[str, int]:
        return {
            each.name: stat.S_IMODE(each.stat().st_mode)
            for each in (tmp_path / "data").glob("proxy-cache.db*")
        }

    before = os.umask(0)
    try:
        with server({"*": Engine()}) as upstream:
            with proxy(upstream.url, cwd=tmp_path) as door:
                ask(door.url)
                filed(tmp_path, 1)
                assert modes() == {f"proxy-cache.db{end}": 0o600 for end in ("", "-wal", "-shm")}
            (tmp_path / "data" / "proxy-cache.db").chmod(0o644)
            with proxy(upstream.url, cwd=tmp_path) as door:
                door.program.line(r"could be read by others \(mode 644\)")
                assert set(modes().values()) == {0o600}
                assert ask(door.url).is_hit
    finally:
        os.umask(before)


@pytest.mark.parametrize("damage", ["noise", "half", "version"])
def test_a_damaged_file_is_set_aside_and_said_and_never_answers_wrongly(
    tmp_path: Path, damage: str
) -> None:
    numbers = range(60)
    with server({"*": Engine(4 * KIB)}) as upstream:
        with proxy(upstream.url, cwd=tmp_path) as door:
            for number in numbers:
                ask(door.url, other(number))
            file = filed(tmp_path, len(numbers))
            assert door.program.end(signal.SIGTERM) == 0
        if damage == "noise":
            file.write_bytes(random.Random(7).randbytes(100_000))
        elif damage == "half":
            os.truncate(file, file.stat().st_size // 2)
        else:
            with closing(sqlite3.connect(file)) as raw:
                raw.execute("pragma user_version = 99")
                raw.commit()
        with proxy(upstream.url, cwd=tmp_path) as door:
            for number in numbers:
                answer = ask(door.url, other(number))
                assert answer.text.startswith(f"{number} ")
                assert answer.text.endswith(noise(number, 4 * KIB))
            door.program.line(r"proxy-cache.db` .*set aside as `proxy-cache.db.broken-1`")
            until((tmp_path / "data" / "proxy-cache.db.broken-1").exists)
            until(lambda: all(is_stored(door, number) for number in numbers))
            ask(door.url, other(1000))
            until(lambda: count(file) > 0)
    assert is_sound(file)


def test_an_answer_in_the_file_of_which_one_byte_was_changed_is_none(tmp_path: Path) -> None:
    numbers = range(40)
    with server({"*": Engine(2 * KIB)}) as upstream:
        with proxy(upstream.url, cwd=tmp_path) as door:
            for number in numbers:
                ask(door.url, other(number))
            file = filed(tmp_path, len(numbers))
            assert door.program.end(signal.SIGTERM) == 0
        with closing(sqlite3.connect(file)) as raw:
            rows = raw.execute("select id, value from answers").fetchall()
            for place, (row, value) in enumerate(rows):
                spoilt = bytearray(value)
                spoilt[len(spoilt) * place // len(rows)] ^= 1
                raw.execute("update answers set value = ? where id = ?", (bytes(spoilt), row))
            raw.commit()
        with proxy(upstream.url, cwd=tmp_path) as door:
            for number in numbers:
                answer = ask(door.url, other(number))
                assert (answer.status, answer.is_hit) == (200, False)
        assert len(upstream.asked) == 2 * len(numbers)


def test_a_file_that_is_another_s_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "proxy-cache.db"
    words = ("proxy", "--upstream", "http://127.0.0.1:9", "--port", 0)
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("create table answers (key)")
        raw.commit()
    before = file.read_bytes()
    said = run(*words, cwd=tmp_path)
    assert (said.returncode, file.read_bytes()) == (1, before)
    assert "database of another program" in said.stderr
    said = run(*words, "--cache-file", "data", cwd=tmp_path)
    assert said.returncode == 1
    assert "`data` is a folder" in said.stderr
    os.mkfifo(tmp_path / "pipe")
    said = run(*words, "--cache-file", "pipe", cwd=tmp_path)
    assert said.returncode == 1
    assert "is a device or a pipe" in said.stderr


def test_a_file_that_is_deleted_or_locked_meanwhile_costs_no_answer(tmp_path: Path) -> None:
    with server({"*": Engine()}) as upstream, proxy(upstream.url, cwd=tmp_path) as door:
        ask(door.url, other(1))
        file = filed(tmp_path, 1)
        for each in file.parent.glob("proxy-cache.db*"):
            each.unlink()
        assert ask(door.url, other(1)).is_hit
        ask(door.url, other(2))
        filed(tmp_path, 1)
        with closing(sqlite3.connect(file, isolation_level=None)) as raw:
            raw.execute("begin immediate")
            ask(door.url, other(3))
            assert ask(door.url, other(3)).is_hit
            assert is_stored(door, 2)
            raw.execute("rollback")
        filed(tmp_path, 2)


def test_the_file_holds_as_much_as_it_may_and_the_newest(tmp_path: Path) -> None:
    settings = '[cache]\nfile_size = "4MiB"\n'
    numbers = range(120)  # 64 KiB of noise in hex each: some 36 KB packed, 4.2 MB in all
    with server({"*": Engine(64 * KIB)}) as upstream:
        with proxy(upstream.url, settings, cwd=tmp_path) as door:
            file = tmp_path / "data" / "proxy-cache.db"
            for number in [*numbers, *range(120, 180)]:
                ask(door.url, other(number))
            until(lambda: door.total("toolkit_proxy_cache_bytes", layer="disk") > 3 * MIB)
            assert door.program.end(signal.SIGTERM) == 0
        assert file.stat().st_size <= 4.5 * MIB
        held = select(file, COUNT)[0]["n"]
        assert 105 < held < 125
        with proxy(upstream.url, settings, cwd=tmp_path) as door:
            found = [number for number in range(180) if is_stored(door, number)]
            assert found == list(range(180 - held, 180))


def test_kill_9_of_a_proxy_whose_file_is_full_costs_no_room_and_no_answer_but_the_newest(
    tmp_path: Path,
) -> None:
    """Twice in the midst of storing and letting go: the file is sound, within its size, right in every answer, and goes on."""
    settings = '[cache]\nfile_size = "4MiB"\nmemory = "1MiB"\n'
    file, numbers, said = tmp_path / "data" / "proxy-cache.db", itertools.count(), {}

    def gone() -> int:
        """How many answers the file has let go, the oldest first: each one's model is its number."""
        least = "SELECT coalesce(min(CAST(model AS INTEGER)), 0) AS n FROM answers"
        with suppress(sqlite3.OperationalError):
            return int(select(file, least)[0]["n"])
        return 0

    def numbered(number: int) -> dict[str, Any]:
        return other(number, model=str(number))

    with server({"*": Engine(64 * KIB)}) as upstream:

        def go_on(door: Proxy) -> None:
            with suppress(OSError):
                for number in numbers:
                    told = ask(door.url, numbered(number))
                    # or it was killed in the midst of it
                    if told.is_whole:
                        said[number] = told.text

        for _ in range(2):
            with proxy(upstream.url, settings, cwd=tmp_path) as door:
                asking = threading.Thread(target=go_on, args=(door,))
                asking.start()
                before = gone()
                until(lambda before=before: gone() > before + 60)
                door.program.process.kill()
                asking.join()
            assert is_sound(file)
            assert file.stat().st_size <= 4.5 * MIB
        with proxy(upstream.url, settings, cwd=tmp_path) as door:
            held = []
            for number, text in said.items():
                found = ask(door.url, numbered(number), headers=["cache-control: only-if-cached"])
                if found.is_hit:
                    held.append(number)
                    assert found.text == text
            # as full as it may be, and the oldest were let go
            assert 60 < len(held) < 125
            assert min(held) >= 60
            before = gone()
            for number in itertools.islice(numbers, 40):
                said[number] = ask(door.url, numbered(number)).text
            until(lambda: is_stored(door, number, model=str(number)) and gone() >= before + 20)
        assert is_sound(file)
        assert file.stat().st_size <= 4.5 * MIB


def test_memory_holds_as_much_as_it_may_and_what_is_asked_for_again(tmp_path: Path) -> None:
    settings = '[cache]\nmemory = "4MiB"\nfile = "none"\n'
    engine = Engine(64 * KIB)
    with server({"*": engine}) as upstream, proxy(upstream.url, settings, cwd=tmp_path) as door:
        for number in range(1, 300):
            ask(door.url, other(number))
            assert ask(door.url, other(0)).text.startswith("0 ")
        held = door.total("toolkit_proxy_cache_bytes", layer="memory")
        assert 1.5 * MIB < held <= 4 * MIB
        # each of 299 others was asked for once, this one again and again
        assert engine.asked == 300
        assert is_stored(door, 299)
        assert not is_stored(door, 1)


def test_an_answer_larger_than_may_be_stored_is_not(tmp_path: Path) -> None:
    settings = '[cache]\nmax_answer = "64KiB"\n'
    with server({"*": Engine(80 * KIB)}) as upstream, proxy(upstream.url, settings, cwd=tmp_path) as door:  # fmt: skip
        for _ in range(2):
            assert ask(door.url).text.endswith(noise(0, 80 * KIB))
        assert len(upstream.asked) == 2


def test_what_one_proxy_stored_another_on_its_file_finds(tmp_path: Path) -> None:
    """Also what is stored once both run, and after all was purged."""
    settings = f'[cache]\nfile = "{tmp_path}/cache.db"\n'
    with ExitStack() as stack:
        upstream: Server = stack.enter_context(server({"*": Engine()}))
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        one, two = (
            stack.enter_context(proxy(upstream.url, settings, cwd=tmp_path / name))
            for name in ("one", "two")
        )
        for round_number in range(3):
            said = [ask(one.url, other(number)).text for number in range(20)]
            for number in range(20):
                until(lambda number=number: is_stored(two, number))
                assert ask(two.url, other(number)).text == said[number]
            assert two.total("toolkit_proxy_hits_total", layer="disk") >= 20 * (round_number + 1)
            assert not is_stored(two, 100 + round_number)
            for door in (one, two):
                ask(door.admin, {"all": True}, path="/purge")
        assert len(upstream.asked) == 60
