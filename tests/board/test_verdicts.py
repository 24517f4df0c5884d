"""Verdicts on a window of a blast: bench's rules on canaries, and nothing that a blast cannot know."""

from dataclasses import replace
from typing import Any

from support.shots import AT, replayed, shot, twin

from toolkit.board.counter_deltas import CounterDeltas
from toolkit.board.scrapes import Scrape, changes, scrape_of
from toolkit.board.verdicts import aligned, judged
from toolkit.records import Event, Host, RequestRecord, Sighting, Verdict

END_S = int(AT) + 600
HOLDS = CounterDeltas()


def host(name: str, **more: Any) -> Host:
    return Host(**{"name": name, "url": f"http://{name}:1", **more})


def canaries(name: str, pairs: int = 12, *, start: int = 0, **more: Any) -> list[RequestRecord]:
    """Unique requests 5 s apart, each with its twin right after it was answered; an honest host's."""
    told = []
    for number in range(pairs):
        at = AT + 5 * number
        slot = start + 2 * number
        unique = shot(slot, name=name, url=f"http://{name}:1", planned_at=at, **more)
        told += [unique, twin(unique, slot + 1, planned_at=at + 3, sent_at=at + 3)]
    return told


def told(
    *shots: list[RequestRecord],
    looks: dict[str, list[Scrape]] | None = None,
    events: tuple[Event, ...] = (),
    at_s: int = END_S,
    hosts: tuple[Host, ...] = (),
    counted: CounterDeltas = HOLDS,
) -> dict[str, dict[str, Verdict]]:
    """What is said of hosts that list their model and whose counters hold their answers, unless another thing is said."""
    names = list(dict.fromkeys(each.name for some in shots for each in some))
    usual = {name: [scrape_of(look(0, name=name))] for name in names}
    found = judged(
        [each for some in shots for each in some],
        usual | (looks or {}),
        events,
        hosts=hosts or [host(name) for name in names],
        run="r",
        at_s=at_s,
        counted=dict.fromkeys(names, counted),
    )
    return {name: {each.code: each for each in verdicts} for name, verdicts in found.items()}


def test_honest_hosts_are_clean_and_nothing_else() -> None:
    found = told(canaries("a"), canaries("b", token_ms=60.0), canaries("c", first_ms=900.0))
    assert {name: list(codes) for name, codes in found.items()} == {
        "a": ["clean"],
        "b": ["clean"],
        "c": ["clean"],
    }
    assert found["a"]["clean"].evidence == (
        "nothing speaks against its 24 canary answers, and its counters hold what it answered"
    )


def test_a_host_of_which_too_little_was_seen_is_not_called_clean() -> None:
    # a response cache shows in its twins: a unique one alone, or one pair, acquits nobody
    few = told(canaries("a")[:1], canaries("b", pairs=1))
    assert {name: why(found) for name, found in few.items()} == dict.fromkeys(
        "ab", "response_cache: fewer than 2 requests were answered twice"
    )
    assert list(told(canaries("a", pairs=2))["a"]) == ["clean"]
    # two answers of one token may be all there was to say, or a trick: the others were not asked enough yet
    short = told(canaries("short", pairs=2, tokens=1), canaries("b", pairs=1))["short"]
    assert why(short).startswith("truncated_output: answers of one token, and nobody to compare")


def why(found: dict[str, Verdict]) -> str:
    assert list(found) == ["not_judged"]
    assert found["not_judged"].confidence == "high"
    return found["not_judged"].evidence


def test_a_host_without_canaries_is_not_judged() -> None:
    assert why(told(hosts=(host("a"),))["a"]) == "most codes: no canary was sent"


def test_without_counters_or_a_list_of_models_nobody_is_clean() -> None:
    unread = told(canaries("a"), counted=CounterDeltas(gap="nobody has looked at its counters"))[
        "a"
    ]
    assert why(unread) == ("foreign_traffic and hidden_backend: nobody has looked at its counters")
    assert why(told(canaries("a"), looks={"a": []})["a"]) == "model_mismatch: no list of models"


def test_counters_that_hold_the_answers_settle_what_canaries_leave_open() -> None:
    # equal answers in half the time: a slow replay, or a quiet moment
    uniques = canaries("a")[::2]
    half = (
        {"e2e_ms": uniques[0].e2e_ms / 2, "took_ms": uniques[0].e2e_ms / 2}
        if uniques[0].e2e_ms
        else {}
    )
    again = [
        replayed(
            each, each.slot + 1, sent_at=each.planned_at + 3, tpot_ms=10.0, ttft_ms=40.0, **half
        )
        for each in uniques
    ]
    assert list(told([*uniques, *again])["a"]) == ["clean"]
    open_ = told([*uniques, *again], counted=CounterDeltas(gap="nobody has looked"))["a"]
    assert "response_cache: equal answers came in half the time" in why(open_)


def test_what_counters_say_goes_with_what_canaries_say() -> None:
    hidden = Verdict(code="hidden_backend", confidence="medium", evidence="")
    assert list(told(canaries("a"), counted=CounterDeltas(accusations=(hidden,)))["a"]) == [
        "hidden_backend"
    ]
    uniques = canaries("a")[::2]
    cached = [
        each
        for unique in uniques
        for each in (unique, replayed(unique, unique.slot + 1, sent_at=unique.planned_at + 3))
    ]
    # a response cache explains what they lack
    for lacking in (
        CounterDeltas(accusations=(hidden,)),
        CounterDeltas(gap="they lack some", lacks=True),
    ):
        assert list(told(cached, canaries("b"), counted=lacking)["a"]) == ["response_cache"]
    unread = told(cached, canaries("b"), counted=CounterDeltas(gap="nobody has looked"))["a"]
    assert list(unread) == ["response_cache", "not_judged"]


def test_a_response_cache_is_seen_by_its_twins() -> None:
    uniques = canaries("a")[::2]
    cached = [
        each
        for unique in uniques
        for each in (unique, replayed(unique, unique.slot + 1, sent_at=unique.planned_at + 3))
    ]
    assert "response_cache" in told(cached, canaries("b"))["a"]


def test_a_first_token_trick_is_seen_beside_the_others() -> None:
    found = told(canaries("short", tokens=1), canaries("b"), canaries("c"))
    assert list(found["short"]) == ["truncated_output"]
    assert list(found["b"]) == ["clean"]


def test_hosts_of_other_speed_are_compared_by_the_question_not_by_the_slot() -> None:
    # the fast host's window holds slots that the slow one will reach much later
    found = told(canaries("short", tokens=1, start=90_000), canaries("b"), canaries("c"))
    assert list(found["short"]) == ["truncated_output"]


def test_equal_questions_get_equal_slots_and_twins_stay_with_theirs() -> None:
    fast, slow = canaries("fast", 8, start=5000), canaries("slow", 4)
    found = aligned({"fast": fast, "slow": slow})
    of_slot = {each.slot: each for each in found["fast"]}
    for each in found["slow"]:
        assert of_slot[each.slot].prompt == each.prompt
        if each.kind == "twin":
            assert each.pair is not None
            assert of_slot[each.pair].kind == "unique"
    for name, before in (("fast", fast), ("slow", slow)):
        assert len({each.slot for each in found[name]}) == len(before)


def test_a_twin_whose_unique_left_before_the_window_is_left_out() -> None:
    unique, again = aligned({"a": canaries("a", 2)[1:]})["a"]
    assert (unique.kind, again.kind, again.pair) == ("unique", "twin", unique.slot)


def test_nobody_is_cold_or_saturated_in_the_middle_of_a_blast() -> None:
    # the window's first answers stood for 30 s, and so did later ones in turns
    slow = [
        replace(each, ttft_ms=30_000.0, e2e_ms=32_000.0, took_ms=32_000.0) if number < 4 else each
        for number, each in enumerate(canaries("a"))
    ]
    assert list(told(slow, canaries("b"))["a"]) == ["clean"]


def test_a_moment_knows_only_what_had_ended_by_then() -> None:
    tricks, others = canaries("short", tokens=1), [canaries("b"), canaries("c")]
    assert told(tricks, *others, at_s=int(AT) - 1)["short"].keys() == {"not_judged"}
    # the first one ended in second 0
    assert list(told(tricks, *others, at_s=int(AT) + 59)["short"]) == ["truncated_output"]


def look(at: float, **more: Any) -> Sighting:
    usual = {"name": "a", "url": "http://a:1", "status": "ok", "started_at": AT - 900}
    usual |= {"models": ("tiny",)}
    return Sighting(**{**usual, "at": AT + at, **more})


def test_a_restart_and_other_settings_in_the_window_are_told() -> None:
    looks = [
        scrape_of(look(0, config_hash="c1", max_model_len=8192)),
        scrape_of(look(30, config_hash="c2", max_model_len=4096, started_at=AT + 20.0)),
    ]
    events = tuple(each.event for each in changes("a", "http://a:1", looks))
    found = told(canaries("a"), canaries("b"), looks={"a": looks}, events=events)
    assert list(found["a"]) == ["clean", "restarted", "config_drift"]
    # the window ends with the end of second 600, the process began 20 s after its beginning
    assert found["a"]["restarted"].evidence == (
        "its process started anew 9 min 41 s before the end of the window"
    )
    assert found["a"]["config_drift"].evidence == (
        "config: max_model_len 8192 -> 4096, 9 min 31 s before the end of the window"
    )
    assert list(found["b"]) == ["clean"]


def test_a_host_that_serves_another_model_than_listed_is_told() -> None:
    listed = host("a", model="Qwen/Qwen3.5-35B-A3B")
    looks = {"a": [scrape_of(look(0, models=("Qwen/Qwen3.5-4B",)))]}
    found = told(canaries("a"), looks=looks, hosts=(listed,))
    assert "model_mismatch" in found["a"]


def test_who_comes_back_with_another_length_is_told_of_that_and_serves_no_other_model() -> None:
    looks = [
        scrape_of(look(0, config_hash="c1", models=("tiny",), max_model_len=4096)),
        scrape_of(look(30, config_hash="c2", models=("tiny",), max_model_len=8192)),
    ]
    events = tuple(each.event for each in changes("a", "http://a:1", looks))
    found = told(canaries("a"), looks={"a": looks}, events=events)
    assert list(found["a"]) == ["clean", "config_drift"]
    # answers of before the swap may have filled the old length
    shorter = [looks[0]._replace(max_model_len=130), looks[1]]
    full = canaries("a", finish_reason="length")
    assert "truncated_output" not in told(full, looks={"a": shorter}, events=events)["a"]


def test_an_answer_that_filled_the_models_length_is_not_cut() -> None:
    # 30 prompt tokens and 100 of answer are all that 130 positions hold; 256 were asked for
    full = canaries("a", finish_reason="length")
    looks = {"a": [scrape_of(look(0, models=("tiny",), max_model_len=130))]}
    assert list(told(full, looks=looks)["a"]) == ["clean"]
    assert list(told(full)["a"]) == ["truncated_output"]
