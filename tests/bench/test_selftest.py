"""The self-test's arithmetic on stamps worked out by hand, and small runs through the bench's own client."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from toolkit.bench.request_record import Failure, Response
from toolkit.bench.selftest import (
    Exchange,
    SelftestLevel,
    conclusion,
    faults,
    fit_up_to,
    level,
    measured,
    quantile,
    rate,
    stamped_server,
)
from toolkit.bench.stamped import TokenPace
from toolkit.errors import ToolkitError
from toolkit.protocol.completion import Answer, Completion

PACE = TokenPace(ttft_ms=50.0, interval_ms=10.0, tokens=3)
QUICK = TokenPace(ttft_ms=2.0, interval_ms=1.0, tokens=4)


def exchange(*read_ms: float) -> Exchange:
    """A request sent at 100 ms and received at 101; its tokens left at 151, 161 and 172 and were read at these."""
    gaps = [(after - before) / 1000 for before, after in pairwise(read_ms)]
    answer = Answer(
        ok=True,
        streamed=True,
        ended_at=0.2,
        first_token_at=read_ms[0] / 1000,
        gaps=tuple((gap, 1) for gap in gaps),
        text="0000000000101000000/0000000000151000000 0000000000161000000 0000000000172000000 ",
    )
    return Response(answer=answer), 0.1, 0.2


ONE = exchange(153, 162, 174)
LATE = exchange(161, 170, 182)  # a client that reads everything 8 ms later
FAILED = (Response(failure=Failure(kind="cut", error="it broke")), 0.1, 0.2)


def told_of(exchanges: Sequence[Exchange], pace: TokenPace = PACE) -> SelftestLevel:
    return level(exchanges, pace, streams=2, wall_s=0.1, cpu_s=0.00012)


def test_a_level_holds_each_answer_by_both_clocks() -> None:
    told = told_of([ONE, LATE])
    assert (told.streams, told.requests, told.errors, told.tokens) == (2, 2, 0, 6)
    # client 153 - 100 = 53 and 61, server 151 - 101 = 50: 3 and 11, nearest rank 1 of 2
    assert told.ttft_delay_p50_ms == pytest.approx(3.0)
    assert told.ttft_delay_mean_ms == pytest.approx(7.0)
    assert told.send_delay_p50_ms == pytest.approx(1.0)
    assert told.token_delay_p50_ms == pytest.approx(2.0)  # of 1 2 2 9 10 10, the third
    assert told.token_delay_mean_ms == pytest.approx(34 / 6)
    # the client's gaps 9 and 12, the server's 10 and 11, in both; none of these figures has a sign
    assert told.itl_error_p50_ms == pytest.approx(1.0)
    assert told.itl_error_mean_ms == pytest.approx(1.0)
    # due at 151, 161 and 171: 0 0 1, twice
    assert told.server_late_p50_ms == pytest.approx(0.0)
    assert told.cpu_us_per_event == pytest.approx(20.0)  # 120 us / 6
    assert told.cpu_share == pytest.approx(0.0012)


def test_a_constant_delay_makes_no_gap_wrong() -> None:
    assert told_of([exchange(157, 167, 178)]).itl_error_mean_ms == pytest.approx(0.0)


def test_a_p99_comes_from_the_hundredth_value_on() -> None:
    answers = [ONE] * 98 + [LATE] * 2
    told = told_of(answers)
    assert told.ttft_delay_p99_ms == pytest.approx(11.0)
    assert told.server_late_p99_ms == pytest.approx(1.0)
    assert told_of(answers[1:]).ttft_delay_p99_ms is None
    assert quantile([float(n) for n in range(1, 101)], 0.99) == 99.0


def test_a_server_without_pauses_is_never_late() -> None:
    told = told_of([ONE], replace(PACE, interval_ms=0.0))
    assert told.server_late_p50_ms is told.server_late_p99_ms is None


def test_what_did_not_answer_is_counted_and_nothing_is_made_up() -> None:
    refused = Answer(ok=False, error="busy", error_kind="http_503", streamed=False, ended_at=0.2)
    told = told_of([FAILED, (Response(answer=refused), 0.1, 0.2)])
    assert (told.requests, told.errors, told.tokens, told.error) == (2, 2, 0, "it broke")
    figures = (told.ttft_delay_p50_ms, told.token_delay_mean_ms, told.cpu_us_per_event)
    assert figures == (None, None, None)
    assert told_of([ONE, (Response(answer=refused), 0.1, 0.2)]).error == "busy"


def test_a_token_that_only_one_clock_saw_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        told_of([exchange(153, 162)])


FINE = replace(
    told_of([ONE]),
    streams=100,
    ttft_delay_p50_ms=2.0,
    ttft_delay_p99_ms=10.0,
    ttft_delay_mean_ms=20.0,
    server_late_p99_ms=1.0,
)
CROWD = replace(FINE, streams=500, ttft_delay_p50_ms=15.0, ttft_delay_p99_ms=90.0)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (replace(FINE, ttft_delay_p50_ms=2.1), "at 100 streams the client added 2.1 ms to TTFT at p50"),
        (replace(FINE, ttft_delay_p99_ms=10.1), "10.1 ms to TTFT at p99, over 10 ms"),
        (replace(CROWD, ttft_delay_mean_ms=20.1), "at 500 streams the client added 20.1 ms to TTFT on"),
        (replace(FINE, errors=3, requests=9, error="cut"), "3 of 9 requests failed: cut"),
    ],
)  # fmt: skip
def test_a_bar_that_is_missed_is_named_with_its_figure(one: SelftestLevel, words: str) -> None:
    (fault,) = faults([FINE, one])
    assert words in fault


def test_a_level_at_its_bars_is_fit_and_a_crowd_is_judged_by_its_mean() -> None:
    assert faults([FINE, CROWD]) == ()
    assert faults([replace(FINE, ttft_delay_p99_ms=None)]) == ()  # too few answers to say


def test_a_late_server_is_named_beside_the_client() -> None:
    (fault,) = faults([replace(FINE, ttft_delay_p50_ms=9.0, server_late_p99_ms=40.0)])
    assert "the server itself was 40 ms late" in fault


def test_the_clock_is_fit_up_to_the_last_level_before_one_that_is_not() -> None:
    slow = replace(FINE, streams=10, ttft_delay_p50_ms=3.0)
    assert fit_up_to([FINE, CROWD]) == 500
    assert fit_up_to([CROWD, slow, FINE]) is None  # 10 fails, so 100 proves nothing
    assert fit_up_to([replace(FINE, streams=1), slow, FINE]) == 1
    assert fit_up_to([]) is None


def test_the_conclusion_is_a_sentence_with_the_reasons() -> None:
    assert conclusion([FINE, CROWD]) == "The clock is fit up to 500 streams."
    slow = replace(CROWD, ttft_delay_mean_ms=36.12)
    assert conclusion([FINE, slow]) == (
        "The clock is fit up to 100 streams, not beyond: "
        "at 500 streams the client added 36.1 ms to TTFT on average, over 20 ms."
    )
    assert conclusion([slow]).startswith("The clock is not fit: at 500 streams")
    assert conclusion([]) == "Nothing was measured."


def test_a_run_times_every_token_of_every_answer_after_it_was_sent() -> None:
    with stamped_server(QUICK) as server:
        told = measured(server, 3, tokens=4)
    assert (told.requests, told.errors, told.error) == (9, 0, None)  # three answers a stream
    assert told.tokens == 36
    for delay in (told.ttft_delay_p50_ms, told.send_delay_p50_ms, told.token_delay_p50_ms):
        assert delay is not None
        assert delay > 0  # nothing is read before it was sent
    assert told.cpu_us_per_event


def test_a_clock_that_is_off_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Completion.feed

    def late(self: Completion, data: bytes, at: float) -> None:
        right(self, data, at + 0.030)

    monkeypatch.setattr(Completion, "feed", late)
    with stamped_server(QUICK) as server:
        told = measured(server, 2, tokens=4)
    assert told.ttft_delay_p50_ms is not None
    assert told.ttft_delay_p50_ms > 30
    assert "at 2 streams the client added" in faults([told])[0]


def test_requests_that_fail_are_told_with_their_reason() -> None:
    with stamped_server(QUICK) as server:
        pass
    told = measured(server, 2, tokens=4)
    assert (told.requests, told.errors, told.tokens) == (6, 6, 0)
    assert told.error is not None
    assert "no connection" in told.error
    assert faults([told]) == (f"at 2 streams 6 of 6 requests failed: {told.error}",)


def test_the_rate_of_one_core_counts_every_token() -> None:
    told = rate(streams=2, tokens=200)
    assert told.tokens == 1200  # three answers of 200 tokens in each of 2 streams
    assert told.events_per_cpu_s is not None
    assert told.cpu_us_per_event is not None
    assert told.events_per_cpu_s * told.cpu_us_per_event == pytest.approx(1e6)


def test_a_server_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/true")
    with pytest.raises(ToolkitError, match="did not start"), stamped_server(QUICK):
        pass
