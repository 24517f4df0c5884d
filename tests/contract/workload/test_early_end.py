"""Who reads a report may stop reading: the files that were asked for are written all the same."""

import json
import subprocess
from pathlib import Path

from contract.harness.programs import TOOLKIT, environment


def test_files_are_written_though_nobody_reads_the_report(tmp_path: Path) -> None:
    bodies = [
        {"messages": [{"role": "user", "content": f"number {n % 7}"}], "max_tokens": 9}
        for n in range(200)
    ]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(body) + "\n" for body in bodies))
    for words, written in (
        ("--profile p.toml", "p.toml"),
        ("--json --html r.html", "r.html"),
    ):
        # as `| head -0` leaves it: the pipe has lost its reader before the first line is written
        started = subprocess.Popen(
            [TOOLKIT, "workload", "--from", "b.jsonl", *words.split()],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.close()
        said = started.stderr.read().decode()
        started.stderr.close()
        started.wait(60)
        assert "Traceback" not in said
        assert (tmp_path / written).stat().st_size > 200, said
        assert f": {written}" in said
