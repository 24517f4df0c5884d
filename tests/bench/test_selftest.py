"""The self-test's arithmetic on stamps worked out by hand, and small runs through the bench's own client."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from toolkit.bench.request_record import Failure, Response
from toolkit.bench.selftest import (
    Delay,
    Exchange,
    SelftestLevel,
    conclusion,
    fault,
    fit_up_to,
    level,
    measured,
    stamped_server,
    unpaced,
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


def level_of(exchanges: Sequence[Exchange], pace: TokenPace = PACE) -> SelftestLevel:
    return level(exchanges, pace, streams=2, wall_s=0.1, cpu_s=0.00012)


def test_a_level_holds_each_answer_by_both_clocks() -> None:
    found = level_of([ONE, LATE]).figures
    expected = {
        "streams": 2,
        "requests": 2,
        "errors": 0,
        "tokens": 6,
        # client 153 - 100 = 53 and 61, server 151 - 101 = 50: 3 and 11, nearest rank 1 of 2
        "ttft_delay_p50_ms": 3.0,
        "ttft_delay_mean_ms": 7.0,
        "send_delay_p50_ms": 1.0,
        "token_delay_p50_ms": 2.0,
        "token_delay_mean_ms": 34 / 6,  # of 1 2 2 9 10 10, the third
        # the client's gaps 9 and 12, the server's 10 and 11, in both; none of these figures has a sign
        "itl_error_p50_ms": 1.0,
        "itl_error_mean_ms": 1.0,
        # due at 151, 161 and 171: 0 0 1, twice; 120 us of CPU for 6 tokens
        "server_late_p50_ms": 0.0,
        "cpu_us_per_event": 20.0,
        "cpu_share": 0.0012,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    # a constant delay makes no gap wrong, and a server without pauses is never late
    assert level_of([exchange(157, 167, 178)]).itl_error.mean_ms == pytest.approx(0.0)
    nothing = Delay(p50_ms=None, p99_ms=None, mean_ms=None)
    assert level_of([ONE], replace(PACE, interval_ms=0.0)).server_late == nothing


def test_a_p99_comes_from_the_hundredth_value_on() -> None:
    answers = [ONE] * 98 + [LATE] * 2
    assert level_of(answers).ttft_delay.p99_ms == pytest.approx(11.0)
    assert level_of(answers).server_late.p99_ms == pytest.approx(1.0)
    assert level_of(answers[1:]).ttft_delay.p99_ms is None
    assert Delay.of([float(n) for n in range(1, 101)]).p99_ms == 99.0


def test_what_did_not_answer_is_counted_and_nothing_is_made_up() -> None:
    broken = (Response(failure=Failure(kind="cut", error="it broke")), 0.1, 0.2)
    refused = Answer(ok=False, error="busy", error_kind="http_503", streamed=False, ended_at=0.2)
    found = level_of([broken, (Response(answer=refused), 0.1, 0.2)])
    assert (found.requests, found.errors, found.tokens, found.error) == (2, 2, 0, "it broke")
    figures = (found.ttft_delay.p50_ms, found.token_delay.mean_ms, found.cpu_us_per_event)
    assert figures == (None, None, None)
    assert level_of([ONE, (Response(answer=refused), 0.1, 0.2)]).error == "busy"
    with pytest.raises(ValueError, match="zip"):  # a token that only one clock saw
        level_of([exchange(153, 162)])


def at(streams: int, **more: float | None) -> SelftestLevel:
    """A level exactly at its bars; `more` are `p50`, `p99` and `mean` added to TTFT, and `late`, the server's p99."""
    is_crowd = streams > 100
    figures = {"p50": 15.0 if is_crowd else 2.0, "p99": 90.0 if is_crowd else 10.0, "mean": 20.0}
    p50, p99, mean = (more.get(key, figures[key]) for key in ("p50", "p99", "mean"))
    return replace(
        level_of([ONE]),
        streams=streams,
        ttft_delay=Delay(p50_ms=p50, p99_ms=p99, mean_ms=mean),
        server_late=Delay(p50_ms=0.1, p99_ms=more.get("late", 5.0), mean_ms=0.1),
    )


FINE, CROWD = at(100), at(500)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (at(100, p50=2.1), "at 100 streams the client added 2.1 ms to TTFT at p50, over 2 ms"),
        (at(100, p99=10.1), "at 100 streams the client added 10.1 ms to TTFT at p99, over 10 ms"),
        (at(500, mean=20.1), "at 500 streams the client added 20.1 ms to TTFT on average, over 20 ms"),
        (at(1, p50=9.0, late=40.0),
         ("at 1 stream the client added 9.0 ms to TTFT at p50, over 2 ms"
          " (the server itself was 40 ms late at p99: this machine lacks CPU)")),
        (replace(FINE, errors=3, requests=9, error="cut"), "at 100 streams 3 of 9 requests failed: cut"),
        (FINE, None), (CROWD, None), (at(100, p99=None), None),
    ],
)  # fmt: skip
def test_a_bar_that_is_missed_is_named_with_its_figure(
    one: SelftestLevel, words: str | None
) -> None:
    assert fault(one) == words


def test_the_clock_is_fit_up_to_the_last_level_before_one_that_is_not() -> None:
    slow = at(10, p50=3.0)
    assert fit_up_to([FINE, CROWD]) == 500
    assert fit_up_to([CROWD, slow, FINE]) is None  # 10 fails, so 100 proves nothing
    assert fit_up_to([at(1), slow, FINE]) == 1
    assert fit_up_to([]) is None
    assert conclusion([FINE, CROWD]) == "The clock is fit up to 500 streams."
    assert conclusion([FINE, at(500, mean=36.12)]) == (
        "The clock is fit up to 100 streams, not beyond: "
        "at 500 streams the client added 36.1 ms to TTFT on average, over 20 ms."
    )
    assert conclusion([slow]).startswith("The clock is not fit: at 10 streams")
    assert conclusion([]) == "Nothing was measured."


def test_a_run_times_every_token_of_every_answer_after_it_was_sent() -> None:
    with stamped_server(QUICK) as server:
        found = measured(server, 3, tokens=4)
    assert (found.requests, found.errors, found.error) == (9, 0, None)  # three answers a stream
    assert found.tokens == 36
    for delay in (found.ttft_delay, found.send_delay, found.token_delay):
        assert delay.p50_ms is not None
        assert delay.p50_ms > 0  # nothing is read before it was sent
    assert found.cpu_us_per_event


def test_a_clock_that_is_off_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Completion.feed

    def late(self: Completion, data: bytes, at: float) -> None:
        right(self, data, at + 0.030)

    monkeypatch.setattr(Completion, "feed", late)
    with stamped_server(QUICK) as server:
        found = measured(server, 2, tokens=4)
    assert found.ttft_delay.p50_ms is not None
    assert found.ttft_delay.p50_ms > 30
    assert "at 2 streams the client added" in (fault(found) or "")


def test_requests_that_fail_are_counted_with_their_reason() -> None:
    with stamped_server(QUICK) as server:
        pass
    found = measured(server, 2, tokens=4)
    assert (found.requests, found.errors, found.tokens) == (6, 6, 0)
    assert "no connection" in (found.error or "")
    assert fault(found) == f"at 2 streams 6 of 6 requests failed: {found.error}"


def test_the_rate_of_one_core_counts_every_token() -> None:
    found = unpaced(streams=2, tokens=200)
    assert found.tokens == 1200  # three answers of 200 tokens in each of 2 streams
    assert found.events_per_cpu_s is not None
    assert found.cpu_us_per_event is not None
    assert found.events_per_cpu_s * found.cpu_us_per_event == pytest.approx(1e6)


def test_a_server_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/true")
    with pytest.raises(ToolkitError, match="did not start"), stamped_server(QUICK):
        pass
