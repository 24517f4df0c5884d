"""Verdicts on a window of a blast: bench's rules on canaries, and nothing that a blast cannot know."""

from dataclasses import replace
from typing import Any

from support.board_reader import RUN, START_S, ListReader
from support.shots import failed, replayed, shot, twin

from toolkit.board.feed import Feed
from toolkit.records import RequestRecord, Verdict

SECONDS = 120


def canaries(name: str, pairs: int = 12, *, start: int = 0, **more: Any) -> list[RequestRecord]:
    """Unique requests 5 s apart, each with its duplicate right after it was answered; an honest host's."""
    found = []
    for number in range(pairs):
        at = START_S + 5.0 * number
        slot = start + 2 * number
        known = {"run": RUN.id, "name": name, "url": f"http://{name}:8000", "planned_at": at}
        unique = shot(slot, **known, **more)
        found += [unique, twin(unique, slot + 1, planned_at=at + 3, sent_at=at + 3)]
    return found


def cached(name: str) -> list[RequestRecord]:
    """As these, but the duplicates are answered from memory."""
    return [
        each
        for unique in canaries(name)[::2]
        for each in (unique, replayed(unique, unique.slot + 1, sent_at=unique.planned_at + 3))
    ]


def blast(
    *shots: list[RequestRecord],
    made: float = 1.0,
    scraped: dict[str, Any] | None = None,
    answers: dict[str, int] | None = None,
) -> ListReader:
    """Hosts that answer three ranked requests a second, no cache among them; their counters hold the share `made`."""
    reader = ListReader(*dict.fromkeys(each.name for some in shots for each in some))
    reader.shots = [each for some in shots for each in some]
    reader.seconds(0, SECONDS, users=len(reader.hosts))
    for host in reader.hosts.values():
        ok = (answers or {}).get(host.name, 3)
        for second in range(SECONDS):
            reader.part(host.name, second, e2e=[5.0] * ok, output_tokens=1000 * ok, cache_judged=ok)
            if second % 5 == 0:
                requests = made * ok * second
                counted = {"requests_total": requests, "generation_tokens_total": 1000 * requests}
                reader.look(host.name, second, **(counted | (scraped or {})))
    return reader


def verdicts(reader: ListReader, **window: Any) -> dict[str, dict[str, Verdict]]:
    board = Feed(reader, RUN).board(**window)
    return {one.name: {each.code: each for each in one.verdicts} for one in board.standings}


def codes(*shots: list[RequestRecord], **more: Any) -> dict[str, list[str]]:
    return {name: list(found) for name, found in verdicts(blast(*shots, **more)).items()}


def why(reader: ListReader, name: str = "a") -> str:
    (found,) = verdicts(reader)[name].values()
    assert (found.code, found.confidence) == ("not_judged", "high")
    return found.evidence


def test_honest_hosts_are_clean_and_nothing_else() -> None:
    found = verdicts(
        blast(canaries("a"), canaries("b", token_ms=60.0), canaries("c", first_ms=900.0))
    )
    for of_host in found.values():
        assert list(of_host) == ["clean"]
    assert found["a"]["clean"].evidence == (
        "no anomaly found in its 24 canary answers, and its counters hold what it answered"
    )


def test_a_host_of_which_too_little_was_seen_is_not_called_clean() -> None:
    # a response cache shows in its duplicates: a unique one alone, or one pair, acquits nobody
    few = blast(canaries("a")[:1], canaries("b", pairs=1))
    for name in "ab":
        assert why(few, name) == "response_cache: fewer than 2 requests were answered twice"
    assert codes(canaries("a", pairs=2)) == {"a": ["clean"]}
    # two answers of one token may be all there was to say, or a trick: the others were not sent enough yet
    short = blast(canaries("a", pairs=2, tokens=1), canaries("b", pairs=1))
    assert why(short).startswith("truncated_output: answers of one token, and nobody to compare")
    unmeasured = blast(canaries("a"))
    unmeasured.shots = []
    assert why(unmeasured) == "most codes: no canary was sent"


def test_without_counters_or_a_list_of_models_nobody_is_clean() -> None:
    unread = blast(canaries("a"))
    unread.sightings = []
    codes_of_counters = "foreign_traffic and hidden_backend"
    assert why(unread) == (
        f"{codes_of_counters}: nobody has looked at its counters; model_mismatch: no list of models"
    )
    for scraped, reason in (
        ({"requests_total": None}, "its `/metrics` counts no requests and tokens"),
        ({"generation_tokens_total": None}, "its `/metrics` counts no requests and tokens"),
    ):
        assert why(blast(canaries("a"), scraped=scraped)) == f"{codes_of_counters}: {reason}"
    unnoted = blast(canaries("a"))
    unnoted.loader = [replace(each, users=None) for each in unnoted.loader]
    assert why(unnoted) == f"{codes_of_counters}: nobody noted who sent how much"
    assert why(blast(canaries("a"), scraped={"models": ()})) == "model_mismatch: no list of models"


def test_counters_that_hold_the_answers_settle_what_canaries_leave_open() -> None:
    # equal answers in half the time: a slow replay, or a quiet moment
    half = {"e2e_ms": 1040.0, "took_ms": 1040.0, "tpot_ms": 10.0, "ttft_ms": 40.0}
    uniques = canaries("a")[::2]
    again = [replayed(each, each.slot + 1, sent_at=each.planned_at + 3, **half) for each in uniques]
    assert codes([*uniques, *again]) == {"a": ["clean"]}
    unread = blast([*uniques, *again], scraped={"requests_total": None})
    assert "response_cache: equal answers came in half the time" in why(unread)


def test_what_counters_say_goes_with_what_canaries_say() -> None:
    assert codes(canaries("a"), made=0.5) == {"a": ["hidden_backend"]}
    assert codes(canaries("a"), made=2.0) == {"a": ["foreign_traffic"]}
    # a response cache explains what they lack, also one that seldom answers
    beside = canaries("b")
    seldom = [*cached("a")[:10], *canaries("a")[10:]]
    assert codes(seldom, beside, made=0.5)["a"] == ["response_cache"]
    assert codes(cached("a"), beside)["a"] == ["response_cache"]
    assert codes(cached("a"), beside, made=0.5)["a"] == ["response_cache"]
    assert codes(cached("a"), beside, scraped={"requests_total": None})["a"] == [
        "response_cache",
        "not_judged",
    ]


def test_a_first_token_trick_is_seen_beside_the_others_whose_slots_are_far_behind() -> None:
    for start in (0, 90_000):
        found = codes(canaries("short", tokens=1, start=start), canaries("b"), canaries("c"))
        assert found == {"short": ["truncated_output"], "b": ["clean"], "c": ["clean"]}


def test_a_duplicate_whose_unique_left_before_the_window_says_nothing() -> None:
    # of a window that begins after 23 of 24 were sent
    found = verdicts(blast(canaries("a")[:1], canaries("b")), window_s=SECONDS)
    assert list(found["b"]) == ["clean"]
    late = blast(canaries("b")[1:])
    assert "22 canary answers" in verdicts(late)["b"]["clean"].evidence


def test_nobody_is_cold_or_saturated_in_the_middle_of_a_blast() -> None:
    # the window's first answers stood for 30 s, and so did later ones in turns
    slow = [
        replace(each, ttft_ms=30_000.0, e2e_ms=32_000.0, took_ms=32_000.0) if number < 4 else each
        for number, each in enumerate(canaries("a"))
    ]
    assert codes(slow, canaries("b"))["a"] == ["clean"]


def test_a_moment_knows_only_what_had_ended_by_then() -> None:
    reader = blast(canaries("short", tokens=1), canaries("b"), canaries("c"))
    assert list(verdicts(reader, at_s=START_S + 5)["short"]) == ["not_judged"]
    assert "truncated_output" in verdicts(reader, at_s=START_S + 59)["short"]


def test_a_restart_and_other_settings_in_the_window_are_reported() -> None:
    reader = blast(canaries("a"), canaries("b"))
    reader.sightings = [
        replace(each, config_hash="c2", max_model_len=4096, started_at=START_S + 27.0)
        if each.name == "a" and each.at >= START_S + 30
        else replace(each, config_hash="c1", max_model_len=8192)
        for each in reader.sightings
    ]
    found = verdicts(reader)
    assert list(found["a"]) == ["clean", "restarted", "config_drift"]
    # the window ends with the end of second 119
    assert found["a"]["restarted"].evidence == (
        "its process started anew 1 min 33 s before the end of the window"
    )
    assert found["a"]["config_drift"].evidence == (
        "config: max_model_len 8192 -> 4096, 1 min 30 s before the end of the window"
    )
    assert list(found["b"]) == ["clean"]


def test_a_host_that_serves_another_model_than_listed_is_accused() -> None:
    reader = blast(canaries("a"), scraped={"models": ("Qwen/Qwen3.5-4B",)})
    reader.hosts[1] = replace(reader.hosts[1], model="Qwen/Qwen3.5-35B-A3B")
    assert "model_mismatch" in verdicts(reader)["a"]


def test_an_answer_that_filled_the_models_length_is_not_cut() -> None:
    # 30 prompt tokens and 100 of answer are all that 130 positions hold; 256 were wanted
    full = canaries("a", finish_reason="length")
    assert codes(full)["a"] == ["truncated_output"]
    assert codes(full, scraped={"max_model_len": 130})["a"] == ["clean"]
    # and of a host that came back with another length those of before may have filled the old one
    reader = blast(full, scraped={"config_hash": "c2", "max_model_len": 8192})
    first = replace(reader.sightings[0], config_hash="c1", max_model_len=130)
    reader.sightings[0] = first
    assert list(verdicts(reader)["a"]) == ["clean", "config_drift"]


# who stands on the honest board


def with_a_trickster() -> ListReader:
    tricks = canaries("short", tokens=1)
    leads = {"short": 9, "b": 3, "c": 2}
    return blast(tricks, canaries("b"), canaries("c"), answers=leads)


def test_a_first_token_trick_leads_but_not_on_the_honest_board() -> None:
    feed = Feed(with_a_trickster(), RUN)
    assert [each.name for each in feed.board().standings] == ["short", "b", "c"]
    board = feed.board(honest=True)
    # who stand where they stood a minute ago among themselves
    assert [(each.name, each.rank, each.rank_change) for each in board.standings] == [
        ("b", 1, 0),
        ("c", 2, 0),
    ]
    assert [(s.name, s.rank, s.left_out, s.ok) for s in board.left_out] == [
        ("short", None, True, 9 * SECONDS)
    ]
    # the best of those that are ranked
    assert board.standings[0].score == 1.0
    assert feed.ranks(honest=True).ranks.keys() == {"b", "c"}
    assert feed.ranks().ranks.keys() == {"short", "b", "c"}
    # as they were judged then, when nobody was yet
    assert feed.ranks(honest=True, to_s=START_S + 19).ranks == {}
    # until all was compared nobody stands there, and everybody on the other one
    early = feed.board(at_s=START_S + 19, honest=True)
    assert early.standings == ()
    assert [(v.confidence, v.evidence) for v in early.left_out[1].verdicts] == [
        ("high", "foreign_traffic and hidden_backend: too few looks at its counters")
    ]
    assert len(feed.board(at_s=START_S + 19).standings) == 3


def test_two_addresses_of_one_engine_are_named_and_accuse_nobody() -> None:
    reader = blast(canaries("b"), canaries("c"), made=2.0, scraped={"config_hash": "same"})
    # a gateway may call the model as it likes
    names = {"b": "Qwen/Qwen3.5-35B-A3B", "c": "Qwen/Qwen3.5-4B"}
    reader.sightings = [replace(each, models=(names[each.name],)) for each in reader.sightings]
    found = verdicts(reader)
    for name, other in (("b", "c"), ("c", "b")):
        assert list(found[name]) == ["clean", "same_engine"]
        assert found[name]["same_engine"].evidence.startswith(f"same engine as {other}: ")
    # started at another time it is another engine, and its counters move by somebody else's requests
    reader.sightings = [
        replace(each, started_at=START_S - 100.0) if each.name == "c" else each
        for each in reader.sightings
    ]
    assert list(verdicts(reader)["c"]) == ["foreign_traffic"]


def test_a_short_window_is_judged_with_the_answers_of_two_minutes_but_not_with_their_failures() -> (
    None
):
    reader = blast(canaries("a"), canaries("b"))
    of_b = {"name": "b", "url": "http://b:8000", "run": RUN.id}
    reader.shots += [
        failed(100 + second, took_ms=0.1, planned_at=START_S + 40 + second, **of_b)
        for second in range(20)
    ]
    for window_s, found in ((80, "fast_failures"), (15, "clean")):
        at_s = START_S + SECONDS - 1
        assert list(verdicts(reader, window_s=window_s, at_s=at_s)["b"]) == [found]
    # all canaries ended in the first minute
    reader.seconds(SECONDS, 300, users=2)
    assert list(verdicts(reader, window_s=15, at_s=START_S + 250)["b"]) == ["not_judged"]
