"""The requests of `toolkit workload`: a capture of the database, or files."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from toolkit.cli.inputs import open_input
from toolkit.cli.named_run import chosen_run
from toolkit.errors import ToolkitError
from toolkit.records import Seen
from toolkit.store import Store
from toolkit.units import clock
from toolkit.workload import RequestColumns, RequestSource, columns, lines_of, read
from toolkit.workload.page import FIRST_REAL_TS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSource:
    """The requests of a report, and where they come from."""

    columns: RequestColumns
    source: str
    """Where they come from, in a few words."""
    kind: str
    """`capture`, or of a file the kind that it was found to be."""
    losses: Mapping[str, int]
    """Of a capture: what did not become a request, by class."""
    notes: tuple[str, ...]
    max_model_len: int | None = None
    """What most servers run with, as scout last saw it; so with the next."""
    kv_cache_tokens: int | None = None


def from_database(
    database: Path, name: str | None, since: float | None, until: float | None, *, texts: bool
) -> ReportSource:
    """The capture of this name, else the newest one; `texts`: with the prompts that were kept. Raises ToolkitError."""
    with Store.open_readonly(database) as store:
        run = chosen_run(store, name, database, "capture")
        scrapes = [store.last_telling(host.name, host.url) for host in store.hosts()]

        def usual(field: str) -> int | None:
            """What most of the hosts said when they last said it."""
            values = [getattr(one, field) for one in scrapes if one is not None]
            counts = Counter(value for value in values if value is not None)
            return counts.most_common(1)[0][0] if counts else None

        return ReportSource(
            columns=columns(store.seen(run.id, from_ts=since, to_ts=until, texts=texts)),
            source=f"capture `{run.id}` of {clock(run.started_at)}",
            kind="capture",
            losses=_losses(store.capture(run.id)),
            notes=() if run.ended_at else ("the capture has no end: it goes on, or it was killed",),
            max_model_len=usual("max_model_len"),
            kv_cache_tokens=usual("kv_cache_tokens"),
        )


def from_files(
    words: tuple[str, ...],
    since: float | None,
    until: float | None,
    *,
    texts: bool,
    show_clients: bool,
) -> ReportSource:
    """All files together, `-` is standard input. Raises ToolkitError."""
    names = ["standard input" if word == "-" else word for word in words]
    secret = os.urandom(16)

    def client(address: str) -> str:
        """By its address if asked, else by a hash with a secret that lasts as long as this process."""
        if show_clients:
            return address
        text = address.encode(errors="surrogateescape")
        return hashlib.blake2b(text, key=secret, digest_size=6).hexdigest()

    with ExitStack() as files:
        found: list[RequestSource] = []
        for word, name in zip(words, names, strict=True):
            file = open_input(word, "Give a log, a trace or a file of request bodies")
            lines = lines_of(files.enter_context(file).readline)
            source = read(lines, name, client=client, keep_text=texts)
            if not source.arrivals and (since is not None or until is not None):
                raise ToolkitError(
                    f"`{name}` does not say when its requests came",
                    "Leave --since and --until out",
                )
            found.append(source)

        def chosen() -> Iterator[Seen]:
            for source in found:
                for one in source.seen:
                    if (since is None or one.ts >= since) and (until is None or one.ts <= until):
                        yield one

        # of several sources together no more is known than of the one that says least
        weakest = min(found, key=lambda one: (None, "prompts", "bodies").index(one.identities))
        laid = columns(
            chosen(),
            identities=weakest.identities,
            arrivals=all(one.arrivals for one in found),
            beginnings=all(one.beginnings for one in found),
        )
    losses: Counter[str] = Counter()
    for source in found:
        losses.update(_losses(source.summary))
    notes = [note for source in found for note in source.notes]
    if len(laid) and laid.ts[0] < FIRST_REAL_TS <= laid.ts[-1]:
        notes.append(
            "some times count from a trace's own start, others are of a calendar: what rests on times, e.g., the rate and"
            " what a time to live takes, means nothing over both"
        )
    kinds = [one.kind for one in found]
    return ReportSource(
        columns=laid,
        source=", ".join(f"`{name}` ({kind})" for name, kind in zip(names, kinds, strict=True)),
        kind=kinds[0] if len(set(kinds)) == 1 else "mixed",
        losses=dict(losses),
        notes=tuple(notes),
    )


def _losses(summary: Mapping[str, object] | None) -> dict[str, int]:
    """What a capture says of itself, the whole numbers of it."""
    return {
        name: value
        for name, value in (summary or {}).items()
        if isinstance(value, int) and value >= 0
    }
