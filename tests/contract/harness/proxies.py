"""`toolkit proxy` as a user starts it, with a settings file or flags."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contract.harness.clients import get
from contract.harness.programs import Program, toolkit


@dataclass
class Proxy:
    """One that runs."""

    program: Program
    url: str
    admin: str

    def metrics(self) -> dict[str, float]:
        """Its own metrics page: a sample's name with its labels, as written there -> value."""
        lines = get(self.admin, "/metrics").body.decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def total(self, name: str, **labels: str) -> float:
        """Sum over the samples of one family that carry these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(
            value
            for sample, value in self.metrics().items()
            if sample.partition("{")[0] == name and all(each in sample for each in wanted)
        )


@contextmanager
def proxy(
    upstreams: str | Sequence[str],
    settings: str = "",
    *words: object,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    probes: bool = False,
) -> Iterator[Proxy]:
    """Start one in front of these URLs and wait until it is ready.

    `settings`: TOML beyond the upstreams (top-level keys first). Its cache and log lie in `cwd`. Without `probes` it asks its
    upstreams nothing but what clients ask.
    """
    those = [upstreams] if isinstance(upstreams, str) else list(upstreams)
    named = "".join(
        f'[[upstream]]\nname = "u{number}"\nurl = "{url}"\nprobes = {str(probes).lower()}\n'
        for number, url in enumerate(those)
    )
    file = cwd / "proxy.toml"
    # tables begin at the first line that names one; a list may stand above
    top, *tables = re.split(r"^(?=\[)", settings, maxsplit=1, flags=re.MULTILINE)
    file.write_text("\n".join([top, named, *tables]))
    ports = ("--port", 0, "--admin-port", 0)
    with toolkit("proxy", "--config", file, *ports, *words, cwd=cwd, env=env) as running:
        found = running.line(r"^Ready: clients on (\S+), admin on ([^\s,]+)")
        yield Proxy(running, found[1], found[2])
