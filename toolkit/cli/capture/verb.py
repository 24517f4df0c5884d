"""`toolkit capture`: read what clients really send, live or from capture files, and keep it."""

import gc
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal, Self

import click

from toolkit.cli.help_page import Command, advanced
from toolkit.cli.options import DURATION, FILE, INTERFACE, SIZE, database_option
from toolkit.cli.output import say, to_stderr
from toolkit.cli.places import command_on
from toolkit.errors import ToolkitError, reason_of
from toolkit.safe_text import moving_line
from toolkit.units import counted, span

if TYPE_CHECKING:
    from toolkit.capture.records import HttpRequest, Losses
    from toolkit.capture.summary import CaptureSummary

ANY = "any"
ROTATE_BYTES = 100_000_000
KEEP = 9
CLIENT_BYTES = 6
"""Of a client's hash: 12 digits; of 10,000 clients two share one in 1 of 5 million captures."""
PIPE_GRACE_S = 1.0
"""For a tcpdump before us to write what it holds, and for us to read it."""
MANY_WAIT = 10_000
"""Requests that are read and not counted: at 10,000 a second, the screen is a second behind."""
REMEMBERED = 65_536
"""Clients whose hash or address is remembered."""
UNCUT = "Frames were cut when they were captured; capture again with `tcpdump -s 0`"


@click.command(
    "capture", cls=Command, short_help="Read what clients really send, live or from files."
)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=FILE)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    multiple=True,
    default=(8000,),
    show_default=True,
    help="The server's TCP port; may be repeated.",
)
@click.option(
    "--iface",
    metavar="NAME",
    type=INTERFACE,
    help="Interface, or `any` or `lo`.  [default: any]",
)
@click.option(
    "--engine",
    type=click.Choice(["scapy", "ring", "tcpdump"]),
    hidden=True,
    help="How packets were taken, when there was a choice.",
)
@advanced("--buffer", type=SIZE, help="Kernel memory for packets that wait.  [default: 64MiB]")
@click.option(
    "--full",
    is_flag=True,
    help="Follow the answers, too: status, TTFT, latency, tokens, finish reason, in flight.",
)
@click.option("--duration", type=DURATION, help="End after this long.  [default: Ctrl-C ends it]")
@advanced("--follow", is_flag=True, help="Go on with what is appended to FILE.")
@advanced("--path", metavar="GLOB", help="Only requests for this path, e.g. `/v1/*`.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per request, and a summary."
)
@advanced("--bodies", is_flag=True, help="With --json: print each body in full.")
@advanced(
    "--jsonl",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append one JSON object per request to this file.",
)
@advanced("--rotate", type=SIZE, help="Move FILE to FILE.1 at this size.  [default: 100MB]")
@advanced("--keep", type=click.IntRange(0), help="Rotated files to keep.  [default: 9]")
@click.option("--store-prompts", is_flag=True, help="Keep prompts' text, not only its hash.")
@advanced("--show-clients", is_flag=True, help="Keep clients' addresses, not only a hash.")
@database_option
@advanced("--no-store", is_flag=True, help="Do not store anything in the database.")
def command(
    *,
    files: tuple[str, ...],
    port: tuple[int, ...],
    iface: str | None,
    engine: Literal["scapy", "ring", "tcpdump"] | None,
    buffer: int | None,
    full: bool,
    duration: float | None,
    follow: bool,
    path: str | None,
    as_json: bool,
    bodies: bool,
    jsonl: Path | None,
    rotate: int | None,
    keep: int | None,
    store_prompts: bool,
    show_clients: bool,
    database: Path,
    no_store: bool,
) -> None:
    """Read the requests that clients send to an LLM server: from packets on this machine, or from
    capture FILES (pcap, pcapng, gzipped or not; `-` is a pipe from tcpdump). Nothing is sent and
    nothing stands in the way: the server does not notice. Only hashes and lengths are kept, and
    prompts' text with --store-prompts alone. What was lost on the way is always reported, by class.

    \b
      toolkit capture                               port 8000, live, until Ctrl-C
      toolkit capture --iface eth0 --port 8000 --port 8001 --duration 10m --full
      toolkit capture monday.pcap tuesday.pcap.gz   no rights needed
      ssh gpu1 sudo tcpdump -i any -s 0 -U -w - tcp port 8000 | toolkit capture -
    \f
    \b
      toolkit capture monday.pcap --json --bodies   one object a request
      toolkit workload
          what follows from what was captured
    """
    is_live = not files
    ends_by_itself = not (is_live or follow or "-" in files)
    # two words that cannot both be meant: one of them would be passed over in silence
    for is_wrong, why in (
        (
            not is_live and iface is not None,
            "--iface is where packets are taken from; a FILE has its own",
        ),
        (not is_live and engine, "--engine takes packets from an interface"),
        (not is_live and buffer is not None, "--buffer is for packets from an interface"),
        (files.count("-") > 1, "`-` stands twice; there is one standard input"),
        (follow and (len(files) != 1 or "-" in files), "--follow goes with one FILE that grows"),
        (
            duration is not None and ends_by_itself,
            "--duration ends what has no end; a FILE has one",
        ),
        (bodies and not as_json, "--bodies goes with --json"),
        (rotate is not None and jsonl is None, "--rotate goes with --jsonl"),
        (keep is not None and jsonl is None, "--keep goes with --jsonl"),
    ):
        if is_wrong:
            raise click.UsageError(why)
    # say before the first file is read that the third one is not there
    for name in files:
        if name == "-":
            if sys.stdin is None:
                raise ToolkitError("standard input is closed", "Name a file, or pipe one in")
            if sys.stdin.isatty():
                raise ToolkitError(
                    "standard input is a terminal, where no packets come from",
                    "Pipe them in: `sudo tcpdump -i any -s 0 -U -w - tcp port 8000 | toolkit capture -`",
                )
            continue
        try:
            os.stat(name)  # noqa: PTH116 (the path as it is)
        except OSError as error:
            raise ToolkitError(
                f"`{name}` cannot be read: {reason_of(error)}",
                "Name capture files; without any, packets of this machine are read",
            ) from error
        with suppress(OSError):  # --jsonl's file is still to be made
            if jsonl is not None and jsonl.samefile(name):
                raise click.UsageError(f"--jsonl would write into `{jsonl}`, which is to be read")

    import secrets

    import orjson

    from toolkit.capture.bodies import Bodies
    from toolkit.capture.drive import (
        FrameReader,
        Intake,
        Sink,
        follow_live,
        read_files,
    )
    from toolkit.capture.jsonl import RotatedFile
    from toolkit.capture.live import DEFAULT_BUFFER_BYTES, open_live, pipe_hint
    from toolkit.capture.records import CaptureFilter, Losses
    from toolkit.capture.summary import (
        RequestCounter,
        advice,
        losses_in_words,
        requests_in_words,
    )
    from toolkit.cli.capture.progress import CaptureProgress
    from toolkit.cli.capture.sinks import BUSY_S, JsonlSink, OutputSink, StoreSink
    from toolkit.records import Run

    run = Run(
        id=secrets.token_hex(6),
        verb="capture",
        started_at=time.time(),
        # no prompt and no key is in them
        settings=json.dumps(
            {
                "files": files,
                "ports": port,
                "iface": (iface or ANY) if is_live else None,
                "engine": "scapy" if is_live else None,
                "full": full,
                "path": path,
                "store_prompts": store_prompts,
                "show_clients": show_clients,
            }
        ),
    )
    counter, losses = RequestCounter(), Losses()
    live = output = stored = written = None
    with ExitStack() as opened:
        # Thousands of requests live until they are stored, and none is garbage that only a search finds: 6 % of the CPU.
        opened.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(50_000, 20, 50)
        if is_live:
            if engine == "tcpdump":
                pipe = pipe_hint(iface or ANY, port)
                raise ToolkitError("tcpdump is no engine any more, but a pipe", pipe)
            wanted_bytes = buffer or DEFAULT_BUFFER_BYTES
            live = open_live(
                iface or ANY, ports=port, follow_answers=full, buffer_bytes=wanted_bytes
            )
            opened.callback(live.close)

        def note() -> str | None:
            """What a person who looks should know: that we fall behind, or what the engine has to say."""
            if len(intake) >= MANY_WAIT:
                return f"{len(intake):,} more wait to be counted"
            return live.note if live else None

        progress = CaptureProgress(
            counter,
            losses,
            port,
            is_endless=not ends_by_itself,
            is_here=is_live,
            with_answers=full,
            note=note,
        )

        # where requests go
        def summary(not_stored: int) -> "CaptureSummary":
            return counter.summary(
                losses,
                left_out=intake.left_out,
                not_stored=not_stored,
                not_written=written.file.lost if written else 0,
            )

        sinks: list[Sink] = []
        if as_json:
            output = OutputSink(with_bodies=bodies)
            sinks.append(output)
        if not no_store:
            from toolkit.store import Store

            # making it, or waiting for who makes it, may take longer
            Store.open(database).close()
            store = opened.enter_context(Store.open(database, BUSY_S))
            stored = StoreSink(store, run, lambda lost: asdict(summary(lost)), to_stderr)
            sinks.append(stored)
        if jsonl is not None:
            file = RotatedFile(
                jsonl,
                rotate_bytes=rotate or ROTATE_BYTES,
                keep=KEEP if keep is None else keep,
                warn=lambda sentence: to_stderr(f"Warning: {sentence}"),
            )
            written = JsonlSink(file)
            sinks.append(written)
        matches = re.compile(translate("*" if path is None else path)).match

        def is_wanted(request: "HttpRequest") -> bool:
            """Whether its path is asked for. A damaged one without a path is never left out."""
            return request.path is None or matches(request.path) is not None

        intake = Intake(
            Bodies(store_prompts=store_prompts, client=_client_names(shown=show_clients)),
            counter,
            sinks,
            wanted=is_wanted,
            keep_bodies=bodies,
        )

        # until it ends, fails, or somebody stops it; all that was read is in the sinks then
        failures: list[ToolkitError] = []
        watch = CaptureFilter(ports=frozenset(port), follow_answers=full)
        with Stop(duration, grace_s=PIPE_GRACE_S if "-" in files else 0.0) as stop:

            def is_over() -> bool:
                """Time is up, or the reader of our output left."""
                return stop() or (output is not None and output.is_closed)

            def show_and_stop() -> bool:
                progress.show()
                return is_over()

            try:
                if live is None:
                    read_files(files, intake, losses, watch, follow=follow, stop=show_and_stop)
                else:
                    reader = FrameReader(live, intake, losses, watch)
                    ready = f"Capturing port {' and '.join(map(str, port))} on `{iface or ANY}`"
                    granted = live.buffer_bytes
                    if granted < wanted_bytes:
                        ready += (
                            f", with a kernel buffer of {granted / 2**20:.3g} MiB where {wanted_bytes / 2**20:.3g} were"
                            " wanted (CAP_NET_ADMIN grants it)"
                        )
                    click.echo(ready if duration else f"{ready}; Ctrl-C ends it", err=True)
                    follow_live(reader, intake, stop=is_over, show=progress.show)
            except ToolkitError as error:
                failures.append(error)
            except Exception:
                intake.close()
                raise
            intake.close()
        moving_line.wipe()
        found = summary(stored.lost if stored else 0)
        if stored is not None:
            try:
                kept_up = not (found.kernel_drops or found.app_drops or found.not_stored)
                stored.end(client_ok=kept_up)
            except ToolkitError as error:
                failures.append(error)
        if live is not None and live.note is not None:
            losses.notes.append(live.note)
        run_id = run.id if stored is not None and stored.has_begun else None

    # what was captured, what was lost, and why nothing was read
    if output is not None:
        output.print(orjson.dumps({"summary": asdict(found) | {"run": run_id}}) + b"\n")
    elif found.requests:
        from toolkit.cli.capture.table import print_capture

        print_capture(found, full=full, is_live=is_live)
    lost = (found.gaps, found.truncated, found.encrypted, found.unparsed)
    # no file could be read, and why is told by the errors: zeros in front of them would only look like a result
    is_nothing = failures and output is None and not found.requests and not any(lost)
    # the page and standard error are read by the same person at the same place
    is_on_one_screen = sys.stdout is not None and sys.stdout.isatty()
    if not is_nothing and (output is not None or not found.requests or not is_on_one_screen):
        say(requests_in_words(found), err=True)
        say(losses_in_words(found, is_live=is_live), err=True)
    if found.left_out:
        losses.notes.append(f"{found.left_out:,} requests for other paths than `{path}` left out")
    for sentence in (*losses.notes, *advice(found, is_live=is_live)):
        say(sentence, err=True)
    if output is not None and output.error is not None:
        raise output.error
    # requests that were read and are not where the user wanted them
    if found.not_stored:
        failures.append(
            ToolkitError(
                f"{found.not_stored:,} requests are not in `{database}`, which took nothing",
                "They are counted above; free the file or the disk, and capture again",
            )
        )
    elif found.not_written:
        failures.append(
            ToolkitError(
                f"{found.not_written:,} requests are not in `{jsonl}`, which took nothing",
                "They are counted above; free the disk, and capture again",
            )
        )
    # a person who stopped it knows why there is not one request
    is_explained = failures or (is_live and stop.was_asked)
    if not (found.requests or found.left_out) and (found.encrypted or not is_explained):
        listened_to = (iface or ANY) if is_live else None
        failures.append(_why_nothing(found, losses, port, listened_to, duration))
    if failures:
        for each in failures[:-1]:
            click.echo(f"Error: {each.message}", err=True)
        raise failures[-1]
    if run_id is not None and found.prompts:
        click.echo(f"Next: `{command_on(database, 'workload')}` says what follows", err=True)


def _client_names(*, shown: bool) -> Callable[[bytes], str]:
    """A client's address, or a name that means nothing outside this process: its key is never written anywhere."""
    from hashlib import blake2b
    from ipaddress import ip_address

    key = os.urandom(32)

    @lru_cache(REMEMBERED)
    def client(address: bytes) -> str:
        if shown:
            return str(ip_address(address))
        return blake2b(address, key=key, digest_size=CLIENT_BYTES).hexdigest()

    return client


def _why_nothing(
    found: "CaptureSummary",
    losses: "Losses",
    ports: Sequence[int],
    iface: str | None,
    duration: float | None,
) -> ToolkitError:
    """Why there is not one request, and what to do about it; `iface`: None of files."""
    from toolkit.capture.summary import TLS_ADVICE
    from toolkit.cli.capture.progress import servers_here

    where = f"port {' or '.join(map(str, ports))}"
    if found.encrypted:
        connections = counted(found.encrypted, "connection")
        return ToolkitError(
            f"{where} carries TLS only ({connections}), which cannot be read here", TLS_ADVICE
        )
    if iface is not None:
        where += f" on `{iface}`"
    if found.segments:
        if found.truncated:
            hint = UNCUT
        elif found.http2:
            hint = (
                "It speaks HTTP/2; engines speak HTTP/1.1: capture between the proxy and the engine"
            )
        else:
            hint = "Is that the port of the engine? Name another one with `--port`"
        return ToolkitError(f"{where} carries no HTTP/1 request that could be read", hint)
    if iface is None:
        if losses.other_ports:
            named = " ".join(f"--port {port}" for port, _ in losses.other_ports.most_common(5))
            hint = f"HTTP requests are there with: {named}"
        elif found.damaged_frames:
            return ToolkitError(f"there is no whole packet to {where}", UNCUT)
        else:
            hint = "No other port carries HTTP either; was it captured on the right interface?"
        return ToolkitError(f"there is no packet to {where}", hint)
    hints = []
    others = [str(port) for port, _ in servers_here() if port not in ports][:5]
    if others:
        hints.append(f"Servers here listen on: {', '.join(others)}; name one with `--port`")
    if iface == ANY:
        hints.append(
            "Is this the clients' machine? `any` counts what comes in and what stays on `lo`;"
            " `--iface NAME` counts what goes out, too"
        )
    else:
        hints.append(
            "Is the traffic on this machine, and on that port? `--iface any` hears all interfaces"
        )
    return ToolkitError(f"nothing arrived for {where} in {span(duration)}", "\nor: ".join(hints))


class Stop:
    """Says whether to stop. The first Ctrl-C (or SIGTERM) asks for it, a second one raises KeyboardInterrupt.

    A Ctrl-C in `tcpdump | toolkit capture -` reaches both, and what tcpdump writes at its end is still to be read:
    `grace_s` is how long that may take.
    """

    def __init__(self, duration_s: float | None = None, *, grace_s: float = 0.0) -> None:
        self._ends_s = None if duration_s is None else time.monotonic() + duration_s
        self._grace_s = grace_s
        self.was_asked = False
        """By a person or another process, not by the clock."""
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            # who started us deaf to it (nohup, a shell's `&`) meant it
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *details: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.was_asked:
            raise KeyboardInterrupt
        self.was_asked = True
        asked_end_s = time.monotonic() + self._grace_s
        self._ends_s = asked_end_s if self._ends_s is None else min(self._ends_s, asked_end_s)

    def __call__(self) -> bool:
        """Whether it is time."""
        return self._ends_s is not None and time.monotonic() >= self._ends_s
