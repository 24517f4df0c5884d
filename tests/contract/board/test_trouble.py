"""Hosts that fail or are down, as the terminal shows them: red, with a word, named by no headline and called clean by nobody."""

import os
import pty
import re
import subprocess
from pathlib import Path

from contract.harness.blasts import begin
from contract.harness.programs import TOOLKIT, environment, rows, run

BEGAN = 1_790_000_000
RED = re.compile(r"\x1b\[(?:\d+;)*31m([^\x1b]*)")


def on_a_terminal(*words: object, cwd: Path, columns: int) -> str:
    """What the command writes to a terminal of so many columns that knows colours."""
    ours, theirs = pty.openpty()
    env = environment(cwd, {"COLUMNS": str(columns), "TERM": "xterm", "LINES": "60"})
    with subprocess.Popen(
        [TOOLKIT, *map(str, words)], cwd=cwd, env=env, stdout=theirs, stderr=theirs, stdin=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        # a terminal whose other side has gone answers with an error
        try:
            while data := os.read(ours, 65536):
                seen += data
        except OSError:
            pass
        process.wait()
    os.close(ours)
    return seen.decode()


def test_who_fails_or_is_down_is_red_has_a_word_and_is_never_called_clean(tmp_path: Path) -> None:
    names = ["well", "flaky", "edge", "gone", "zoe"]
    blast = begin(tmp_path / "blast.db", names, BEGAN)
    blast.write(
        {
            BEGAN + second: {
                "well": {"ok": 20},
                # one in five, one in ten, none until the last minute, all
                "flaky": {"ok": 40, "errors": 10},
                "edge": {"ok": 9, "errors": 1},
                "gone": {"ok": 10} if second < 240 else {"errors": 1},
                "zoe": {"errors": second % 2},
            }
            for second in range(300)
        }
    )
    for name in names:
        blast.canaries(name, BEGAN + 100)
    blast.end(BEGAN + 300)
    told = {
        one["name"]: one
        for one in rows(run("board", "--json", "--db", blast.file, cwd=tmp_path).stdout)
    }
    assert [told[name]["error_rate"] for name in ("flaky", "edge", "zoe")] == [0.2, 0.1, 1.0]
    assert told["flaky"]["rank"] == 1
    codes = {name: [each["code"] for each in one["verdicts"]] for name, one in told.items()}
    assert not any("clean" in codes[name] for name in ("flaky", "gone", "zoe")), codes

    for columns in (160, 60):
        shown = on_a_terminal("board", "--db", blast.file, cwd=tmp_path, columns=columns)
        red = " ".join(RED.findall(shown))
        assert {name for name in names if name in red.split()} == {"flaky", "gone", "zoe"}, shown
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
        said = " ".join(plain.split())
        assert "failing flaky: 3,000 of 15,000 requests failed in the window" in said
        lines = {
            name: next(line for line in plain.splitlines() if re.match(rf"=?\d.* {name} ", line))
            for name in names
        }
        if columns == 160:
            assert "failing" in lines["flaky"]
            assert "down" in lines["gone"]
            assert "down" in lines["zoe"]
        assert not any("clean" in lines[name] for name in ("flaky", "gone", "zoe"))
