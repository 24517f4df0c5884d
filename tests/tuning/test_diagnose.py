"""How rules hold, stay open and are closed, with a small table by hand; and what the catalog's own table must be."""

from dataclasses import replace

import pytest

from toolkit.errors import ToolkitError
from toolkit.plan.catalog import table
from toolkit.tuning.diagnose import BottleneckTable, amount, diagnose, looked_at, read_table
from toolkit.tuning.evidence import NAMES, Evidence, merged

WAITING = {"unit": "share", "what": "requests that wait", "tells": "its page"}
TOLD = {
    "sources": {"talk": "A Talk of 2025", "book": "`The Book`"},
    "indicators": {
        "running_mean": {"unit": "count", "words": "running"},
        "error_share": {"unit": "share", "words": "errors"},
    },
    "facts": {
        "waiting_share": WAITING,
        "running_max": {"unit": "count", "what": "requests that run", "tells": "its page"},
        "prefix_caching": {"unit": "yes", "what": "prefix caching", "tells": "its settings"},
    },
}
RULE = {
    "code": "full",
    "name": "it is full",
    "needs": [
        {"fact": "waiting_share", "least": 0.5, "says": "{} of looks had a queue"},
        {"fact": "running_max", "most": 8.0, "says": "{} ran"},
    ],
    "lever": "turn it",
    "risk": "it breaks",
    "watch": "this",
    "source": "talk, minute 3; book: 9 of 10",
}
FULL = Evidence(waiting_share=0.5, running_max=8.0)
CACHING, NO_CACHING = (replace(FULL, prefix_caching=each) for each in (True, False))
NO_CACHE = [{"fact": "prefix_caching", "is": False}]


def rules(*changes: dict[str, object]) -> BottleneckTable:
    return read_table(TOLD | {"bottlenecks": [RULE | each for each in changes]})


@pytest.mark.parametrize(
    ("evidence", "changes", "confidence"),
    [
        (FULL, {}, "medium"),  # both bounds are included
        (replace(FULL, waiting_share=0.49), {}, None),
        (replace(FULL, running_max=8.01), {}, None),
        # one of `also` makes it sure
        (FULL, {"also": NO_CACHE}, "medium"),
        (CACHING, {"also": NO_CACHE}, "medium"),
        (NO_CACHING, {"also": NO_CACHE}, "high"),
        # anything of `unless` speaks against it, and what is unknown does not
        (NO_CACHING, {"unless": NO_CACHE}, None),
        (CACHING, {"unless": NO_CACHE}, "medium"),
        (FULL, {"unless": NO_CACHE}, "medium"),
    ],
)
def test_a_rule_holds_where_all_that_it_needs_is_seen(
    evidence: Evidence, changes: dict[str, object], confidence: str | None
) -> None:
    found = diagnose(evidence, rules(changes)).found
    assert [each.confidence for each in found] == ([confidence] if confidence else [])


def test_a_found_bottleneck_says_what_was_seen_in_numbers_and_what_the_rule_says() -> None:
    [found] = diagnose(FULL, rules({})).found
    assert found.evidence == "50.0 % of looks had a queue; 8 ran"
    rule = found.rule
    assert (rule.lever, rule.risk, rule.watch) == ("turn it", "it breaks", "this")
    assert rule.source == "A Talk of 2025 (minute 3); `The Book` (9 of 10)"


def test_an_open_rule_names_what_is_unknown_and_a_closed_one_does_not() -> None:
    [unknown] = diagnose(Evidence(waiting_share=0.9), rules({})).unknown
    assert (unknown.fact, unknown.tells, unknown.codes) == ("running_max", "its page", ("full",))
    assert diagnose(Evidence(waiting_share=0.1), rules({})).unknown == ()
    assert diagnose(FULL, rules({})).unknown == ()


def test_the_surest_comes_first_and_equals_stay_in_the_tables_order() -> None:
    bases = (("a", "low"), ("b", "high"), ("c", "medium"), ("d", "high"))
    found = diagnose(FULL, rules(*({"code": code, "base": base} for code, base in bases))).found
    assert [each.rule.code for each in found] == ["b", "d", "c", "a"]


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.999, "share", "99.9 %"),
        (8.0, "count", "8"),
        (3.557, "times", "3.56"),
        (2345.0, "ms", "2.35 s"),
        (90.0, "s", "1 min 30 s"),
        (14_667.0, "count", "14,667"),
    ],
)
def test_amounts_are_read_in_their_unit(value: float, unit: str, said: str) -> None:
    assert amount(value, unit) == said


def test_what_was_looked_at_is_said_where_it_is_known() -> None:
    assert looked_at(Evidence(), rules({})) == "nothing could be looked at"
    seen = Evidence(interval_s=10.0, running_mean=2.0, error_share=0.0)
    assert looked_at(seen, rules({})) == "over 10 s: running 2, errors 0 %"


def test_of_several_sources_the_first_that_knows_a_fact_is_believed_and_false_and_zero_are_known() -> (
    None
):
    found = merged(
        (
            Evidence(running_max=3.0, prefix_caching=False, waiting_mean=0.0),
            Evidence(running_max=9.0, prefix_caching=True, waiting_mean=1.0),
        )
    )
    assert found == Evidence(running_max=3.0, prefix_caching=False, waiting_mean=0.0)


def test_what_follows_from_two_sources_is_worked_out() -> None:
    server = Evidence(max_model_len=8192.0, prefix_hit_ratio=0.2, ttft_p50_ms=50.0)
    client = Evidence(
        longest_request_tokens=271.0, shared_prefix_share=0.8, client_ttft_p50_ms=200.0
    )
    found = merged((server, client))
    # the contest's 8,192 tokens against 271
    assert found.model_len_factor == pytest.approx(30.2, abs=0.1)
    assert found.prefix_hits_of_possible == pytest.approx(0.25)
    assert found.client_over_engine_ttft == pytest.approx(4.0)
    nothing_shared = merged((server, replace(client, shared_prefix_share=0.0)))
    assert nothing_shared.prefix_hits_of_possible is None


# --- the catalog's table ---------------------------------------------------------------------------------


def test_the_catalogs_rules_say_all_that_a_user_needs_and_ask_for_facts_that_something_finds_out() -> (
    None
):
    catalog = read_table(table("bottlenecks"))
    assert len({each.code for each in catalog.bottlenecks}) >= 19
    # one code may be known by several signs, each of which is a row with a name of its own
    assert len({each.name for each in catalog.bottlenecks}) == len(catalog.bottlenecks)
    used = set()
    for each in catalog.bottlenecks:
        assert all((each.name, each.lever, each.risk, each.watch, each.source)), each.code
        assert all(one["says"] for one in (*each.needs, *each.also)), each.code
        used |= {one["fact"] for one in (*each.needs, *each.also, *each.unless)}
    assert used == set(catalog.facts) <= NAMES


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"needs": []}, "needs nothing"),
        ({"base": "certain"}, "no confidence"),
        ({"needs": [{"fact": "queue_share", "least": 1.0}]}, "explained nowhere"),
        ({"needs": [{"fact": "running_max", "least": 1.0, "most": 2.0}]}, "exactly one"),
        ({"needs": [{"fact": "running_max"}]}, "exactly one"),
        ({"source": "somebody, said so"}, "is no source and its place"),
        ({"source": "talk"}, "is no source and its place"),
        ({"source": "talk, "}, "is no source and its place"),
        ({"source": "talks, minute 3"}, "is no source and its place"),
    ],
)
def test_a_rule_that_could_never_hold_or_be_found_again_is_refused(
    changes: dict[str, object], said: str
) -> None:
    with pytest.raises(ToolkitError, match=said):
        rules(changes)


def test_a_fact_that_nobody_finds_out_is_refused() -> None:
    with pytest.raises(ToolkitError, match="`moon` in `share` is no fact"):
        read_table(TOLD | {"facts": {"moon": WAITING}, "bottlenecks": []})
