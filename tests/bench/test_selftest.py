"""The self-test's arithmetic on stamps worked out by hand, and small runs through the bench's own client."""

from dataclasses import replace

import pytest

from toolkit.bench.selftest import (
    LevelCost,
    SelftestLevel,
    TimedAnswer,
    conclusion,
    faults,
    fit_up_to,
    gap_errors_ms,
    lateness_ms,
    level,
    mean,
    measured,
    quantile,
    rate,
    stamped_server,
    timed_answer,
    token_delays_ms,
    ttft_delay_ms,
)
from toolkit.bench.stamped import TokenPace
from toolkit.errors import ToolkitError
from toolkit.protocol.completion import Answer, Completion

PACE = TokenPace(ttft_ms=50.0, interval_ms=10.0, tokens=3)
QUICK = TokenPace(ttft_ms=2.0, interval_ms=1.0, tokens=4)

ONE = TimedAnswer(
    sent_ms=100.0,
    received_ms=101.0,
    server_ms=(151.0, 161.0, 172.0),
    client_ms=(153.0, 162.0, 174.0),
)
LATE = TimedAnswer(  # the same answer at a client that reads everything 8 ms later
    sent_ms=100.0,
    received_ms=101.0,
    server_ms=(151.0, 161.0, 172.0),
    client_ms=(161.0, 170.0, 182.0),
)
LOAD = LevelCost(streams=2, timed=(ONE, LATE), failed=0, error=None, wall_s=0.1, cpu_s=0.00012)


def test_the_delay_of_a_ttft_is_the_clients_less_the_servers() -> None:
    assert ttft_delay_ms(ONE) == 3.0  # client 153 - 100 = 53, server 151 - 101 = 50
    assert ttft_delay_ms(LATE) == 11.0  # 61 - 50


def test_a_tokens_delay_is_the_clients_stamp_less_the_servers() -> None:
    assert token_delays_ms(ONE) == [2.0, 1.0, 2.0]


def test_a_gaps_error_has_no_sign_and_a_constant_delay_makes_none() -> None:
    assert gap_errors_ms(ONE) == [1.0, 1.0]  # client 9 and 12, server 10 and 11
    assert gap_errors_ms(LATE) == [1.0, 1.0]
    steady = replace(ONE, client_ms=(157.0, 167.0, 178.0))  # 6 ms late each
    assert gap_errors_ms(steady) == [0.0, 0.0]


def test_the_servers_lateness_counts_from_when_each_token_was_due() -> None:
    assert lateness_ms(ONE, PACE) == [0.0, 0.0, 1.0]  # due at 151, 161 and 171


def test_a_token_that_only_one_clock_saw_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        token_delays_ms(replace(ONE, client_ms=(153.0, 162.0)))


def test_quantiles_are_by_nearest_rank() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert quantile([float(n) for n in range(1, 101)], 0.99) == 99.0
    assert quantile([7.0], 0.5) == 7.0


def test_a_p99_of_fewer_than_a_hundred_is_not_told() -> None:
    assert quantile([1.0] * 99, 0.99) is None
    assert quantile([1.0] * 99, 0.5) == 1.0
    assert quantile([], 0.5) is None
    assert mean([]) is None


def test_a_level_sums_up_all_its_answers() -> None:
    told = level(LOAD, PACE)
    assert (told.streams, told.requests, told.errors, told.tokens) == (2, 2, 0, 6)
    assert told.ttft_delay_p50_ms == 3.0  # of 3 and 11, nearest rank 1 of 2
    assert told.ttft_delay_mean_ms == 7.0
    assert told.ttft_delay_p99_ms is None
    assert told.send_delay_p50_ms == 1.0
    assert told.token_delay_p50_ms == 2.0  # of 1 2 2 9 10 10, the third
    assert told.token_delay_mean_ms == pytest.approx(34 / 6)
    assert told.itl_error_p50_ms == told.itl_error_mean_ms == 1.0
    assert told.server_late_p50_ms == 0.0  # of 0 0 0 0 1 1
    assert told.cpu_us_per_event == pytest.approx(20.0)  # 120 us / 6
    assert told.cpu_share == pytest.approx(0.0012)


def test_a_p99_comes_from_the_hundredth_answer_on() -> None:
    timed_ = (ONE,) * 98 + (LATE,) * 2
    assert level(replace(LOAD, timed=timed_), PACE).ttft_delay_p99_ms == 11.0
    assert level(replace(LOAD, timed=timed_[1:]), PACE).ttft_delay_p99_ms is None


def test_a_server_without_pauses_is_never_late() -> None:
    told = level(LOAD, replace(PACE, interval_ms=0.0))
    assert told.server_late_p50_ms is told.server_late_p99_ms is None


def test_what_did_not_answer_is_counted_and_nothing_is_made_up() -> None:
    told = level(replace(LOAD, timed=(), failed=2, error="it broke"), PACE)
    assert (told.requests, told.errors, told.tokens, told.error) == (2, 2, 0, "it broke")
    figures = (told.ttft_delay_p50_ms, told.token_delay_mean_ms, told.cpu_us_per_event)
    assert figures == (None, None, None)


def test_both_clocks_come_from_one_answer() -> None:
    answer = Answer(
        ok=True,
        streamed=True,
        ended_at=0.2,
        first_token_at=0.153,
        gaps=((0.009, 1), (0.012, 1)),
        text="0000000000101000000/0000000000151000000 0000000000161000000 0000000000172000000 ",
    )
    told = timed_answer(0.1, answer)
    assert (told.sent_ms, told.received_ms) == (100.0, 101.0)
    assert told.server_ms == (151.0, 161.0, 172.0)
    assert told.client_ms == pytest.approx((153.0, 162.0, 174.0))


FINE = replace(
    level(LOAD, PACE),
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
        truths = server.truths()
    assert (told.requests, told.errors, told.error) == (9, 0, None)  # three answers a stream
    assert told.tokens == 36
    assert [(each.tokens, each.complete) for each in truths] == [(4, True)] * 9
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
