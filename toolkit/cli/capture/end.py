"""What `toolkit capture` says at its end: the table or the last JSON object, what was lost, and why nothing was read."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click
import orjson

from toolkit.capture.files import Replayed
from toolkit.capture.summary import (
    TLS_ADVICE,
    CaptureSummary,
    advice,
    losses_in_words,
    requests_in_words,
)
from toolkit.cli.capture.options import ANY, CaptureOptions
from toolkit.cli.capture.progress import servers_here
from toolkit.cli.capture.sinks import OutputSink
from toolkit.cli.exit_codes import WORKED
from toolkit.cli.output import say
from toolkit.cli.places import command_on
from toolkit.errors import ToolkitError
from toolkit.units import span


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOf:
    """How a capture ended."""

    summary: CaptureSummary
    run: str | None
    """Its run in the database; None: nothing is there."""
    replayed: Replayed
    note: str | None
    """What the engine has to say of what it left out."""
    was_stopped: bool
    """By Ctrl-C or SIGTERM."""
    output: OutputSink | None
    failures: Sequence[ToolkitError]
    """Why it ended before its time, or could not be kept."""


def tell(end: EndOf, options: CaptureOptions) -> int:
    """Say everything, and return the exit code. Raises ToolkitError for what a user must not overlook."""
    if end.output is not None:
        end.output.print(orjson.dumps({"summary": asdict(end.summary) | {"run": end.run}}) + b"\n")
    elif end.summary.requests:
        from toolkit.cli.capture.table import print_capture

        print_capture(end.summary, options)
    if not _tells_nothing(end) and (
        end.output is not None or not end.summary.requests or not _on_one_screen()
    ):
        say(requests_in_words(end.summary), err=True)
        say(losses_in_words(end.summary, is_live=options.is_live), err=True)
    for note in _notes(end, options):
        say(note, err=True)
    if end.output is not None and end.output.error is not None:
        raise end.output.error
    others = (_unkept(end.summary, options), _nothing(end, options))
    errors = [*end.failures, *(error for error in others if error is not None)]
    if errors:
        for error in errors[:-1]:
            click.echo(f"Error: {error.message}", err=True)
        raise errors[-1]
    if end.run is not None and end.summary.prompts:
        click.echo(
            f"Next: `{command_on(options.database, 'workload')}` says what follows", err=True
        )
    return WORKED


def _tells_nothing(end: EndOf) -> bool:
    """No file could be read, and why is told by the errors; zeros in front of them would only look like a result."""
    summary = end.summary
    lost = (summary.gaps, summary.truncated, summary.encrypted, summary.unparsed)
    return bool(end.failures) and end.output is None and not summary.requests and not any(lost)


def _on_one_screen() -> bool:
    """Whether the table and what goes to stderr are read by the same person at the same place."""
    return sys.stdout is not None and sys.stdout.isatty()


def _notes(end: EndOf, options: CaptureOptions) -> list[str]:
    notes = [*end.replayed.notes, *([end.note] if end.note else [])]
    summary = end.summary
    if summary.left_out:
        notes.append(
            f"{summary.left_out:,} requests for other paths than `{options.path}` left out"
        )
    return notes + advice(summary, is_live=options.is_live)


def _unkept(summary: CaptureSummary, options: CaptureOptions) -> ToolkitError | None:
    """Requests that were read and are not where the user wanted them."""
    if summary.not_stored:
        return ToolkitError(
            f"{summary.not_stored:,} requests are not in `{options.database}`, which took nothing",
            "They are counted above; free the file or the disk, and capture again",
        )
    if summary.not_written:
        return ToolkitError(
            f"{summary.not_written:,} requests are not in `{options.jsonl}`, which took nothing",
            "They are counted above; free the disk, and capture again",
        )
    return None


def _nothing(end: EndOf, options: CaptureOptions) -> ToolkitError | None:
    """Why there is not one request, where that is worth an error: a person who stopped it knows."""
    summary = end.summary
    if summary.requests or summary.left_out:
        return None
    ports = " or ".join(map(str, options.port))
    if summary.encrypted:
        connections = "connection" if summary.encrypted == 1 else "connections"
        return ToolkitError(
            f"port {ports} carries TLS only ({summary.encrypted:,} {connections}), which cannot be read here",
            TLS_ADVICE,
        )
    if end.failures or (options.is_live and end.was_stopped):
        return None
    if options.is_live:
        return _nothing_arrived(summary, options, ports)
    if summary.segments:
        return ToolkitError(
            f"port {ports} carries no HTTP/1 request that could be read", _what_then(summary)
        )
    if summary.damaged_frames and not end.replayed.http_ports:
        return ToolkitError(f"there is no whole packet to port {ports}", UNCUT)
    return ToolkitError(f"there is no packet to port {ports}", _other_ports(end.replayed))


def _nothing_arrived(summary: CaptureSummary, options: CaptureOptions, ports: str) -> ToolkitError:
    where = f"port {ports} on `{options.iface or ANY}`"
    if summary.segments:
        return ToolkitError(
            f"{where} carries no HTTP/1 request that could be read", _what_then(summary)
        )
    others = [str(port) for port, _ in servers_here() if port not in options.port][:5]
    hints = (
        [f"Servers here listen on: {', '.join(others)}; name one with `--port`"] if others else []
    )
    hints.append(BY_ANY if (options.iface or ANY) == ANY else BY_ONE)
    return ToolkitError(
        f"nothing arrived for {where} in {span(options.duration)}", "\nor: ".join(hints)
    )


UNCUT = "Frames were cut when they were captured; capture again with `tcpdump -s 0`"
BY_ANY = (
    "Is this the clients' machine? `any` counts what comes in and what stays on `lo`;"
    " `--iface NAME` counts what goes out, too"
)
BY_ONE = "Is the traffic on this machine, and on that port? `--iface any` hears all interfaces"


def _what_then(summary: CaptureSummary) -> str:
    if summary.truncated:
        return UNCUT
    if summary.http2:
        return "It speaks HTTP/2; engines speak HTTP/1.1: capture between the proxy and the engine"
    return "Is that the port of the engine? Name another one with `--port`"


def _other_ports(replayed: Replayed) -> str:
    if not replayed.http_ports:
        return "No other port carries HTTP either; was it captured on the right interface?"
    named = " ".join(f"--port {port}" for port in replayed.http_ports[:5])
    return f"HTTP requests are there with: {named}"
