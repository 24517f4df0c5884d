"""`toolkit serve` as a user starts it: a stack file with the simulator for an engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from contract.harness.programs import free_port, rows, run, toolkit
from contract.harness.proxies import Proxy

ENGINE = (
    'kind = "sim"\nmodel = "gptq-int4"\nname = "one"\nserved_name = "tiny"\n'
    "[engine.flags]\ntime-scale = 0.1\n"
)


@dataclass
class Stack(Proxy):
    """One that is open; its proxy is asked as any other."""

    folder: Path
    """Where it was started."""

    def engines(self) -> dict[str, dict[str, Any]]:
        """`toolkit serve status --json`, by engine."""
        told = run("serve", "status", "--folder", "serve", "--json", cwd=self.folder)
        assert told.returncode == 0, told.stderr
        return {row["name"]: row for row in rows(told.stdout)}

    def engine_processes(self) -> list[psutil.Process]:
        """Everybody whom it started, but itself."""
        return self.program.family()[1:]


def write_stack(
    folder: Path, *engines: str, admission: str = "", guard: str = "backoff = '100ms'"
) -> Path:
    """A stack file in `folder`; `engines` are TOML of one each, `ENGINE` if none is given."""
    tables = "".join(
        f"[[engine]]\nport = {free_port()}\nspare_port = {free_port()}\n{each}\n"
        for each in engines or (ENGINE,)
    )
    file = folder / "stack.toml"
    file.write_text(
        'database = "toolkit.db"\npreflight = false\n'
        "[proxy]\nport = 0\nadmin_port = 0\ndrain = '30s'\n"
        f"[proxy.admission]\n{admission}\n"
        f"[warm]\nconcurrency = [1, 2]\nrounds = 2\n[guard]\nlook = '200ms'\n{guard}\n{tables}"
    )
    return file


@contextmanager
def stack(folder: Path, *engines: str, **settings: str) -> Iterator[Stack]:
    """Start one and wait until clients are let in; `settings` as for write_stack."""
    file = write_stack(folder, *engines, **settings)
    with toolkit("serve", file, "--folder", "serve", cwd=folder) as running:
        url = running.line(r"Ready: clients on (\S+);")[1]
        found = Stack(running, url, "", folder)
        found.admin = next(iter(found.engines().values()))["admin_url"]
        yield found
