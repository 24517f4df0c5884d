"""Preflight beside a real vLLM: its version, its port, and what it leaves behind when somebody kills it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from contract.harness.programs import gone, until

TOOLKIT = str(Path(sys.executable).parent / "toolkit")


def preflight(*words: str) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [TOOLKIT, "preflight", "--json", "--cpu", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    return {row["check"]: row for row in map(json.loads, done.stdout.splitlines())}


def test_a_killed_vllm_leaves_what_preflight_finds_and_its_commands_remove(
    vllm_home: Path, doomed_locked_server: Any
) -> None:
    server = doomed_locked_server
    port = server.url.rpartition(":")[2]
    vllm = str(vllm_home / "bin" / "vllm")
    found = preflight("--vllm", vllm, "--port", port)
    assert found["vllm"]["status"] == "ok"
    assert found["vllm"]["why"].startswith("vLLM 0.32.0+cpu with PyTorch 2.13.0+cpu")
    assert found[f"port_{port}"]["status"] == "fail", found[f"port_{port}"]
    assert f"(pid {server.process.pid}) on 127.0.0.1" in found[f"port_{port}"]["why"]
    # what a living server holds is not left over
    members = server.family()
    family = {member.pid for member in members}
    assert not any(f"({pid})" in found.get("orphans", {}).get("why", "") for pid in family)
    before = leftovers(found)

    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(timeout=30)
    found = preflight("--vllm", vllm, "--port", port)
    assert found["orphans"]["status"] == "warn"
    assert "VLLM::EngineCore" in found["orphans"]["why"]
    named = {int(word) for word in found["orphans"]["fix"].split() if word.isdigit()}
    assert len(named & family) == 2  # the engine core and its worker

    # Python's resource tracker would tidy up after them; with the whole group killed, as by `docker kill`, nobody does
    for tracker in family - named - {server.process.pid}:
        os.kill(tracker, signal.SIGKILL)
    subprocess.run(["bash", "-c", found["orphans"]["fix"]], check=True)
    assert gone(members)  # a process holds its memory until then
    found = preflight("--vllm", vllm, "--port", port)
    still = found.get("orphans", {"fix": ""})["fix"].split()
    assert not {str(pid) for pid in named} & set(still)
    left: set[str] = set()

    def has_segments() -> bool:
        """The kernel grants no lease on a file while anybody looks at it, e.g. another preflight on this machine."""
        nonlocal found, left
        found = preflight("--vllm", vllm, "--port", port)
        left = leftovers(found) - before
        return any("psm_" in path for path in left)

    until(has_segments)

    subprocess.run(["bash", "-c", found["shm_leftovers"]["fix"]], check=True)
    assert not leftovers(preflight("--vllm", vllm, "--port", port)) & left


def leftovers(found: dict[str, dict[str, Any]]) -> set[str]:
    fix = found["shm_leftovers"]["fix"] or ""
    return {word for word in fix.split() if word.startswith("/dev/shm/")}
