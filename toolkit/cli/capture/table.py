"""How `toolkit capture` shows a capture to a person: figures, top prompts, what is asked for, what was lost."""

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from toolkit.capture.summary import (
    CaptureSummary,
    NameCount,
    losses_in_words,
    lost_anything,
    requests_in_words,
)
from toolkit.cli.capture.options import CaptureOptions
from toolkit.report.tables import Column, fit_table, screen
from toolkit.units import clock, counted, rate, share, span

KEY_DIGITS = 12
LISTED = 5
WIDEST_PREVIEW = 48
WIDEST_NAME = 60


def print_capture(summary: CaptureSummary, options: CaptureOptions) -> None:
    """Print the whole page."""
    console = screen()
    for part in page(summary, options, console):
        console.print(part)


def page(
    summary: CaptureSummary, options: CaptureOptions, console: Console
) -> Iterator[RenderableType]:
    """The heading, the prompts that came most often, and the sentences below them."""
    yield Text(requests_in_words(summary), style="bold")
    yield Text(_when(summary))
    if summary.top:
        yield Text()
        yield _prompts(summary, console)
    yield Text()
    yield from _names("paths", summary.paths)
    yield from _names("models", summary.models)
    yield from _names("statuses", summary.statuses)
    if summary.unreadable:
        yield Text(f"{summary.unreadable:,} requests have a body that is no readable JSON request")
    if not options.full:
        yield Text(
            "output lengths, latencies and concurrency are unknown; --full follows the answers",
            style="dim",
        )
    elif not summary.statuses:
        yield Text(
            "output lengths, latencies and concurrency are unknown; no answer of the server was seen",
            style="dim",
        )
    style = "yellow" if lost_anything(summary) else ""
    yield Text(losses_in_words(summary, is_live=options.is_live), style=style)


def _when(summary: CaptureSummary) -> str:
    assert summary.from_ts is not None
    assert summary.to_ts is not None
    took_s = summary.to_ts - summary.from_ts
    parts = [f"at {clock(summary.from_ts)}"]
    if took_s >= 1:
        parts = [f"from {clock(summary.from_ts)} to {clock(summary.to_ts)} ({span(took_s)})"]
        parts.append(f"{rate(summary.requests / took_s)} requests/s")
    if summary.stream_share is not None:
        parts.append(f"{share(summary.stream_share)} of the prompts streamed")
    least = "at least " if summary.clients_at_least else ""
    parts.append(f"{least}{counted(summary.clients, 'client')}")
    return ", ".join(parts)


def _prompts(summary: CaptureSummary, console: Console) -> RenderableType:
    has_preview = any(one.prompt_preview for one in summary.top)
    columns = [
        Column(title="prompt"),
        Column(title="requests", right=True),
        Column(title="share", right=True),
    ]
    if has_preview:
        columns.append(Column(title="begins"))
    rows = []
    for one in summary.top[:LISTED]:
        count = f"{one.requests:,}"
        if one.too_many:
            count = f"{one.requests - one.too_many:,} to {count}"
        row = [one.prompt_key[:KEY_DIGITS], count, share(one.share)]
        rows.append([*row, *([_one_line(one.prompt_preview)] if has_preview else [])])
    return fit_table(columns, rows, console)


def _one_line(text: str | None) -> str:
    line = "" if text is None else " ".join(text.split())
    return line if len(line) <= WIDEST_PREVIEW else f"{line[:WIDEST_PREVIEW]}..."


def _names(title: str, names: Sequence[NameCount]) -> Iterator[Text]:
    """What was asked for, the most frequent first."""
    if not names:
        return
    told = [f"{one.name[:WIDEST_NAME]} {one.requests:,}" for one in names[:LISTED]]
    yield Text(f"{title}: {', '.join(told)}{', ...' if len(names) > LISTED else ''}")
