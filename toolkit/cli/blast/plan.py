"""What a blast is to do, once its words, its profile and a run that it resumes are read. Nothing is asked or sent here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from toolkit.blast import phases
from toolkit.blast.rounding import users_for
from toolkit.blast.script import MAX_TOKENS, STREAM_SHARE
from toolkit.cli.blast.options import (
    CANARY_PERCENT,
    DURATION_S,
    PROFILE,
    TIMEOUT_S,
    USERS,
    BlastOptions,
)
from toolkit.cli.catalog import profile_from
from toolkit.errors import ToolkitError
from toolkit.profiles import Profile
from toolkit.records import Host, Run

MOST_SPAWN_RATE = 100.0
"""Users started a second, unless the user says otherwise: what Locust advises for one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastPlan:
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
    rate: float | None
    """Requests a second and host; None: each user waits for its answer."""
    mix: int | None
    max_tokens: int | None
    model: str | None
    canary_percent: float
    timeout_s: float
    processes: int
    notes: tuple[str, ...] = ()
    """What a person should know before, a sentence each."""

    @property
    def users_per_host(self) -> int:
        """The same for every host."""
        return self.users // len(self.hosts)

    @property
    def stream_share(self) -> float:
        """Of the requests: what the user says, else the profile, else the default."""
        if self.mix is not None:
            return self.mix / 100
        return STREAM_SHARE if self.profile.stream_share is None else self.profile.stream_share

    def max_tokens_of(self, limit: int | None) -> int:
        """What a prompt with this limit of its own is asked for."""
        most = self.max_tokens or self.profile.max_tokens or MAX_TOKENS
        return most if limit is None else min(most, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A stored run that is to go on."""

    run: Run
    settings: Mapping[str, Any]
    """As its first start was told."""
    under_load_s: int
    """Seconds that it had so far, without the gaps."""


def plan_of(
    options: BlastOptions, hosts: Sequence[Host], resumed: Resumed | None = None
) -> BlastPlan:
    """What the user said, else the resumed run, else the profile, else the default. Raises ToolkitError."""
    told = resumed.settings if resumed else {}
    word = options.profile or told.get("profile") or PROFILE
    profile = profile_from(word)
    users, rounded = _users(options, told, profile, len(hosts))
    spawn_rate = _first(options.spawn_rate, told.get("spawn_rate"))
    return BlastPlan(
        hosts=tuple(hosts),
        profile_word=word,
        profile=profile,
        users=users,
        duration_s=_duration_s(options, profile, resumed),
        spawn_rate=_first(spawn_rate, min(float(users), MOST_SPAWN_RATE)),
        rate=_first(options.rate, told.get("rate")),
        mix=_first(options.mix, told.get("mix")),
        max_tokens=_first(options.max_tokens, told.get("max_tokens")),
        model=_first(options.model, told.get("model")),
        canary_percent=_first(options.canaries, told.get("canaries"), CANARY_PERCENT),
        timeout_s=_first(options.timeout, told.get("request_timeout_s"), TIMEOUT_S),
        processes=_first(options.processes, told.get("workers"), 1),
        notes=tuple(
            note for note in (rounded, _left_out(profile, word), _anew(profile, resumed)) if note
        ),
    )


def refuse_other_hosts(run: Run, hosts: Sequence[Host], known: Sequence[Host]) -> None:
    """A run that goes on has the hosts that it had: others would have missed its start. Raises ToolkitError."""
    now, before = ({(host.name, host.url) for host in some} for some in (hosts, known))
    if before and now != before:
        changed = ", ".join(f"`{name}`" for name in sorted({name for name, _ in now ^ before}))
        raise ToolkitError(
            f"run `{run.id}` had other hosts; these differ: {changed}",
            "Name the same hosts as before, or begin a new blast without `--resume`",
        )


def _users(
    options: BlastOptions, told: Mapping[str, Any], profile: Profile, hosts: int
) -> tuple[int, str | None]:
    """All users, and a sentence where there are more than was asked for."""
    if not profile.phases:
        return users_for(_first(options.users, told.get("users"), USERS), hosts)
    for word, value in (("--users", options.users), ("--spawn-rate", options.spawn_rate)):
        if value is not None:
            raise click.UsageError(_beside_phases(word, profile))
    return phases.most_users(profile.phases) * hosts, None


def _duration_s(options: BlastOptions, profile: Profile, resumed: Resumed | None) -> float:
    """How long from now on: of a resumed run the rest, unless the user says how much longer."""
    if profile.phases and options.duration is not None:
        raise click.UsageError(_beside_phases("--duration", profile))
    if options.duration is not None:
        return options.duration
    if profile.phases:
        return phases.length_s(profile.phases)
    told = resumed.settings.get("duration_s") if resumed else None
    planned_s = float(_first(told, DURATION_S))
    left_s = planned_s - (resumed.under_load_s if resumed else 0)
    if resumed and left_s < 1:
        raise ToolkitError(
            f"run `{resumed.run.id}` has had all its {planned_s:,.0f} s",
            "Say how much longer, e.g., `--duration 10m`",
        )
    return left_s


def _beside_phases(word: str, profile: Profile) -> str:
    return f"the phases of `{profile.name}` say how many users there are and how long; leave {word} out"


def _first(*values: Any) -> Any:
    """The first of the values that is known."""
    return next((value for value in values if value is not None), None)


def _left_out(profile: Profile, word: str) -> str | None:
    if not profile.left_out:
        return None
    keys = ", ".join(f"`{key}`" for key in profile.left_out)
    return f"Warning: these keys of `{word}` are not sent: {keys}"


def _anew(profile: Profile, resumed: Resumed | None) -> str | None:
    """The load's shape counts from its own start, and knows of no earlier one."""
    if not (profile.phases and resumed):
        return None
    return f"The phases of `{profile.name}` begin anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyBlast:
    """One blast that may begin."""

    options: BlastOptions
    run: str
    """Its id; of a run that is resumed, the old one."""
    plan: BlastPlan
    keys: dict[str, str] = field(repr=False)
    not_neutral: str | None
    """Why the figures rank nobody, in a sentence."""
