"""What `toolkit capture` does once its command line is read: listen or read, keep, show, say what was lost."""

import gc
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from fnmatch import translate
from functools import lru_cache
from hashlib import blake2b
from ipaddress import ip_address
from typing import Any

import click

from toolkit.capture.bodies import Bodies
from toolkit.capture.drive import (
    CaptureFilter,
    FrameReader,
    Intake,
    Queue,
    Sink,
    follow_live,
    read_files,
)
from toolkit.capture.files import Replayed
from toolkit.capture.jsonl import RotatedFile
from toolkit.capture.live import DEFAULT_BUFFER_BYTES, LiveCapture
from toolkit.capture.records import HttpRequest, Losses
from toolkit.capture.summary import CaptureSummary, RequestCounter
from toolkit.cli.capture.end import EndOf, tell
from toolkit.cli.capture.options import ANY, KEEP, ROTATE, CaptureOptions
from toolkit.cli.capture.progress import CaptureProgress
from toolkit.cli.capture.sinks import BUSY_S, JsonlSink, OutputSink, StoreSink
from toolkit.cli.capture.stop import Stop
from toolkit.cli.exit_codes import INTERRUPTED
from toolkit.errors import ToolkitError
from toolkit.records import Run
from toolkit.units import bytes_of

CLIENT_BYTES = 6
"""Of a client's hash: 12 digits; of 10,000 clients two share one in 1 of 5 million captures."""
PIPE_GRACE_S = 1.0
"""For a tcpdump before us to write what it holds, and for us to read it."""
MANY_WAIT = 10_000
"""Requests that are read and not counted: at 10,000 a second, the screen is a second behind."""
REMEMBERED = 65_536
"""Clients whose hash or address is remembered."""


def run_capture(options: CaptureOptions) -> int:
    """Capture; the exit code. The first Ctrl-C ends it in good order, a second one at once."""
    # Thousands of requests live until they are stored, and none is garbage that only a search finds: 6 % of the CPU.
    usual = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)
    try:
        return _capture(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        gc.set_threshold(*usual)


def _capture(options: CaptureOptions) -> int:
    _check_files(options.files)
    with ExitStack() as opened:
        engine = None if options.files else _engine(options)
        if engine:
            opened.callback(engine.close)
        capture = Capture(options, engine, opened)
        end = capture.run()
    return tell(end, options)


class Capture:
    """One capture from its first packet to its end."""

    def __init__(
        self, options: CaptureOptions, engine: LiveCapture | None, opened: ExitStack
    ) -> None:
        self._options, self._engine = options, engine
        self._run = Run(
            id=secrets.token_hex(6),
            verb="capture",
            started_at=time.time(),
            settings=json.dumps(_settings(options)),
        )
        self._tally, self._losses, self._queue = RequestCounter(), Losses(), Queue()
        self._progress = CaptureProgress(
            self._tally,
            self._losses,
            options.port,
            is_endless=not options.ends_by_itself,
            is_here=engine is not None,
            with_answers=options.full,
            note=self._note,
        )
        self._output = OutputSink(with_bodies=options.bodies) if options.as_json else None
        self._store = self._store_sink(opened)
        self._jsonl = self._jsonl_sink()
        sinks: list[Sink] = [s for s in (self._output, self._store, self._jsonl) if s is not None]
        self._intake = Intake(
            Bodies(
                store_prompts=options.store_prompts,
                client=_client_address if options.show_clients else _client_hash(),
            ),
            self._tally,
            sinks,
            wanted=_wanted(options.path),
            keep_bodies=options.bodies,
        )

    def run(self) -> EndOf:
        """Go on until it ends, fails, or somebody stops it; all that was read is in the sinks then."""
        failures: list[ToolkitError] = []
        replayed = Replayed()
        grace_s = PIPE_GRACE_S if "-" in self._options.files else 0.0
        with Stop(self._options.duration, grace_s=grace_s) as stop:
            try:
                replayed = self._run_until(lambda: stop() or self._is_unheard())
            except ToolkitError as error:
                failures.append(error)
            except Exception:
                self._intake.close()
                raise
            self._intake.close()
        self._progress.clear()
        summary = self._summary()
        failures += self._end_run(summary)
        return EndOf(
            summary=summary,
            run=self._run.id if self._store and self._store.has_begun else None,
            replayed=replayed,
            note=self._engine.lag_note if self._engine else None,
            was_stopped=stop.was_asked,
            output=self._output,
            failures=failures,
        )

    def _run_until(self, stop: Callable[[], bool]) -> Replayed:
        options, engine = self._options, self._engine
        watch = CaptureFilter(ports=frozenset(options.port), follow_answers=options.full)
        if engine is None:

            def show_and_stop() -> bool:
                self._progress.show()
                return stop()

            return read_files(
                options.files,
                self._intake,
                self._losses,
                watch,
                follow=options.follow,
                stop=show_and_stop,
            )
        reader = FrameReader(engine, self._queue, self._losses, watch)
        click.echo(_ready(options, engine), err=True)
        follow_live(reader, self._queue, self._intake, stop=stop, show=self._progress.show)
        return Replayed()

    def _note(self) -> str | None:
        """What a person who looks should know: that we fall behind, or what the engine has to say."""
        if len(self._queue) >= MANY_WAIT:
            return f"{len(self._queue):,} more wait to be counted"
        return self._engine.lag_note if self._engine else None

    def _is_unheard(self) -> bool:
        """Whether the reader of our output left."""
        return self._output is not None and self._output.is_closed

    def _summary(self, not_stored: int | None = None) -> CaptureSummary:
        if not_stored is None:
            not_stored = self._store.lost if self._store else 0
        return self._tally.summary(
            self._losses,
            left_out=self._intake.left_out,
            not_stored=not_stored,
            not_written=self._jsonl.file.lost if self._jsonl else 0,
        )

    def _end_run(self, summary: CaptureSummary) -> list[ToolkitError]:
        """Say in the database how it ended; why that could not be said."""
        if self._store is None:
            return []
        try:
            kept_up = not (summary.kernel_drops or summary.app_drops or summary.not_stored)
            self._store.end(client_ok=kept_up)
        except ToolkitError as error:
            return [error]
        return []

    def _store_sink(self, opened: ExitStack) -> StoreSink | None:
        if self._options.no_store:
            return None
        from toolkit.store import Store

        Store.open(
            self._options.database
        ).close()  # making it, or waiting for who makes it, may take longer
        store = opened.enter_context(Store.open(self._options.database, BUSY_S))
        return StoreSink(
            store,
            self._run,
            lambda not_stored: asdict(self._summary(not_stored)),
            self._progress.say,
        )

    def _jsonl_sink(self) -> JsonlSink | None:
        options = self._options
        if options.jsonl is None:
            return None
        file = RotatedFile(
            options.jsonl,
            rotate_bytes=options.rotate or bytes_of(ROTATE) or 0,
            keep=KEEP if options.keep is None else options.keep,
            warn=lambda sentence: self._progress.say(f"Warning: {sentence}"),
        )
        return JsonlSink(file)


def _settings(options: CaptureOptions) -> dict[str, Any]:
    """The run's settings; no prompt and no key is in them."""
    return {
        "files": options.files,
        "ports": options.port,
        "iface": (options.iface or ANY) if options.is_live else None,
        "engine": (options.engine or "scapy") if options.is_live else None,
        "full": options.full,
        "path": options.path,
        "store_prompts": options.store_prompts,
        "show_clients": options.show_clients,
    }


# --- where packets come from ------------------------------------------------------------------------


def _check_files(files: tuple[str, ...]) -> None:
    """Say before the first file is read that the third one is not there."""
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
                f"`{name}` cannot be read: {(error.strerror or 'no reason given').lower()}",
                "Name capture files; without any, packets of this machine are read",
            ) from error


def _engine(options: CaptureOptions) -> LiveCapture:
    iface, buffer_bytes = options.iface or ANY, options.buffer or DEFAULT_BUFFER_BYTES
    if options.engine == "tcpdump":
        from toolkit.capture.tcpdump import open_tcpdump as opens
    else:
        from toolkit.capture.live import open_live as opens
    return opens(iface, ports=options.port, follow_answers=options.full, buffer_bytes=buffer_bytes)


def _ready(options: CaptureOptions, engine: LiveCapture) -> str:
    ports = " and ".join(map(str, options.port))
    wanted = options.buffer or DEFAULT_BUFFER_BYTES
    granted = engine.buffer_bytes
    buffer = ""
    if granted is not None and granted < wanted:
        buffer = (
            f", with a kernel buffer of {granted / 2**20:.3g} MiB where {wanted / 2**20:.3g} were "
            "wanted (CAP_NET_ADMIN grants it)"
        )
    end = "" if options.duration else "; Ctrl-C ends it"
    return f"Capturing port {ports} on `{options.iface or ANY}`{buffer}{end}"


# --- which requests, and whose ------------------------------------------------------------------------


def _wanted(glob: str | None) -> Callable[[HttpRequest], bool] | None:
    """Whether a request's path is asked for; None: all are. A damaged one without a path is never left out."""
    if glob is None:
        return None
    match = re.compile(translate(glob)).match
    return lambda request: request.path is None or match(request.path) is not None


def _client_hash() -> Callable[[bytes], str]:
    """A name for each client that means nothing outside this process: the key is never written anywhere."""
    key = secrets.token_bytes(32)

    @lru_cache(REMEMBERED)
    def client(address: bytes) -> str:
        return blake2b(address, key=key, digest_size=CLIENT_BYTES).hexdigest()

    return client


@lru_cache(REMEMBERED)
def _client_address(address: bytes) -> str:
    return str(ip_address(address))
