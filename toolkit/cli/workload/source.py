"""Where a report's requests come from: a capture in the database, or files."""

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from toolkit.cli.workload.options import WorkloadOptions
from toolkit.errors import ToolkitError
from toolkit.records import Run, Seen, Sighting
from toolkit.store import Store
from toolkit.units import clock
from toolkit.workload.columns import RequestColumns, columns
from toolkit.workload.logs import RequestSource, lines_of, read

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


def arrived(options: WorkloadOptions, *, texts: bool) -> ReportSource:
    """Read all requests that the command line asks for. Raises ToolkitError where there are none to read."""
    if options.sources:
        return _from_files(options, texts=texts)
    with Store.open_readonly(options.database) as store:
        run = _run(store, options)
        seen = store.seen(run.id, from_ts=options.since, to_ts=options.until, texts=texts)
        laid = columns(seen)
        looks = [store.last_telling(host.name, host.url) for host in store.hosts()]
        return ReportSource(
            columns=laid,
            told=f"capture `{run.id}` of {clock(run.started_at)}",
            kind="capture",
            identities="bodies",
            arrivals=True,
            losses=_counts(store.capture(run.id)),
            notes=() if run.ended_at else ("the capture has no end: it goes on, or it was killed",),
            max_model_len=_usual(looks, "max_model_len"),
            kv_cache_tokens=_usual(looks, "kv_cache_tokens"),
        )


def _run(store: Store, options: WorkloadOptions) -> Run:
    if options.run is None:
        captures = store.runs(verb="capture", limit=1)
        if not captures:
            raise ToolkitError(f"`{options.database}` holds no capture yet", CAPTURE_IT)
        return captures[0]
    run = store.run(options.run)
    if run is None or run.verb != "capture":
        known = ", ".join(f"`{one.id}`" for one in store.runs(verb="capture", limit=HINTED_RUNS))
        raise ToolkitError(
            f"`{options.database}` has no capture `{options.run}`",
            f"Its newest captures: {known or 'none yet'}",
        )
    return run


def _usual(looks: Iterable[Sighting | None], name: str) -> int | None:
    """What most of the hosts told at the last look that told it."""
    told = [getattr(one, name) for one in looks if one is not None]
    counts = Counter(value for value in told if value is not None)
    return counts.most_common(1)[0][0] if counts else None


def _from_files(options: WorkloadOptions, *, texts: bool) -> ReportSource:
    with ExitStack() as files:
        hidden = _clients(shown=options.show_clients)
        found = [
            read(
                lines_of(files.enter_context(_opened(word)).readline),
                _name(word),
                client=hidden,
                keep_text=texts,
            )
            for word in options.sources
        ]
        _refuse_to_choose_by_time(found, options)
        laid = columns(_between(_all_of(found), options))
    return ReportSource(
        columns=laid,
        told=", ".join(
            f"`{_name(word)}` ({one.kind})"
            for word, one in zip(options.sources, found, strict=True)
        ),
        kind=found[0].kind if len({one.kind for one in found}) == 1 else "mixed",
        identities=_weakest([one.identities for one in found]),
        arrivals=all(one.arrivals for one in found),
        beginnings=all(one.beginnings for one in found),
        losses=_losses(found),
        notes=(*(note for one in found for note in one.notes), *_of_two_clocks(laid)),
    )


def _refuse_to_choose_by_time(found: Iterable[RequestSource], options: WorkloadOptions) -> None:
    if options.since is None and options.until is None:
        return
    for word, one in zip(options.sources, found, strict=True):
        if not one.arrivals:
            raise ToolkitError(
                f"`{_name(word)}` does not tell when its requests came",
                "Leave --since and --until out",
            )


def _of_two_clocks(laid: RequestColumns) -> Iterator[str]:
    if len(laid) and laid.ts[0] < FIRST_REAL_TS <= laid.ts[-1]:
        yield (
            "some times count from a trace's own start, others are of a calendar: what rests on times, e.g., the rate and"
            " what a time to live takes, means nothing over both"
        )


def _weakest(identities: list[Identities]) -> Identities:
    """Of several sources together no more is known than of the least telling one."""
    return next((one for one in (None, "prompts") if one in identities), "bodies")


def _losses(found: Iterable[RequestSource]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in found:
        total.update(_counts(one.summary))
    return dict(total)


def _counts(summary: Mapping[str, object] | None) -> dict[str, int]:
    """A capture's word on itself, the whole numbers of it."""
    return {
        name: value
        for name, value in (summary or {}).items()
        if isinstance(value, int) and value >= 0
    }


def _all_of(found: Iterable[RequestSource]) -> Iterator[Seen]:
    for one in found:
        yield from one.seen


def _between(seen: Iterable[Seen], options: WorkloadOptions) -> Iterator[Seen]:
    since, until = options.since, options.until
    for one in seen:
        if (since is None or one.ts >= since) and (until is None or one.ts <= until):
            yield one


def _name(word: str) -> str:
    return "standard input" if word == "-" else word


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


def _clients(*, shown: bool) -> Callable[[str], str]:
    """How a client is named: by its address if asked, else by a hash with a secret that lasts as long as this process."""
    if shown:
        return lambda address: address
    secret = os.urandom(16)
    return lambda address: hashlib.blake2b(
        address.encode(errors="surrogateescape"), key=secret, digest_size=6
    ).hexdigest()
