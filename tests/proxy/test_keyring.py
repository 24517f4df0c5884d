"""Who asks: keys from variables and files, looked up without telling anything of them."""

import pytest

from toolkit.errors import ToolkitError
from toolkit.proxy.keyring import (
    MOST_KEY,
    Keyring,
    bearer,
    from_environment,
    from_file,
    keyring,
    owner,
    refuse_open,
)
from toolkit.proxy.settings import TeamSetting

RED = TeamSetting(name="red", key_env="RED_KEY")
BLUE = TeamSetting(name="blue", key_env="BLUE_KEY")
SECRET = "sk-very-secret-1234567890"
RING = Keyring([("red", "key-of-red"), ("red", "next-of-red"), ("blue", "key-of-blue")])


def complaint(caught: pytest.ExceptionInfo[ToolkitError]) -> str:
    """All that a user would read."""
    return f"{caught.value.message} {caught.value.hint}"


def test_a_key_opens_for_its_team_and_the_next_one_too() -> None:
    assert RING.team(b"Bearer key-of-red") == "red"
    assert RING.team(b"Bearer next-of-red") == "red"
    assert RING.team(b"Bearer key-of-blue") == "blue"
    assert len(RING) == 3


@pytest.mark.parametrize(
    "header",
    [b"bearer key-of-red", b"BEARER key-of-red", b"Bearer  key-of-red", b"Bearer\tkey-of-red", b"Bearer key-of-red \t"],
)  # fmt: skip
def test_the_scheme_may_be_spelled_and_spaced_otherwise(header: bytes) -> None:
    assert RING.team(header) == "red"


@pytest.mark.parametrize(
    "header",
    [
        *(None, b"", b" ", b"Bearer", b"Bearer ", b"Bearer\t\t", b"Bearerkey-of-red", b"key-of-red"),
        *(b"Basic key-of-red", b"Token key-of-red", b" Bearer key-of-red", b"Bearer key-of-red key-of-red"),
        *(b"Bearer key-of-re", b"Bearer key-of-redd", b"Bearer KEY-OF-RED", b"Bearer key-of-red,key-of-blue"),
        *(b"Bearer Bearer key-of-red", b"Bearer \xff\xfe", b"Bearer key-of-red\x00", b"Bearer key-of-red\n"),
        *(b'Bearer "key-of-red"', b"Bearer\xa0key-of-red", b"Bearer key-of-red\r\nx: y", b"Bearer red"),
        b"Bearer " + b"a" * 1_000_000,
        b"Bearer" + b" " * 1_000_000,
    ],
)  # fmt: skip
def test_anything_else_is_nobodys(header: bytes | None) -> None:
    assert RING.team(header) is None


def test_a_key_of_the_greatest_length_works_and_a_longer_one_is_none() -> None:
    longest = "k" * MOST_KEY
    assert Keyring([("red", longest)]).team(f"Bearer {longest}".encode()) == "red"
    assert bearer(f"Bearer {longest}k".encode()) is None
    assert from_file(f"red {longest}", "keys", [RED]) == [("red", longest)]


def test_an_empty_ring_knows_nobody() -> None:
    assert Keyring([]).team(b"Bearer key-of-red") is None


def test_the_ring_keeps_no_key() -> None:
    ring = Keyring([("red", SECRET)])
    assert SECRET not in repr(ring)
    held = repr([getattr(ring, name) for name in Keyring.__slots__])
    assert SECRET not in held
    assert "red" in held


def test_two_teams_with_one_key_are_refused_and_it_is_not_shown() -> None:
    with pytest.raises(ToolkitError) as caught:
        Keyring([("red", SECRET), ("blue", SECRET)])
    assert "`red` and `blue` have one key" in complaint(caught)
    assert SECRET not in complaint(caught)


def test_a_key_that_a_team_has_twice_is_one() -> None:
    assert len(Keyring([("red", SECRET), ("red", SECRET)])) == 1


def test_a_variable_may_hold_several_keys() -> None:
    environ = {"RED_KEY": " old \t new\n", "BLUE_KEY": "b"}
    found = from_environment([RED, BLUE], environ)
    assert found == [("red", "old"), ("red", "new"), ("blue", "b")]


@pytest.mark.parametrize("environ", [{}, {"RED_KEY": ""}, {"RED_KEY": " \n"}])
def test_a_variable_that_is_not_set_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(
        ToolkitError, match="`RED_KEY`, the key of team `red`, is not set"
    ) as caught:
        from_environment([RED], environ)
    assert caught.value.hint == "`export RED_KEY=...`; make one with `openssl rand -hex 24`"


@pytest.mark.parametrize(
    "odd", ["sk-\N{LATIN SMALL LETTER E WITH ACUTE}-secret", "sk\x00secret", "s" * 2000]
)
def test_a_key_that_no_header_could_bear_is_refused_unseen(odd: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        from_environment([RED], {"RED_KEY": odd})
    assert "`RED_KEY` holds a key that no header could bear" in complaint(caught)
    assert odd not in complaint(caught)
    with pytest.raises(ToolkitError) as caught:
        from_file(f"red {odd}", "keys", [RED])
    assert "`keys` line 1" in complaint(caught)
    assert odd not in complaint(caught)


def test_a_team_without_a_variable_of_its_own_is_left_to_the_file() -> None:
    assert from_environment([TeamSetting(name="red")], {}) == []


def test_a_file_holds_a_team_and_a_key_a_line() -> None:
    text = "\ufeff# keys\r\n\nred  one#two   # the first\n\tblue\tthree\nred four\n   # end"
    found = from_file(text, "keys.txt", [RED, BLUE])
    assert found == [("red", "one#two"), ("blue", "three"), ("red", "four")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (SECRET, "`keys.txt` line 2 holds 1 words"),
        (f"red {SECRET} x", "`keys.txt` line 2 holds 3 words"),
        (f"{SECRET} red", "`keys.txt` line 2 begins with no team's name"),
        (f"Red {SECRET}", "`keys.txt` line 2 begins with no team's name"),
        (f"green {SECRET}", "`keys.txt` line 2 begins with no team's name"),
        (f"red={SECRET}", "`keys.txt` line 2 holds 1 words"),
    ],
)
def test_a_bad_line_is_named_and_no_word_of_it_repeated(line: str, problem: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        from_file(f"blue k\n{line}\n", "keys.txt", [RED, BLUE])
    assert caught.value.message == problem
    assert SECRET not in complaint(caught)


def test_a_line_of_an_unknown_team_is_told_which_there_are() -> None:
    for teams, hint in (([RED, BLUE], "red, blue"), ([], "none yet")):
        with pytest.raises(ToolkitError) as caught:
            from_file("green k", "keys", teams)
        assert caught.value.hint == f"Write `TEAM KEY`; the teams are: {hint}"


@pytest.mark.parametrize("mode", [0o100600, 0o600, 0o400, 0o700])
def test_a_file_for_its_owner_alone_will_do(mode: int) -> None:
    refuse_open(mode, "keys.txt")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o610, 0o100644, 0o666])
def test_a_file_that_is_open_to_others_is_refused_with_the_command_that_closes_it(
    mode: int,
) -> None:
    with pytest.raises(ToolkitError) as caught:
        refuse_open(mode, "keys.txt")
    assert caught.value.hint == "`chmod 600 keys.txt`"
    assert f"{mode & 0o777:04o}" in caught.value.message


def test_a_team_without_any_key_is_refused() -> None:
    with pytest.raises(ToolkitError, match="team `blue` has no key"):
        keyring([RED, BLUE], [("red", "r")], secret=b"s")


def test_all_teams_keys_make_one_ring() -> None:
    ring = keyring([RED, BLUE], iter([("red", "r"), ("blue", "b")]), secret=b"s")
    assert (ring.team(b"Bearer r"), ring.team(b"Bearer b")) == ("red", "blue")


def test_a_fingerprint_tells_keys_apart_and_needs_the_secret() -> None:
    one, other = Keyring([("red", "r")], secret=b"1"), Keyring([], secret=b"2" * 100)
    prints = {ring.fingerprint(b"Bearer " + key) for ring in (one, other) for key in (b"r", b"s")}
    assert len(prints) == 4
    assert all(each is not None and len(each) == 8 for each in prints)
    assert one.fingerprint(b"Bearer r") == one.fingerprint(b"bearer  r")
    assert one.fingerprint(b"nonsense") is one.fingerprint(None) is None


def test_answers_belong_to_a_team_or_its_pool_and_a_pool_named_like_a_team_is_not_it() -> None:
    pooled = [TeamSetting(name=name, pool="red") for name in ("a", "b")]
    assert owner(pooled[0]) == owner(pooled[1])
    assert owner(pooled[0]) != owner(RED)
    assert owner(RED) != owner(BLUE)
