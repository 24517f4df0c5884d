"""How `toolkit capture` shows a capture to a person: figures, top prompts, what is asked for, what was lost."""

from rich.text import Text

from toolkit.capture.summary import (
    CaptureSummary,
    losses_in_words,
    lost_anything,
    requests_in_words,
)
from toolkit.report.tables import Column, screen
from toolkit.units import clock, counted, rate, share, span

KEY_DIGITS = 12
LISTED = 5
WIDEST_PREVIEW = 48
WIDEST_NAME = 60


def print_capture(summary: CaptureSummary, *, full: bool, is_live: bool) -> None:
    """Print the whole page; `full`: answers were followed."""
    assert summary.from_ts is not None
    assert summary.to_ts is not None
    console = screen()
    console.print(Text(requests_in_words(summary), style="bold"))
    took_s = summary.to_ts - summary.from_ts
    parts = [f"at {clock(summary.from_ts)}"]
    if took_s >= 1:
        parts = [f"from {clock(summary.from_ts)} to {clock(summary.to_ts)} ({span(took_s)})"]
        parts.append(f"{rate(summary.requests / took_s)} requests/s")
    if summary.stream_share is not None:
        parts.append(f"{share(summary.stream_share)} of the prompts streamed")
    least = "at least " if summary.clients_at_least else ""
    parts.append(f"{least}{counted(summary.clients, 'client')}")
    console.print(Text(", ".join(parts)))

    if summary.top:
        columns = [
            Column(title="prompt"),
            Column(title="requests", right=True),
            Column(title="share", right=True),
        ]
        has_preview = any(one.prompt_preview for one in summary.top)
        if has_preview:
            columns.append(Column(title="begins"))
        rows = []
        for one in summary.top[:LISTED]:
            count = f"{one.requests:,}"
            if one.too_many:
                count = f"{one.requests - one.too_many:,} to {count}"
            row = [one.prompt_key[:KEY_DIGITS], count, share(one.share)]
            if has_preview:
                line = " ".join((one.prompt_preview or "").split())
                row.append(line if len(line) <= WIDEST_PREVIEW else f"{line[:WIDEST_PREVIEW]}...")
            rows.append(row)
        console.print()
        console.table(columns, rows)

    console.print()
    for title in ("paths", "models", "statuses"):
        names = getattr(summary, title)
        if names:
            listed = [f"{one.name[:WIDEST_NAME]} {one.requests:,}" for one in names[:LISTED]]
            more = ", ..." if len(names) > LISTED else ""
            console.print(Text(f"{title}: {', '.join(listed)}{more}"))
    if summary.unreadable:
        unreadable = f"{summary.unreadable:,} requests have a body that is no readable JSON request"
        console.print(Text(unreadable))
    unknown = "output lengths, latencies and concurrency are unknown"
    if not full:
        console.print(Text(f"{unknown}; --full follows the answers", style="dim"))
    elif not summary.statuses:
        console.print(Text(f"{unknown}; no answer of the server was seen", style="dim"))
    style = "yellow" if lost_anything(summary) else ""
    console.print(Text(losses_in_words(summary, is_live=is_live), style=style))
