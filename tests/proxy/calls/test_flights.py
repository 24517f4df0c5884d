from toolkit.proxy.calls.flights import Flights


def test_the_first_request_leads_and_equal_ones_under_way_join_it() -> None:
    flights: Flights[str, None] = Flights()
    first, leads = flights.begin("a", 0.0)
    assert leads
    assert flights.begin("a", 1.0) == (first, False)
    other, leads = flights.begin("b", 1.0)
    assert leads
    assert other is not first
    assert (first.aboard, other.aboard) == (2, 1)
    assert (flights.led, flights.joined, len(flights)) == (2, 1, 2)


def test_what_its_leader_keeps_with_a_call_is_there_for_who_joins_late() -> None:
    flights: Flights[str, list[bytes]] = Flights()
    led, _ = flights.begin("a", 0.0)
    led.cargo = [b"Once"]
    joined, _ = flights.begin("a", 0.5)
    assert joined.cargo == [b"Once"]


def test_after_a_call_has_landed_the_next_request_leads() -> None:
    flights: Flights[str, None] = Flights()
    first, _ = flights.begin("a", 0.0)
    flights.finish(first, ok=True)
    second, leads = flights.begin("a", 1.0)
    assert leads
    assert second is not first
    assert (first.over, flights.failed, flights.led) == (True, 0, 2)


def test_a_failure_is_told_to_those_aboard_and_not_to_the_next() -> None:
    flights: Flights[str, None] = Flights()
    first, _ = flights.begin("a", 0.0)
    flights.begin("a", 0.1)
    flights.finish(first, ok=False)
    assert first.aboard == 2
    assert flights.begin("a", 0.2)[1]
    assert flights.failed == 1


def test_a_leader_that_leaves_does_not_end_the_call_and_others_still_join() -> None:
    flights: Flights[str, None] = Flights()
    flight, _ = flights.begin("a", 0.0)
    flights.begin("a", 0.1)
    assert not flights.leave(flight)
    assert flights.begin("a", 0.2) == (flight, False)
    assert (flight.aboard, flight.over) == (2, False)


def test_the_last_client_that_leaves_ends_the_call_and_nobody_joins_a_call_that_ends() -> None:
    flights: Flights[str, None] = Flights()
    flight, _ = flights.begin("a", 0.0)
    flights.begin("a", 0.1)
    assert [flights.leave(flight), flights.leave(flight)] == [False, True]
    assert (flights.aborted, len(flights)) == (1, 0)
    again, leads = flights.begin("a", 0.2)
    assert leads
    assert again is not flight


def test_clients_that_leave_after_landing_end_nothing() -> None:
    flights: Flights[str, None] = Flights()
    flight, _ = flights.begin("a", 0.0)
    flights.finish(flight, ok=True)
    assert not flights.leave(flight)
    assert flights.aborted == 0


def test_a_call_that_everyone_left_lands_without_a_trace() -> None:
    flights: Flights[str, None] = Flights()
    ended, _ = flights.begin("a", 0.0)
    flights.leave(ended)
    current, _ = flights.begin("a", 0.1)
    flights.finish(ended, ok=False)  # what was cut off upstream still reports
    assert flights.begin("a", 0.2) == (current, False)
    assert flights.failed == 0


def test_a_call_that_hangs_takes_no_newcomers_with_it_and_does_not_land_for_its_successor() -> None:
    flights: Flights[str, None] = Flights(longest_s=10.0)
    hung, _ = flights.begin("a", 0.0)
    assert flights.begin("a", 9.999) == (hung, False)
    fresh, leads = flights.begin("a", 10.0)
    assert leads
    flights.finish(hung, ok=True)
    assert flights.begin("a", 10.5) == (fresh, False)
    assert (hung.aboard, hung.over, fresh.over, len(flights)) == (2, True, False, 1)


def test_a_closed_call_goes_on_for_those_aboard_and_is_joined_by_nobody() -> None:
    flights: Flights[str, None] = Flights()
    long, _ = flights.begin("a", 0.0)
    flights.close(long)
    flights.close(long)
    other, leads = flights.begin("a", 0.1)
    assert leads
    assert flights.leave(long)
    assert (long.over, other.over) == (True, False)
    flights.finish(other, ok=True)
    assert len(flights) == 0


def test_landing_twice_counts_once() -> None:
    flights: Flights[str, None] = Flights()
    flight, _ = flights.begin("a", 0.0)
    flights.finish(flight, ok=False)
    flights.finish(flight, ok=False)
    assert flights.failed == 1
