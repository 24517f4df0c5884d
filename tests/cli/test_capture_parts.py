"""Parts of `toolkit capture` that a whole one reaches only on a bad day: a database that refuses, a screen, other servers."""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from toolkit.capture.jsonl import NumberedRequest
from toolkit.capture.records import Losses
from toolkit.capture.summary import RequestCounter
from toolkit.cli.capture import progress as capture_progress
from toolkit.cli.capture import sinks as capture_sinks
from toolkit.cli.capture import verb as capture_verb
from toolkit.cli.capture.progress import CaptureProgress, servers_here
from toolkit.cli.capture.sinks import StoreSink
from toolkit.cli.capture.verb import Stop
from toolkit.errors import ToolkitError
from toolkit.records import Asked, Run, Seen

RUN = Run(id="0123456789ab", verb="capture", started_at=1.0)


# --- the database's sink ------------------------------------------------------------------------------


class Refusing:
    """A store that takes nothing for as long as it is told so."""

    def __init__(self) -> None:
        self.refuses = False
        self.runs: list[Run] = []
        self.seen: list[Seen] = []
        self.batches: list[int] = []
        self.told: Mapping[str, object] = {}
        self.ended: bool | None = None

    def _check(self) -> None:
        if self.refuses:
            raise ToolkitError("`t.db` cannot grow, the disk is full")

    def add_run(self, run: Run) -> None:
        self._check()
        self.runs.append(run)

    def add_seen(self, run_id: str, seen: Sequence[Seen]) -> None:
        self._check()
        assert self.runs
        assert run_id == RUN.id
        self.seen += seen
        self.batches.append(len(seen))

    def set_capture(self, run_id: str, summary: Mapping[str, object]) -> None:
        self._check()
        assert run_id == RUN.id
        self.told = dict(summary)

    def end_run(self, run_id: str, *, ended_at: float, client_ok: bool | None) -> None:
        assert run_id == RUN.id
        assert ended_at > 0
        self.ended = client_ok


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(capture_sinks, "time", found)
    return found


def arrivals(*ts: float, text: str | None = None) -> list[NumberedRequest]:
    asked = Asked(exact_key="a" * 32, body_bytes=1, prompt_text=text)
    return [NumberedRequest(Seen(ts=one, asked=asked), None, 0) for one in ts]


def sink_of(store: Refusing, said: list[str]) -> StoreSink:
    return StoreSink(store, RUN, lambda lost: {"not_stored": lost}, said.append)


def test_requests_are_kept_in_one_transaction_every_half_second(clock: Clock) -> None:
    store, said = Refusing(), []
    sink = sink_of(store, said)
    sink.take([])
    assert store.runs == []  # nothing came: no run
    clock.now += 1
    sink.take(arrivals(1.0))
    assert (store.batches, store.told) == ([1], {"not_stored": 0})
    sink.take(arrivals(2.0))
    sink.take(arrivals(3.0))
    assert store.batches == [1]
    clock.now += capture_sinks.COMMIT_S
    sink.take([])
    assert store.batches == [1, 2]
    sink.take(arrivals(4.0))
    sink.close()
    sink.end(client_ok=True)
    assert [one.ts for one in store.seen] == [1.0, 2.0, 3.0, 4.0]
    assert (store.ended, sink.lost, said) == (True, 0, [])


def test_a_refusal_is_told_once_and_what_waits_is_kept_when_it_is_over(clock: Clock) -> None:
    store, said = Refusing(), []
    sink = sink_of(store, said)
    store.refuses = True
    for ts in (1.0, 2.0, 3.0):
        sink.take(arrivals(ts))
        store.refuses = False
        clock.now += capture_sinks.RETRY_S / 2
        sink.take([])  # it is not asked again so soon
        assert store.seen == []
        store.refuses = True
        clock.now += capture_sinks.RETRY_S / 2
    assert said == [
        "Warning: `t.db` cannot grow, the disk is full; the capture continues and tries again"
    ]
    store.refuses = False
    sink.take(arrivals(4.0))
    assert [one.ts for one in store.seen] == [1.0, 2.0, 3.0, 4.0]
    clock.now += 10
    store.refuses = True  # another day's refusal is told again
    sink.take(arrivals(5.0))
    assert len(said) == 2
    # and what is refused to the end is counted
    sink.close()
    assert sink.lost == 1


def test_what_waits_is_bounded_and_the_rest_is_counted(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # room for two of 500 + 100 bytes
    monkeypatch.setattr(capture_sinks, "WAITING_BYTES", 1_300)
    store = Refusing()
    store.refuses = True
    sink = sink_of(store, [])
    sink.take(arrivals(1.0, 2.0, 3.0, 4.0, text="x" * 100))
    assert sink.lost == 2
    store.refuses = False
    clock.now += 10
    sink.take(arrivals(5.0))
    assert [one.ts for one in store.seen] == [1.0, 2.0, 5.0]
    assert store.told == {"not_stored": 2}


# --- the screen ---------------------------------------------------------------------------------------


def seen_prompt(prompt: str) -> Seen:
    return Seen(ts=1.0, asked=Asked(exact_key="e" * 32, prompt_key=prompt * 32, body_bytes=1))


def test_the_line_tells_rate_repeats_losses_and_the_leading_prompts() -> None:
    tally, losses = RequestCounter(), Losses()
    progress = CaptureProgress(tally, losses, (8000,), note=lambda: "late by a second")
    for name in ("kernel_drops", "app_drops", "gaps", "truncated", "encrypted", "unparsed"):
        lost = CaptureProgress(RequestCounter(), Losses(**{name: 7}), (8000,))
        assert "unique, lost: 7 " in lost.line(0.0)
    assert (
        progress.line(0.0) == "0 requests/s, 0 requests, 0 unique, nothing lost (late by a second)"
    )
    for prompt in "aaab":
        tally.add(seen_prompt(prompt))
    losses.kernel_drops, losses.gaps = 1_234, 5
    assert progress.line(41.97) == (
        "42.0 requests/s, 4 requests, 2 unique, 50.0 % repeats, lost: 1,234 dropped by the kernel, 5 gaps, "
        "top: aaaaaaaa 75.0 %, bbbbbbbb 25.0 % (late by a second)"
    )


@pytest.mark.parametrize(
    ("losses", "more", "said"),
    [
        (Losses(), {}, "no packets on port 8000 or 9000 yet"),
        (Losses(), {"is_here": False, "note": lambda: "5 late"}, "no packets on port 8000 or 9000 yet (5 late)"),
        (Losses(segments=3, encrypted=1), {}, "port 8000 or 9000 speaks TLS"),
        (Losses(segments=3), {}, "packets arrive on port 8000 or 9000, but no request has"),
        (Losses(segments=3), {"with_answers": True}, "packets arrive on port 8000 or 9000, but no request with its answer"),
    ],
)  # fmt: skip
def test_a_quiet_port_is_told_for_what_it_is(
    losses: Losses,
    more: dict[str, object],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    monkeypatch.setattr(capture_progress, "time", clock)
    monkeypatch.setattr(capture_progress, "servers_here", lambda: [(22, 1), (8000, 3)])
    progress = CaptureProgress(RequestCounter(), losses, (8000, 9000), **more)
    for _ in range(10):
        clock.now += 1
        progress.show()
    (line,) = capsys.readouterr().err.splitlines()  # once, where nothing can be drawn over
    assert line.startswith(said)
    if not losses.segments and not more:
        assert line.endswith("; servers here listen on: 22 (1 connection)")


def test_servers_are_found_with_how_many_talk_to_them(tmp_path: Path) -> None:
    """Rows as Linux writes them: 0A listens, 01 is a connection, at both of its ends."""
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n"
    rows = (
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n"  # 8080
        "   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000\n"
        "   2: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000\n"
        "   3: 0100007F:1F90 0100007F:C351 06 00000000:00000000 00:00000000 00000000\n"  # over
    )
    six = "   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0\n"
    (tmp_path / "tcp").write_text(head + rows)
    (tmp_path / "tcp6").write_text(head + six)
    tables = (tmp_path / "tcp", tmp_path / "tcp6", tmp_path / "missing")
    assert servers_here(tables) == [(8080, 1), (22, 0)]


# --- the end ------------------------------------------------------------------------------------------


def test_the_first_signal_asks_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Stop() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        assert stop.was_asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_who_started_it_deaf_to_a_signal_meant_it() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Stop() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not stop()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_pipe_s_writer_gets_a_moment_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(capture_verb, "time", clock)
    with Stop(60.0, grace_s=1.0) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.was_asked
        assert not stop()
        clock.now += 1.0
        assert stop()
