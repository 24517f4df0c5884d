"""What a blast is to do: the user's words, a resumed run's, the profile's, the defaults, in this order; and the words that say it to the load.

Nothing is asked or sent here.
"""

import math
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from toolkit.bench.tokenizer import words_by
from toolkit.blast.pacing import users_for
from toolkit.blast.plan import LOAD_OPTIONS, LoadSettings
from toolkit.blast.script import STREAM_SHARE
from toolkit.cli.blast.load import locustfile
from toolkit.cli.blast.verb import DEFAULT_PROFILE, DURATION_S, USERS
from toolkit.cli.catalog import profile_from
from toolkit.errors import ToolkitError
from toolkit.hosts import KEYS
from toolkit.profiles import Profile
from toolkit.records import USUAL_MAX_TOKENS, Host, Run

MOST_SPAWN_RATE = 100.0
"""Users started a second, unless the user says otherwise: what Locust advises for one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastPlan(LoadSettings):
    """One blast, all in all."""

    hosts: tuple[Host, ...]
    profile_word: str
    """The catalog's name or the file, as the user wrote it."""
    profile: Profile
    users: int
    """All hosts together."""
    duration_s: float
    """Of a run that is resumed: what is left."""
    spawn_rate: float
    processes: int
    notes: tuple[str, ...] = ()
    """What a person should know before, a sentence each."""

    @property
    def users_per_host(self) -> int:
        """The same for every host."""
        return self.users // len(self.hosts)

    @property
    def streamed(self) -> float:
        """Share of the requests: what the user says, else the profile, else the default."""
        shares = (self.stream_share, self.profile.stream_share, STREAM_SHARE)
        return next(share for share in shares if share is not None)

    def max_tokens_of(self, limit: int | None) -> int:
        """What a prompt with this limit of its own is asked for."""
        most = self.max_tokens or self.profile.max_tokens or USUAL_MAX_TOKENS
        return most if limit is None else min(most, limit)


def plan_of(
    hosts: Sequence[Host],
    *,
    resumed: Run | None = None,
    under_load_s: int = 0,
    profile: str | None = None,
    users: int | None = None,
    duration: float | None = None,
    spawn_rate: float | None = None,
    processes: int | None = None,
    **load: Any,
) -> BlastPlan:
    """What the user said (None: nothing), else the resumed run, else the profile, else the default; `load`: of LoadSettings.

    `under_load_s`: what the resumed run had so far, without the gaps. Raises ToolkitError, and click.UsageError for words
    beside phases.
    """
    before = resumed.plan if resumed else {}
    if resumed and not before:
        raise ToolkitError(
            f"the settings of run `{resumed.id}` are not as the toolkit writes them",
            "Begin a new one",
        )
    word = profile or before.get("profile") or DEFAULT_PROFILE
    found = profile_from(word)
    notes = []
    if found.phases:
        given = (("--users", users), ("--spawn-rate", spawn_rate), ("--duration", duration))
        for option, value in given:
            if value is not None:
                raise click.UsageError(
                    f"the phases of `{found.name}` say how many users there are and how long; leave {option} out"
                )
        all_users = max(max(one.users_from, one.users_to) for one in found.phases) * len(hosts)
        duration_s = math.fsum(one.length_s for one in found.phases)
    else:
        all_users, rounded = users_for(users or before.get("users") or USERS, len(hosts))
        notes += [rounded] if rounded else []
        planned_s = float(before.get("duration_s") or DURATION_S)
        duration_s = planned_s - under_load_s if duration is None else duration
        if resumed and duration_s < 1 and duration is None:
            raise ToolkitError(
                f"run `{resumed.id}` has had all its {planned_s:,.0f} s",
                "Say how much longer, e.g., `--duration 10m`",
            )
    if not load.get("input_len"):
        notes += [f"Note: {note}" for note in found.notes]
    if found.phases and resumed:
        # the load's shape counts from its own start, and knows of no earlier one
        notes.append(f"The phases of `{found.name}` begin anew")
    settings = {option.field: before.get(option.field) for option in LOAD_OPTIONS}
    settings |= {name: value for name, value in load.items() if value is not None}
    plan = BlastPlan(
        hosts=tuple(hosts),
        profile_word=word,
        profile=found,
        users=all_users,
        duration_s=duration_s,
        spawn_rate=spawn_rate or before.get("spawn_rate") or min(float(all_users), MOST_SPAWN_RATE),
        processes=processes or before.get("workers") or 1,
        notes=tuple(notes),
        **{name: value for name, value in settings.items() if value is not None},
    )
    if plan.tokenizer:
        if plan.input_len is None:
            raise click.UsageError("--tokenizer goes with --input-len")
        # refused now; the load's own process reads it again
        words_by(plan.tokenizer, plan.input_len, plan.endpoint)
    return plan


def refuse_other_hosts(run: Run, hosts: Sequence[Host], known: Sequence[Host]) -> None:
    """A run that goes on has the hosts that it had: others would have missed its start. Raises ToolkitError."""
    now, before = ({(host.name, host.url) for host in some} for some in (hosts, known))
    if before and now != before:
        changed = ", ".join(f"`{name}`" for name in sorted({name for name, _ in now ^ before}))
        raise ToolkitError(
            f"run `{run.id}` had other hosts; these differ: {changed}",
            "Name the same hosts as before, or begin a new blast without `--resume`",
        )


# --- in the words of the load's process ---------------------------------------------------------------


@contextmanager
def hosts_file(hosts: Sequence[Host]) -> Iterator[Path]:
    """The hosts in a file for the load, whatever words named them; its workers read it, too, even late. No key is in it."""
    number, name = tempfile.mkstemp(prefix="toolkit-hosts-", suffix=".txt")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            for host in hosts:
                is_named = host.name != host.url.partition("://")[2]
                words = [*([host.name] if is_named else []), host.url]
                words += [
                    f"{key}={getattr(host, key)}" for key in KEYS if getattr(host, key) is not None
                ]
                file.write(" ".join(words) + "\n")
        yield Path(name)
    finally:
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108


def command_line(
    plan: BlastPlan,
    *,
    run: str,
    is_resumed: bool,
    hosts: Path,
    database: Path,
    not_neutral: str | None,
    insecure: bool,
    ca: str | None,
) -> list[str]:
    """The command line of the process that makes the load; no key is in it."""
    words: dict[str, object] = {
        "--hosts-file": hosts,
        "--db": database,
        "--resume" if is_resumed else "--run": run,
        "--profile": plan.profile_word,
        **{option.name: getattr(plan, option.field) for option in LOAD_OPTIONS},
        # empty: it was looked for, and no host is on this machine
        "--non-neutral": not_neutral or "",
        "--ca": ca,
        "--exit-code-on-error": 0,  # a host's failures are figures, not failures of the blast
    }
    if not plan.profile.phases:
        words |= {
            "--users": plan.users,
            "--spawn-rate": plan.spawn_rate,
            "--run-time": f"{math.ceil(plan.duration_s)}s",
        }
    if plan.processes > 1:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            port = server.getsockname()[1]
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
    flags = ["--skip-log-setup", *(["--insecure"] if insecure else [])]
    file = locustfile()
    alone = file.with_name("blast_alone.py")
    return [sys.executable, str(alone), "-f", str(file), "--headless", *given, *flags]
