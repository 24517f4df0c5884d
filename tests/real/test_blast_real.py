"""A blast against a real vLLM: what was stored is what its `/metrics` counted, request for request and token for token."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from contract.harness.programs import free_port
from support.locusts import (
    DATABASE,
    HOSTS,
    Counted,
    all_sums,
    counted,
    errors,
    headless,
    newest,
    run,
    stored,
)

from toolkit.store import Store

KEY_VARIABLE = "TOOLKIT_TEST_REAL_KEY"


@pytest.mark.parametrize("processes", [1, 2])
def test_totals_equal_what_the_server_counted(
    roomy_server: Any, tmp_path: Path, processes: int
) -> None:
    port = str(free_port())
    ports = ("--processes", "2", "--master-port", port, "--master-bind-port", port)
    # a slow machine answers some 30 in ten seconds: twins come among a fifth of 60 for sure
    words = ("-u", "8", "-t", "20s", "--max-tokens", "24", "--canaries", "20")
    (tmp_path / HOSTS).write_text(f"real {roomy_server.url}\n")
    before = counted(roomy_server.url)
    run(tmp_path, headless(*words, *(ports if processes > 1 else ())))
    truth = counted(roomy_server.url).since(before)
    assert stored(tmp_path) == {"real": truth}
    assert errors(tmp_path) == {"real": {}}
    assert truth.requests > 8, "of eight users, one at least asked again"
    sums = {kind: each for (_, _, kind), each in all_sums(tmp_path).items()}
    assert 0.3 < sums["ranked"].streamed / sums["ranked"].ok < 0.7
    assert sums["ranked"].output_tokens_estimated == 0
    with Store.open_readonly(tmp_path / DATABASE) as store:
        shots = store.shots(newest(tmp_path).id)
    assert {shot.kind for shot in shots} == {"unique", "twin"}
    for shot in shots:
        assert shot.ok
        assert shot.e2e_ms is not None
        assert 0 < (shot.ttft_ms or shot.e2e_ms) <= shot.e2e_ms


def test_a_server_behind_a_key_is_loaded_with_it_and_the_key_is_kept_nowhere(
    locked_server: Any, tmp_path: Path
) -> None:
    (tmp_path / HOSTS).write_text(f"locked {locked_server.url} api_key_env={KEY_VARIABLE}\n")
    before = counted(locked_server.url)
    words = headless("-u", "4", "-t", "3s", "--max-tokens", "8")
    said = run(tmp_path, words, **{KEY_VARIABLE: locked_server.key})
    assert stored(tmp_path) == {"locked": counted(locked_server.url).since(before)}
    refused = run(tmp_path, words, **{KEY_VARIABLE: "wrong"})
    assert set(errors(tmp_path)["locked"]) <= {"http_401", "http_403"}
    assert stored(tmp_path)["locked"] == Counted(0, 0, 0)
    assert locked_server.key not in said + refused
    files = b"".join(file.read_bytes() for file in tmp_path.glob(f"{DATABASE}*"))
    assert locked_server.key.encode() not in files


def test_an_honest_engine_is_judged_clean_within_a_minute(
    roomy_server: Any, tmp_path: Path
) -> None:
    (tmp_path / HOSTS).write_text(f"real {roomy_server.url}\n")

    def judged(*words: str) -> list[str]:
        done = subprocess.run(
            [Path(sys.executable).with_name("toolkit"), words[0], HOSTS, "--json", *words[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [each["code"] for each in json.loads(done.stdout)["verdicts"]]

    # scout looks every five seconds, as usual; this engine takes 25 ms a token, and on a slow machine too few for canaries of one in a hundred
    words = ("--users", "8", "--max-tokens", "48", "--non-neutral")
    canaries = ("--canaries", "5")
    assert judged("blast", "--duration", "50s", *canaries, *words) == ["clean"]
    assert judged("bench", "--max-tokens", "48") == ["clean"]
