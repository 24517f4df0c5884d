"""The teams' keys in a file and in variables: which are taken, and what is refused in words that show none of them."""

from pathlib import Path

import pytest
from contract.harness.programs import run

SECRET = "sk-very-secret-1234567890"
TEAMS = """keys_file = "keys.txt"
[[upstream]]
url = "http://10.0.0.4:8000"
[[team]]
name = "red"
[[team]]
name = "blue"
key_env = "BLUE"
"""
CASES = [
    # the file, its mode, the variable, what the error and its hint name; none: it is taken
    ("\ufeff# keys\r\n\nred  one#two   # the first\n\tred\tthree\n   # end", 0o600, f"old {SECRET}", ()),
    (f"red {'k' * 1024}", 0o400, SECRET, ()),
    (f"red {SECRET}\nred {SECRET}", 0o600, "b", ()),
    (f"red {SECRET}", 0o640, "b", ("`keys.txt` holds keys and is open to others", "0640", "`chmod 600 keys.txt`")),
    (f"red {SECRET}", 0o604, "b", ("open to others", "0604")),
    ("", 0o600, "b", ("team `red` has no key", "`key_env`", "`keys_file`")),
    (f"red a\n{SECRET}", 0o600, "b", ("`keys.txt` line 2 holds 1 words", "`TEAM KEY`")),
    (f"red {SECRET} x", 0o600, "b", ("`keys.txt` line 1 holds 3 words",)),
    (f"{SECRET} red", 0o600, "b", ("`keys.txt` line 1 begins with no team's name", "red, blue")),
    (f"Red {SECRET}", 0o600, "b", ("`keys.txt` line 1 begins with no team's name",)),
    (f"red {SECRET}\N{LATIN SMALL LETTER E WITH ACUTE}", 0o600, "b", ("`keys.txt` line 1 holds a key that no header", "openssl")),
    (f"red {SECRET * 50}", 0o600, "b", ("`keys.txt` line 1 holds a key that no header",)),
    ("red a", 0o600, f"{SECRET}\x01", ("`BLUE` holds a key that no header",)),
    ("red a", 0o600, " ", ("`BLUE`, the key of team `blue`, is not set", "`export BLUE=...`")),
    (f"red {SECRET}", 0o600, SECRET, ("`blue` and `red` have one key", "openssl")),
]  # fmt: skip


@pytest.mark.parametrize("variable", sorted({case[2] for case in CASES}))
def test_keys_are_taken_or_refused_unseen(tmp_path: Path, variable: str) -> None:
    cases = [case for case in CASES if case[2] == variable]
    for number, (text, mode, _, named) in enumerate(cases):
        home = tmp_path / str(number)
        home.mkdir()
        (home / "proxy.toml").write_text(TEAMS)
        (home / "keys.txt").write_text(text)
        (home / "keys.txt").chmod(mode)
        done = run("proxy", "--config", "proxy.toml", "--check", cwd=home, env={"BLUE": variable})
        assert done.returncode == (1 if named else 0), (text, done)
        said = done.stdout + done.stderr
        assert SECRET not in said
        assert "Traceback" not in said, said
        assert named or "These settings are good" in said
        assert all(word in said for word in named), (text, said)
