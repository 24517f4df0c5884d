"""What is told of a capture: how many requests and prompts, which came most often, and what was lost, by class.

It counts; it never prints, and never judges a workload (toolkit/workload does).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from toolkit.capture.counting import Counting
from toolkit.capture.jsonl import PREVIEW_CHARS
from toolkit.capture.records import Losses
from toolkit.records import Seen
from toolkit.units import counted, share

MOST_NAMES = 1_000
"""Paths and models told apart; a scanner asks for thousands."""
NAME_CHARS = 200
"""Of a path; a longer one is cut."""
MOST_CLIENTS = 100_000
MOST_PREVIEWS = 100_000
TOP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TopPrompt:
    """A prompt that came often."""

    prompt_key: str
    requests: int
    share: float
    """Of the requests with a prompt."""
    too_many: int = 0
    """By how much `requests` may be too high; above 0 only beyond the cap of exact counting."""
    prompt_preview: str | None = None
    """Only where the user asked to keep texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameCount:
    """How often a path or a model was asked for."""

    name: str
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSummary:
    """A capture in figures; the first eight keys are promised."""

    requests: int
    """All that were seen, damaged ones included."""
    unique: int
    """Different prompts."""
    kernel_drops: int
    app_drops: int
    gaps: int
    truncated: int
    encrypted: int
    unparsed: int
    complete: int
    damaged: int
    prompts: int
    """Requests with a prompt."""
    other: int
    """Whole requests without one, e.g., GET /metrics."""
    unreadable: int
    """Of these: with a body that could not be read in full."""
    repeat_share: float | None
    """Of the requests with a prompt, those whose prompt had come before."""
    unique_error_share: float | None
    """Standard error of `unique`, as a share of it; None: it is exact."""
    stream_share: float | None
    """Of the requests with a prompt."""
    clients: int
    clients_at_least: bool
    """There are more clients than were told apart."""
    from_ts: float | None
    to_ts: float | None
    left_out: int
    """Requests for other paths than the user asked for; in no other figure."""
    not_stored: int
    """Requests that the database had no room for; printed all the same."""
    not_written: int
    """Requests that the JSONL file had no room for."""
    gap_bytes: int
    http2: int
    fragments: int
    damaged_frames: int
    gave_up: int
    frames: int
    segments: int
    top: tuple[TopPrompt, ...]
    paths: tuple[NameCount, ...]
    models: tuple[NameCount, ...]
    statuses: tuple[NameCount, ...]
    """Of the answers, where they were followed."""


class RequestCounter:
    """Counts requests as they arrive; its memory is bounded whatever comes."""

    def __init__(self, counting: Counting | None = None) -> None:
        self.prompts = counting or Counting()
        self.requests = self.damaged = self.with_prompt = self.unreadable = self.streams = 0
        self._from_ts: float | None = None
        self._to_ts: float | None = None
        self._previews: dict[bytes, str] = {}
        self._paths, self._models, self._statuses = NameCounter(), NameCounter(), NameCounter()
        self._clients = NameCounter(MOST_CLIENTS)

    def add(self, seen: Seen) -> bool | None:
        """Count a request; tell whether its prompt is new, None where it has none or nobody knows."""
        self.requests += 1
        if self._from_ts is None or seen.ts < self._from_ts:
            self._from_ts = seen.ts
        if self._to_ts is None or seen.ts > self._to_ts:
            self._to_ts = seen.ts
        if seen.client is not None:
            self._clients.add(seen.client)
        if seen.path is not None:
            self._paths.add(seen.path[:NAME_CHARS])
        if seen.status is not None:
            self._statuses.add(str(seen.status))
        if seen.damaged:
            self.damaged += 1
            return None
        asked = seen.asked
        if asked is None or asked.prompt_key is None:
            self.unreadable += bool(asked and asked.problem) or bool(seen.problem)
            return None
        self.with_prompt += 1
        self.streams += asked.stream is True
        if asked.model is not None:
            self._models.add(asked.model)
        key = bytes.fromhex(asked.prompt_key)
        new = self.prompts.add(key)
        if asked.prompt_text is not None and len(self._previews) < MOST_PREVIEWS:
            self._previews.setdefault(key, asked.prompt_text[:PREVIEW_CHARS])
        return new

    @property
    def repeat_share(self) -> float | None:
        """Of the requests with a prompt, those whose prompt had come before; beyond the cap by the estimate."""
        if not self.with_prompt:
            return None
        return max(0.0, 1 - self.prompts.unique / self.with_prompt)

    def top(self, most: int = TOP) -> tuple[TopPrompt, ...]:
        """The prompts that came most often."""
        return tuple(
            TopPrompt(
                prompt_key=one.key.hex(),
                requests=one.arrivals,
                share=one.arrivals / self.with_prompt,
                too_many=one.error,
                prompt_preview=self._previews.get(one.key),
            )
            for one in self.prompts.top(most)
        )

    def summary(
        self, losses: Losses, *, left_out: int = 0, not_stored: int = 0, not_written: int = 0
    ) -> CaptureSummary:
        """All of it, with what was lost."""
        streams = self.streams / self.with_prompt if self.with_prompt else None
        return CaptureSummary(
            requests=self.requests,
            unique=self.prompts.unique,
            complete=self.requests - self.damaged,
            damaged=self.damaged,
            prompts=self.with_prompt,
            other=self.requests - self.damaged - self.with_prompt,
            unreadable=self.unreadable,
            repeat_share=self.repeat_share,
            unique_error_share=self.prompts.error,
            stream_share=streams,
            clients=len(self._clients),
            clients_at_least=self._clients.others > 0,
            from_ts=self._from_ts,
            to_ts=self._to_ts,
            left_out=left_out,
            not_stored=not_stored,
            not_written=not_written,
            top=self.top(),
            paths=self._paths.top(),
            models=self._models.top(),
            statuses=self._statuses.top(),
            **{
                one.name: getattr(losses, one.name)
                for one in fields(CaptureSummary)
                if hasattr(losses, one.name)
            },
        )


class NameCounter:
    """How often each of a bounded number of names came; all others together."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._counts: dict[str, int] = {}
        self.others = 0

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, name: str) -> None:
        """Count one."""
        count = self._counts.get(name)
        if count is not None:
            self._counts[name] = count + 1
        elif len(self._counts) < self._most:
            self._counts[name] = 1
        else:
            self.others += 1

    def top(self, most: int = TOP) -> tuple[NameCount, ...]:
        """The names that came most often, the first of equal ones first."""
        order = sorted(self._counts.items(), key=lambda item: -item[1])
        return tuple(NameCount(name=name, requests=count) for name, count in order[:most])


# --- in words ---------------------------------------------------------------------------------------

LOSS_CLASSES: Sequence[tuple[str, str]] = (
    ("kernel_drops", "kernel drops"),
    ("app_drops", "application drops"),
    ("gaps", "gaps"),
    ("truncated", "truncated frames"),
    ("encrypted", "encrypted connections"),
    ("unparsed", "unparsed"),
)
"""Always told, even when there are none."""
MORE_CLASSES: Sequence[tuple[str, str]] = (
    ("damaged", "damaged requests"),
    ("not_stored", "requests not stored"),
    ("not_written", "requests not written"),
    ("http2", "HTTP/2 connections"),
    ("fragments", "packets with missing fragments"),
    ("damaged_frames", "damaged frames"),
    ("gave_up", "connections given up for want of room"),
)
"""Told when there are any."""

FROM_FILES = " (what a kernel dropped while a file was written shows as gaps)"


def losses_in_words(summary: CaptureSummary, *, is_live: bool = True) -> str:
    """What was lost, class by class."""
    always = [(words, getattr(summary, name)) for name, words in LOSS_CLASSES]
    more = [(words, getattr(summary, name)) for name, words in MORE_CLASSES]
    counts = always + [(words, count) for words, count in more if count]
    said = ", ".join(f"{words} {count:,}" for words, count in counts)
    end = "" if is_live or summary.kernel_drops else FROM_FILES
    return f"Lost: {said}{end}"


def lost_anything(summary: CaptureSummary) -> bool:
    """Whether any class of loss is above zero."""
    return any(getattr(summary, name) for name, _ in (*LOSS_CLASSES, *MORE_CLASSES))


def requests_in_words(summary: CaptureSummary) -> str:
    """How many requests and prompts there were, in one sentence."""
    said = counted(summary.requests, "request")
    if not summary.prompts:
        return f"{said}, none with a prompt" if summary.requests else said
    about = "about " if summary.unique_error_share is not None else ""
    unique = f"{about}{counted(summary.unique, 'unique prompt')}"
    if summary.prompts < summary.requests:
        said += f" ({summary.prompts:,} with a prompt)"
    return f"{said}, {unique}, {share(summary.repeat_share)} repeats"


# --- what to do about it ----------------------------------------------------------------------------

TLS_ADVICE = (
    "Capture behind whatever ends TLS: the plain hop from nginx or Envoy to the engine, mostly on `lo`\n"
    "or: read the proxy's or gateway's log of requests: `toolkit workload --from LOG`\n"
    "or: with a key log, let tshark decrypt (`-o tls.keylog_file:FILE`) and read what it writes"
)
"""Encrypted packets stay unreadable; in the order in which to try."""


ABOUT_GAPS = (
    "gaps: bytes that the capture does not hold; connections that had begun before it are cut, too"
)
ADVICE = {
    "kernel_drops": "kernel drops: `--buffer 256MiB` bridges longer stalls",
    "app_drops": "application drops: JSON and the database did not keep up; try `--no-store --jsonl FILE`",
    "truncated": "truncated frames: they were cut when they were captured; capture again with `tcpdump -s 0`",
    "encrypted": f"encrypted connections: nobody can read them here. {TLS_ADVICE.splitlines()[0]}",
    "http2": "HTTP/2 connections: only HTTP/1.1 is read, which is what engines speak; capture behind the proxy",
    "gaps": ABOUT_GAPS,
}
"""Against each class of loss, most urgent first."""


def advice(summary: CaptureSummary, *, is_live: bool) -> list[str]:
    """What to do against each class of loss there was, most urgent first."""
    found = {name: words for name, words in ADVICE.items() if getattr(summary, name)}
    if not summary.requests:
        found.pop("encrypted", None)  # which is then the error
    if summary.kernel_drops or summary.truncated:
        found.pop("gaps", None)  # which follow from these
    elif is_live and "gaps" in found:
        found["gaps"] += "; so is what goes by another interface"
    return list(found.values())
