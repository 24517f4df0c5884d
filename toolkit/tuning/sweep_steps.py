"""What a sweep runs for one configuration: the words of each command, the stack's file, and how long it may take.

Words only: sweep.py starts them.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from toolkit.tuning.configurations import Configuration, Kind, around, models
from toolkit.tuning.sweep_file import SweepPlan, as_toml

MOST_AT_ONCE = 64
START_S: dict[Kind, float | None] = {"sim": 1.0, "serve": None, "url": 0.0}
"""How long a start takes, where that is known: a model's is not, before it was started once."""
OVERHEAD_S = 4.0
"""Of a blast beside its load: 2.2 s to start Locust and 1.8 s for the last answers, measured with the simulator."""


def host_name(one: Configuration) -> str:
    """How the store and the board call it: hosts' names hold no blanks."""
    return re.sub(r"[^\w.+:-]+", "-", one.name).strip("-") or "configuration"


def warm_levels(users: int) -> list[int]:
    """Requests at once, doubling as far as the load goes, and never past 64: what it will not ask need not be warm."""
    most = min(users, MOST_AT_ONCE)
    return [*(level for level in (1, 2, 4, 8, 16, 32) if level < most), most]


def sim_words(one: Configuration, port: int) -> list[str]:
    """Serve it simulated."""
    chosen = [word for name, value in one.serving.settings for word in ("--set", f"{name}={value}")]
    return ["sim", "serve", "--personality", one.serving.sim or "", "--port", str(port), *chosen]


def stack_of(
    one: Configuration, port: int, *, users: int, folder: str, profile: str, database: str
) -> str:
    """The stack's file: the engine alone. A response cache before it would answer for all of them alike."""
    serving = one.serving
    engine: dict[str, Any] = {"name": host_name(one), "port": port}
    if serving.tiny:
        engine["kind"] = "tiny"
    for key in ("model", "served_name", "gpus", "key_env", "vllm"):
        value = getattr(serving, key)
        if value is not None:
            engine[key] = value
    for key in ("flags", "env"):
        if getattr(serving, key):
            engine[key] = dict(getattr(serving, key))
    return as_toml(
        {
            "folder": folder,
            "database": database,
            "proxy": False,
            "warm": {"profile": profile, "concurrency": warm_levels(users)},
            "engine": [engine],
        }
    )


def warm_words(hosts: str, profile: str, users: int) -> list[str]:
    """Warm what does not warm itself."""
    levels = ",".join(map(str, warm_levels(users)))
    return ["warmup", hosts, "--profile", profile, "--concurrency", levels, "--json"]


def blast_words(
    plan: SweepPlan, *, hosts: str, profile: str, database: str, resume: str | None
) -> list[str]:
    """Load it as the evaluator would. It may run on the served machine: blast finds out, and marks the run."""
    load = plan.load
    said: dict[str, object] = {
        "--profile": profile,
        "--users": load.users,
        # users that come at once would go on in step: answers end in waves, which a window cuts anywhere
        "--spawn-rate": f"{load.users / load.settle_s:g}",
        "--canaries": f"{load.canaries:g}",
        "--timeout": f"{load.timeout_s:g}s",
        "--processes": load.processes,
        "--rate": load.rate,
        "--mix": load.mix,
        "--max-tokens": load.max_tokens,
        "--resume": resume,
        "--duration": None if resume else f"{load.duration_s:g}s",
        "--db": database,
    }
    given = [
        word for name, value in said.items() if value is not None for word in (name, str(value))
    ]
    return ["blast", hosts, *given, "--non-neutral", "--json"]


# --- what is to come -------------------------------------------------------------------------------


def stages(
    plan: SweepPlan, base: Configuration | None = None
) -> Iterator[tuple[Configuration, ...]]:
    """The configurations of each stage; `base` is the best of the first, where that is known already."""
    if plan.configurations:
        yield models(plan.base, plan.configurations, plan.stage)
    if plan.levers and (base or not plan.configurations):
        serving, name = (base.serving, base.name) if base else (plan.base, "base")
        yield around(serving, plan.levers, plan.how, name)


def foreseen(plan: SweepPlan) -> list[tuple[Configuration, ...]]:
    """The stages before anything is measured: the first model stands for the best one."""
    found = list(stages(plan))
    if plan.configurations and plan.levers:
        found = list(stages(plan, found[0][0]))
    return found


def estimate_s(
    plan: SweepPlan, configurations: Sequence[Configuration], *, sim: bool
) -> float | None:
    """How long all blocks of these take; None: nobody knows how long a start takes."""
    total = 0.0
    for one in configurations:
        kind = one.serving.kind(sim=sim)
        start_s = plan.load.start_s if plan.load.start_s is not None else START_S[kind or "sim"]
        if start_s is None:
            return None
        total += start_s + plan.load.duration_s + OVERHEAD_S
    return total * plan.blocks
