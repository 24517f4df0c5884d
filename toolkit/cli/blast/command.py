"""The command line of the process that makes the load, and the hosts file that it reads. No key is in either."""

import math
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from toolkit.cli.blast.child import locustfile
from toolkit.cli.blast.options import BlastOptions
from toolkit.cli.blast.plan import BlastPlan
from toolkit.hosts import KEYS
from toolkit.records import Host


@contextmanager
def hosts_file(hosts: Sequence[Host]) -> Iterator[Path]:
    """The hosts in a file for the child, whatever words named them; its workers read it, too, even late."""
    number, name = tempfile.mkstemp(prefix="toolkit-hosts-", suffix=".txt")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in map(host_line, hosts))
        yield Path(name)
    finally:
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108


def host_line(host: Host) -> str:
    """A line of a hosts file that means this host."""
    is_named = host.name != host.url.partition("://")[2]
    options = [f"{key}={getattr(host, key)}" for key in KEYS if getattr(host, key) is not None]
    return " ".join([*([host.name] if is_named else []), host.url, *options])


def command_line(
    plan: BlastPlan, options: BlastOptions, *, run: str, hosts: Path, not_neutral: str | None
) -> list[str]:
    """The child's command line; no key is in it."""
    words: dict[str, object] = {
        "--hosts-file": hosts,
        "--db": options.database,
        "--resume" if options.resume else "--run": run,
        "--profile": plan.profile_word,
        "--canaries": plan.canary_percent,
        "--request-timeout": plan.timeout_s,
        "--mix": plan.mix,
        "--max-tokens": plan.max_tokens,
        "--model": plan.model,
        "--rate": plan.rate,
        "--non-neutral": not_neutral,
        "--ca": options.ca,
        "--exit-code-on-error": 0,  # a host's failures are figures, not failures of the blast
    }
    if not plan.profile.phases:
        words |= {
            "--users": plan.users,
            "--spawn-rate": plan.spawn_rate,
            "--run-time": f"{math.ceil(plan.duration_s)}s",
        }
    if plan.processes > 1:
        port = _free_port()
        words |= {
            "--processes": plan.processes,
            # plain Locust listens everywhere, and two blasts on one machine would meet on its port
            "--master-bind-host": "127.0.0.1",
            "--master-bind-port": port,
            "--master-host": "127.0.0.1",
            "--master-port": port,
        }
    given = [f"{name}={word}" for name, word in words.items() if word is not None]
    # without Locust's logging its own tables, of which we use nothing, are not printed
    flags = ["--skip-log-setup", *(["--insecure"] if options.insecure else [])]
    file = locustfile()
    alone = file.with_name("blast_alone.py")
    return [sys.executable, str(alone), "-f", str(file), "--headless", *given, *flags]


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
