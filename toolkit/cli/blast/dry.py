"""`toolkit blast --dry-run`: who would be sent what. It sends nothing, and asks no name server."""

from collections.abc import Iterator, Sequence
from math import fsum
from typing import Any

from rich.text import Text

from toolkit.bench.requests import proportions
from toolkit.cli.blast.options import BlastOptions
from toolkit.cli.blast.plan import BlastPlan
from toolkit.cli.output import print_json, say
from toolkit.profiles import Prompt
from toolkit.report.tables import Column, screen
from toolkit.units import DASH, counted, percent, spoken

ANSWER_S = 2.0
"""Assumed of an answer where users wait for it; nobody was asked. The contest's servers took 2 to 3 s for theirs."""
WIDEST = 40


def show(plan: BlastPlan, options: BlastOptions, not_neutral: str | None) -> None:
    """Print the plan: one JSON object a host, or tables and sentences."""
    for note in plan.notes:
        say(note, err=True)
    if not_neutral and not options.non_neutral:
        say(f"Warning: {not_neutral}; without `--non-neutral` the blast will not begin", err=True)
    if options.as_json:
        for host in as_objects(plan):
            print_json(host)
        return
    console = screen()
    for columns, rows in (_hosts(plan), _prompts(plan)):
        console.table(columns, rows)
    for sentence in sentences(plan, options):
        console.print(Text(sentence))


def as_objects(plan: BlastPlan) -> Iterator[dict[str, Any]]:
    """What each host would be sent."""
    prompts = [
        {
            "name": prompt.name,
            "share": share,
            "prompt_chars": chars(prompt),
            "max_tokens": plan.max_tokens_of(prompt.max_tokens),
            "steps": 1 + len(prompt.then),
        }
        for prompt, share in shares(plan)
    ]
    for host in plan.hosts:
        yield {
            "name": host.name,
            "url": host.url,
            "model": plan.model or host.model,
            "users": plan.users_per_host,
            "rate": plan.rate,
            "duration_s": plan.duration_s,
            "requests": None if plan.rate is None else expected_requests(plan),
            "requests_at_2s": None if plan.rate is not None else expected_requests(plan),
            "stream_share": plan.stream_share,
            "canary_share": plan.canary_percent / 100,
            "sends_key": host.api_key_env is not None,
            "prompts": prompts,
        }


def shares(plan: BlastPlan) -> list[tuple[Prompt, float]]:
    """Each prompt's part of the ranked requests."""
    turns = proportions(plan.profile.prompts)
    return [
        (prompt, turn / sum(turns))
        for prompt, turn in zip(plan.profile.prompts, turns, strict=True)
    ]


def expected_requests(plan: BlastPlan) -> int:
    """To one host, if it keeps up with the rate, or if each user's answer takes ANSWER_S."""
    if plan.rate is not None:
        return round(plan.rate * plan.duration_s)
    pause_s = fsum(plan.profile.think_time_s or (0.0, 0.0)) / 2
    return round(user_seconds(plan) / (ANSWER_S + pause_s))


def user_seconds(plan: BlastPlan) -> float:
    """Of one host: users times seconds; a ramp has its mean of users."""
    if not plan.profile.phases:
        return plan.users_per_host * plan.duration_s
    return fsum(
        phase.length_s * (phase.users_from + phase.users_to) / 2 for phase in plan.profile.phases
    )


def chars(prompt: Prompt) -> int:
    """Characters of text in a prompt's messages."""
    texts: list[Any] = []
    for message in prompt.messages:
        content = message.get("content")
        texts += [part.get("text") for part in content] if isinstance(content, list) else [content]
    return sum(len(text) for text in texts if isinstance(text, str))


# --- for a person ----------------------------------------------------------------------------------


def _hosts(plan: BlastPlan) -> tuple[list[Column], list[list[str | Text]]]:
    columns = [
        Column(title="host", widest=WIDEST),
        Column(title="url", widest=WIDEST, spare=3),
        Column(title="users", right=True),
        Column(title="req/s", right=True),
        Column(title="requests", right=True),
        Column(title="model", widest=WIDEST, spare=1),
        Column(title="key from", spare=2),
    ]
    rows: list[list[str | Text]] = [
        [
            host.name,
            host.url,
            f"{plan.users_per_host:,}",
            DASH if plan.rate is None else f"{plan.rate:g}",
            f"{expected_requests(plan):,}",
            plan.model or host.model or "what it serves",
            host.api_key_env or DASH,
        ]
        for host in plan.hosts
    ]
    return columns, rows


def _prompts(plan: BlastPlan) -> tuple[list[Column], list[list[str | Text]]]:
    columns = [
        Column(title="prompt", widest=WIDEST),
        Column(title="share", right=True),
        Column(title="characters", right=True),
        Column(title="max tokens", right=True),
        Column(title="requests in a row", right=True),
    ]
    rows: list[list[str | Text]] = [
        [
            prompt.name,
            percent(share),
            f"{chars(prompt):,}",
            f"{plan.max_tokens_of(prompt.max_tokens):,}",
            f"{1 + len(prompt.then):,}",
        ]
        for prompt, share in shares(plan)
    ]
    return columns, rows


def sentences(plan: BlastPlan, options: BlastOptions) -> Iterator[str]:
    """What the tables do not say."""
    yield f"{spoken(plan.duration_s)} under load: {counted(plan.users, 'user')}, the same number on every host."
    yield from _phases(plan)
    if plan.rate is None:
        yield (
            f"A user asks again once it is answered; `requests` assumes {ANSWER_S:g} s an answer. "
            "Nobody was asked."
        )
    else:
        yield f"Every host is sent {plan.rate:g} requests a second, whatever answers take."
    yield f"{plan.stream_share:.0%} of the answers are streamed."
    if plan.canary_percent:
        yield (
            f"{plan.canary_percent:g} % of the requests are canaries: a prompt like no other, then exactly the same "
            "again. They are counted apart and never ranked."
        )
    if options.no_scout:
        yield "Nobody looks at the hosts beside the load."
    else:
        yield f"Scout looks at each host every {options.scout_every:g} s beside the load."
    yield "Nothing was sent."


def _phases(plan: BlastPlan) -> Sequence[str]:
    told = []
    for phase in plan.profile.phases:
        users = (
            counted(phase.users_to, "user")
            if phase.users_from == phase.users_to
            else f"{phase.users_from:,} to {phase.users_to:,} users"
        )
        told.append(f"Phase `{phase.name}`: {spoken(phase.length_s)}, {users} a host.")
    return told
