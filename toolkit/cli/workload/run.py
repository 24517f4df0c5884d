"""One `toolkit workload`: read the requests from a capture in the database or from files, reckon the report, show it or write it."""

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import click

from toolkit.cli.output import print_json
from toolkit.cli.waiting import waiting_for
from toolkit.cli.workload.show import print_report
from toolkit.errors import ToolkitError
from toolkit.records import Seen
from toolkit.store import Store
from toolkit.units import clock
from toolkit.workload import (
    ReportSettings,
    RequestColumns,
    RequestSource,
    burstgpt,
    columns,
    lines_of,
    mooncake,
    read,
    summarise,
    synthesis,
)
from toolkit.workload.page import losses_told, page
from toolkit.workload.summary import PLAIN, refusals_told

BLOCK_TOKENS = 16
"""Of the blocks that prompts are compared in."""
HINTED_RUNS = 5
FIRST_REAL_TS = 86_400.0 * 365
"""Seconds since 1970. Times of that year are a trace's own clock, not a calendar's."""
CAPTURE_IT = (
    "Capture some: `toolkit capture data/sample.pcap`, or live `toolkit capture --port 8000`; or"
    " read a file with `--from`"
)
Identities = Literal["bodies", "prompts"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSource:
    """The requests of a report, and where they come from."""

    columns: RequestColumns
    told: str
    """The source in a few words."""
    kind: str
    """`capture`, or of a file the kind that it was found to be."""
    identities: Identities
    arrivals: bool
    losses: Mapping[str, int]
    """Of a capture: what did not become a request, by class."""
    notes: tuple[str, ...]
    beginnings: bool = True
    """False: the source does not tell how prompts begin."""
    max_model_len: int | None = None
    """What most servers run with, as scout last saw it; so with the next."""
    kv_cache_tokens: int | None = None


def run(
    *,
    sources: tuple[str, ...],
    run: str | None,
    since: float | None,
    until: float | None,
    latency: float | None,
    max_model_len: int | None,
    model_limit: int | None,
    max_num_seqs: int | None,
    policy: Literal["all", "declared"],
    ttl: tuple[float, ...],
    size: tuple[int, ...],
    show_clients: bool,
    as_json: bool,
    html: Path | None,
    profile: Path | None,
    export: Literal["mooncake", "burstgpt"] | None,
    database: Path,
) -> None:
    """Do what the command line asks. Raises ToolkitError where no request asks a model for anything."""
    texts = profile is not None
    with waiting_for("Reading"):
        if sources:
            found = _from_files(sources, since, until, texts=texts, show_clients=show_clients)
        else:
            found = _from_database(database, run, since, until, texts=texts)
    laid = found.columns
    if not len(laid):
        counts = (
            (laid.other, "of other kinds, e.g., GET /metrics"),
            (sum(laid.refused.values()), f"refused ({refusals_told(laid.refused)})"),
            (laid.damaged, "damaged"),
        )
        met = ", ".join(f"{count:,} {what}" for count, what in counts if count)
        what = "was answered" if laid.refused else "asks a model for anything"
        raise ToolkitError(
            f"no request in {found.told} {what}",
            f"Met were {met}; see what else there is with `toolkit runs` or `--from`"
            if met
            else "Is it the right source, and do `--since` and `--until` leave any?",
        )
    if export:
        with waiting_for("Reckoning"):
            trace = (mooncake if export == "mooncake" else burstgpt)(laid, arrivals=found.arrivals)
        for line in trace.lines:
            click.echo(line, nl=False)
        for note in trace.notes:
            click.echo(f"Note: {note}", err=True)
        return

    kv_blocks = (found.kv_cache_tokens or 0) // BLOCK_TOKENS
    settings = ReportSettings(
        latency_s=latency,
        current_max_model_len=max_model_len or found.max_model_len,
        model_max_len=model_limit,
        max_num_seqs=max_num_seqs,
        policy=policy,
        identities=found.identities,
        arrivals=found.arrivals,
        beginnings=found.beginnings,
        kv_blocks=(kv_blocks,) if kv_blocks else (),
        sizes=(*sorted(set(size)), None) if size else PLAIN.sizes,
        ttls_s=tuple(sorted(set(ttl))) or PLAIN.ttls_s,
    )
    with waiting_for("Reckoning"):
        report = summarise(laid, options=settings)
    source = found.told.replace("`", "")
    # files first: who reads the report may close it early, as `head` does, and that ends the command
    if html:
        with waiting_for("Drawing"):
            text = page(report, told=found.told, notes=found.notes, losses=dict(found.losses))
        _write(html, text, "Report")
    if profile:
        with waiting_for("Reckoning the profile"):
            made = synthesis(laid, source=source, identities=found.identities is not None)
        _write(profile, made.toml, "Profile")
        for note in made.notes:
            click.echo(f"Note: {note}", err=True)
        click.echo(f"Try it: toolkit blast hosts.txt --profile {profile} --dry-run", err=True)
    if as_json:
        about = {
            "source": source,
            "source_kind": found.kind,
            "losses": dict(found.losses),
            "notes": list(found.notes),
        }
        print_json(asdict(report) | about)
    else:
        print_report(report, source, [*losses_told(found.losses), *found.notes])


def _from_database(
    database: Path, name: str | None, since: float | None, until: float | None, *, texts: bool
) -> ReportSource:
    with Store.open_readonly(database) as store:
        if name is None:
            run = next(iter(store.runs(verb="capture", limit=1)), None)
            if run is None:
                raise ToolkitError(f"`{database}` holds no capture yet", CAPTURE_IT)
        else:
            run = store.run(name)
            if run is None or run.verb != "capture":
                newest = store.runs(verb="capture", limit=HINTED_RUNS)
                known = ", ".join(f"`{one.id}`" for one in newest)
                raise ToolkitError(
                    f"`{database}` has no capture `{name}`",
                    f"Its newest captures: {known or 'none yet'}",
                )
        looks = [store.last_telling(host.name, host.url) for host in store.hosts()]

        def usual(field: str) -> int | None:
            """What most of the hosts told at the last look that told it."""
            told = [getattr(one, field) for one in looks if one is not None]
            counts = Counter(value for value in told if value is not None)
            return counts.most_common(1)[0][0] if counts else None

        return ReportSource(
            columns=columns(store.seen(run.id, from_ts=since, to_ts=until, texts=texts)),
            told=f"capture `{run.id}` of {clock(run.started_at)}",
            kind="capture",
            identities="bodies",
            arrivals=True,
            losses=_counts(store.capture(run.id)),
            notes=() if run.ended_at else ("the capture has no end: it goes on, or it was killed",),
            max_model_len=usual("max_model_len"),
            kv_cache_tokens=usual("kv_cache_tokens"),
        )


def _from_files(
    words: tuple[str, ...],
    since: float | None,
    until: float | None,
    *,
    texts: bool,
    show_clients: bool,
) -> ReportSource:
    names = ["standard input" if word == "-" else word for word in words]
    secret = os.urandom(16)

    def client(address: str) -> str:
        """By its address if asked, else by a hash with a secret that lasts as long as this process."""
        if show_clients:
            return address
        told = address.encode(errors="surrogateescape")
        return hashlib.blake2b(told, key=secret, digest_size=6).hexdigest()

    with ExitStack() as files:
        found: list[RequestSource] = []
        for word, name in zip(words, names, strict=True):
            lines = lines_of(files.enter_context(_opened(word)).readline)
            source = read(lines, name, client=client, keep_text=texts)
            if not source.arrivals and (since is not None or until is not None):
                raise ToolkitError(
                    f"`{name}` does not tell when its requests came",
                    "Leave --since and --until out",
                )
            found.append(source)

        def chosen() -> Iterator[Seen]:
            for source in found:
                for one in source.seen:
                    if (since is None or one.ts >= since) and (until is None or one.ts <= until):
                        yield one

        laid = columns(chosen())
    losses: Counter[str] = Counter()
    for source in found:
        losses.update(_counts(source.summary))
    notes = [note for source in found for note in source.notes]
    if len(laid) and laid.ts[0] < FIRST_REAL_TS <= laid.ts[-1]:
        notes.append(
            "some times count from a trace's own start, others are of a calendar: what rests on times, e.g., the rate and"
            " what a time to live takes, means nothing over both"
        )
    kinds = [one.kind for one in found]
    # of several sources together no more is known than of the least telling one
    weakest: tuple[Identities, ...] = (None, "prompts", "bodies")
    return ReportSource(
        columns=laid,
        told=", ".join(f"`{name}` ({kind})" for name, kind in zip(names, kinds, strict=True)),
        kind=kinds[0] if len(set(kinds)) == 1 else "mixed",
        identities=next(one for one in weakest if one in [each.identities for each in found]),
        arrivals=all(one.arrivals for one in found),
        beginnings=all(one.beginnings for one in found),
        losses=dict(losses),
        notes=tuple(notes),
    )


def _counts(summary: Mapping[str, object] | None) -> dict[str, int]:
    """A capture's word on itself, the whole numbers of it."""
    return {
        name: value
        for name, value in (summary or {}).items()
        if isinstance(value, int) and value >= 0
    }


def _opened(word: str) -> BinaryIO:
    if word == "-":
        if sys.stdin is None:
            raise ToolkitError("standard input is closed", "Name a file, or pipe one in")
        return sys.stdin.buffer
    try:
        return Path(word).open("rb")
    except OSError as error:
        raise ToolkitError(
            f"`{word}` cannot be read: {(error.strerror or 'no reason given').lower()}",
            "Give a log, a trace or a file of request bodies",
        ) from error


def _write(path: Path, text: str, what: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error) or "no reason given").lower()
        raise ToolkitError(f"`{path}` cannot be written: {reason}", "Give another file") from error
    click.echo(f"{what}: {path}", err=True)
