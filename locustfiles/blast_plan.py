"""The plan of one run: what all its workers must know, read from the options and the web form, and sent with the users.

It is checked before anything starts. No clock, no socket.
"""

from dataclasses import dataclass
from typing import Any

from toolkit.blast.pacing import MOST_TIMEOUT_S, HostPace
from toolkit.blast.script import HostScript
from toolkit.cli.catalog import profile_source
from toolkit.errors import ToolkitError
from toolkit.profiles import Kind, Profile, read_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """Plain values only: it travels as a message."""

    profile_text: str
    profile_name: str
    profile_kind: Kind
    canary_share: float
    stream_share: float | None
    """None: the profile's, as with `max_tokens`."""
    max_tokens: int | None
    model: str | None
    """None: what each host's line names, else what it serves."""
    rate: float | None
    """Requests a second and host; None: each user sends when its last answer is over."""
    timeout_s: float
    hosts_hash: str
    run: str = ""
    resumptions: int = 0
    """How often the run was resumed."""
    workers: int = 1
    """That began together."""
    users_per_host: int = 1

    @property
    def profile(self) -> Profile:
        """The profile, read anew."""
        return read_profile(self.profile_text, self.profile_name, self.profile_kind)


def plan_of(options: Any, profile: str, hosts_hash: str) -> WorkerPlan:
    """Read what the user wants, wherever it was said; raises ToolkitError on what cannot be meant."""
    text, name, kind = profile_source(profile)
    percent = _number(options.mix, "--mix", 0, 100)
    canaries = _number(options.canaries, "--canaries", 0, 100)
    max_tokens = _number(options.max_tokens, "--max-tokens", 1, 10**9)
    plan = WorkerPlan(
        profile_text=text,
        profile_name=name,
        profile_kind=kind,
        canary_share=(canaries or 0.0) / 100,
        stream_share=None if percent is None else percent / 100,
        max_tokens=None if max_tokens is None else int(max_tokens),
        model=options.model or None,
        rate=_number(options.rate, "--rate", 0, 10**9) or None,
        timeout_s=_number(options.request_timeout, "--request-timeout", 0.001, MOST_TIMEOUT_S)
        or 60.0,
        hosts_hash=hosts_hash,
    )
    # those who will use it refuse it now, and not in the midst of a run
    HostScript(
        plan.profile,
        model="",
        nonce="",
        canary_share=plan.canary_share,
        stream_share=plan.stream_share,
        max_tokens=plan.max_tokens,
    )
    if plan.rate is not None:
        HostPace(plan.rate, start_s=0.0)
    return plan


def _number(value: Any, name: str, least: float, most: float) -> float | None:
    """A number, which the web form gives as text; an empty one is as good as none."""
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not least <= number <= most:
        raise ToolkitError(
            f"`{name} {value}` is no number from {least:g} to {most:g}",
            "Leave it out for the default",
        )
    return number
