"""`toolkit blast --dry-run`: who would be sent what. It sends nothing, and asks no name server."""

from collections.abc import Iterator
from math import fsum
from typing import Any

from rich.text import Text

from toolkit.bench.plan import CHAT, EMBEDDINGS
from toolkit.bench.random_prompts import RANDOM_PROMPT, read_lengths
from toolkit.bench.requests import proportions
from toolkit.cli.blast.plan import BlastPlan
from toolkit.cli.output import print_json
from toolkit.profiles import Prompt
from toolkit.report.tables import Column, screen
from toolkit.units import DASH, counted, percent, spoken, whole

ANSWER_S = 2.0
"""Assumed of an answer where users wait for it; nobody was asked. The contest's servers took 2 to 3 s for theirs."""
WIDEST = 40


def show(plan: BlastPlan, *, scout_every_s: float | None, as_json: bool) -> None:
    """Print the plan: one JSON object a host, or tables and sentences. `scout_every_s` None: nobody looks beside the load."""
    requests = expected_requests(plan)
    asked = (RANDOM_PROMPT,) if plan.input_len else plan.profile.prompts
    turns = proportions(asked)
    has_limit = plan.output_len is None and plan.endpoint != EMBEDDINGS
    prompts: list[dict[str, Any]] = [
        {
            "name": prompt.name,
            "share": turn / sum(turns),
            "prompt_chars": None if plan.input_len else chars(prompt),
            "max_tokens": plan.max_tokens_of(prompt.max_tokens) if has_limit else None,
            "steps": 1 + len(prompt.then),
        }
        for prompt, turn in zip(asked, turns, strict=True)
    ]
    if as_json:
        for host in plan.hosts:
            print_json(
                {
                    "name": host.name,
                    "url": host.url,
                    "model": plan.model or host.model,
                    "users": plan.users_per_host,
                    "rate": plan.rate,
                    "duration_s": plan.duration_s,
                    "requests": None if plan.rate is None else requests,
                    "requests_at_2s": requests if plan.rate is None else None,
                    "stream_share": plan.streamed,
                    "canary_share": plan.canary_share,
                    "sends_key": host.api_key_env is not None,
                    "prompts": prompts,
                }
            )
        return
    console = screen()
    console.records(
        [
            Column("host", lambda host: host.name, widest=WIDEST),
            Column("url", lambda host: host.url, widest=WIDEST, spare=3),
            Column("users", lambda _: f"{plan.users_per_host:,}", right=True),
            Column("req/s", lambda _: DASH if plan.rate is None else f"{plan.rate:g}", right=True),
            Column("requests", lambda _: f"{requests:,}", right=True),
            Column(
                "model",
                lambda host: plan.model or host.model or "what it serves",
                widest=WIDEST,
                spare=1,
            ),
            Column("key from", lambda host: host.api_key_env or DASH, spare=2),
        ],
        plan.hosts,
    )
    console.print()
    console.records(
        [
            Column("prompt", lambda prompt: prompt["name"], widest=WIDEST),
            Column("share", lambda prompt: percent(prompt["share"]), right=True),
            Column("characters", lambda prompt: whole(prompt["prompt_chars"]), right=True),
            Column("max tokens", lambda prompt: whole(prompt["max_tokens"]), right=True),
            Column("requests in a row", lambda prompt: f"{prompt['steps']:,}", right=True),
        ],
        prompts,
    )
    for sentence in sentences(plan, scout_every_s):
        console.print(Text(sentence))


def expected_requests(plan: BlastPlan) -> int:
    """To one host, if it keeps up with the rate, or if each user's answer takes ANSWER_S; a ramp has its mean of users."""
    if plan.rate is not None:
        return round(plan.rate * plan.duration_s)
    user_seconds = plan.users_per_host * plan.duration_s
    if plan.profile.phases:
        user_seconds = fsum(
            phase.length_s * (phase.users_from + phase.users_to) / 2
            for phase in plan.profile.phases
        )
    pause_s = fsum(plan.profile.think_time_s or (0.0, 0.0)) / 2
    return round(user_seconds / (ANSWER_S + pause_s))


def chars(prompt: Prompt) -> int:
    """Characters of text in a prompt's messages."""
    texts: list[Any] = []
    for message in prompt.messages:
        content = message.get("content")
        texts += [part.get("text") for part in content] if isinstance(content, list) else [content]
    return sum(len(text) for text in texts if isinstance(text, str))


def sentences(plan: BlastPlan, scout_every_s: float | None) -> Iterator[str]:
    """What the tables do not say."""
    yield f"{spoken(plan.duration_s)} under load: {counted(plan.users, 'user')}, the same number on every host."
    for phase in plan.profile.phases:
        users = counted(phase.users_to, "user")
        if phase.users_from != phase.users_to:
            users = f"{phase.users_from:,} to {phase.users_to:,} users"
        yield f"Phase `{phase.name}`: {spoken(phase.length_s)}, {users} a host."
    if plan.rate is None:
        yield (
            f"A user sends its next request after the answer; `requests` assumes {ANSWER_S:g} s per answer, "
            "which was not measured."
        )
    else:
        yield f"Every host is sent {plan.rate:g} requests per second, on schedule."
    if plan.input_len:
        counter = f"`{plan.tokenizer}`" if plan.tokenizer else "each host's own tokenizer"
        yield f"Random prompts of {read_lengths(plan.input_len)}, as {counter} counts; no two are equal."
    if plan.output_len:
        yield f"Answers of {read_lengths(plan.output_len)}: vLLM and SGLang are told to ignore the end of text."
    if plan.endpoint != CHAT:
        yield f"Requests go to {plan.endpoint}."
    if plan.endpoint != EMBEDDINGS:
        yield f"{plan.streamed:.0%} of the answers are streamed."
    if plan.canaries:
        yield (
            f"{plan.canaries:g} % of the requests are canaries: a unique prompt, then exactly the same "
            "again. They are counted separately and never ranked."
        )
    if scout_every_s is None:
        yield "The hosts are not scraped during the load."
    else:
        yield f"Scout scrapes each host every {scout_every_s:g} s during the load."
    yield "Nothing was sent."
