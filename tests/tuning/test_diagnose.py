"""How rules hold, stay open and are closed, with a small table by hand; and what the catalog's own table must be."""

from dataclasses import replace

import pytest

from toolkit.errors import ToolkitError
from toolkit.plan.catalog import table
from toolkit.tuning.diagnose import amount, diagnose, looked_at, read_table
from toolkit.tuning.evidence import NAMES, Evidence, merged

WORDS = {
    "lever": "turn it",
    "risk": "it breaks",
    "watch": "this",
    "source": "talk, minute 3; book: 9 of 10",
}
SOURCES = {"talk": "A Talk of 2025", "book": "`The Book`"}
FACTS = {
    "waiting_share": {"unit": "share", "what": "requests that wait", "tells": "its page"},
    "running_max": {"unit": "count", "what": "requests that run", "tells": "its page"},
    "prefix_caching": {"unit": "yes", "what": "prefix caching", "tells": "its settings"},
}
RULE = {
    "code": "full",
    "name": "it is full",
    "needs": [
        {"fact": "waiting_share", "least": 0.5, "says": "{} of looks had a queue"},
        {"fact": "running_max", "most": 8.0, "says": "{} ran"},
    ],
    **WORDS,
}


def codes(evidence: Evidence, **changes) -> list[tuple[str, str]]:
    rules = read_table({"sources": SOURCES, "facts": FACTS, "bottlenecks": [RULE | changes]})
    return [(each.code, each.confidence) for each in diagnose(evidence, rules).found]


FULL = Evidence(waiting_share=0.5, running_max=8.0)


def test_a_rule_holds_where_all_that_it_needs_is_seen_bounds_included() -> None:
    assert codes(FULL) == [("full", "medium")]
    assert codes(replace(FULL, waiting_share=0.49)) == []
    assert codes(replace(FULL, running_max=8.01)) == []


def test_one_of_also_makes_it_sure() -> None:
    also = [{"fact": "prefix_caching", "is": False}]
    assert codes(FULL, also=also) == [("full", "medium")]
    assert codes(replace(FULL, prefix_caching=True), also=also) == [("full", "medium")]
    assert codes(replace(FULL, prefix_caching=False), also=also) == [("full", "high")]


def test_anything_of_unless_speaks_against_it_and_the_unknown_does_not() -> None:
    unless = [{"fact": "prefix_caching", "is": True}]
    assert codes(replace(FULL, prefix_caching=True), unless=unless) == []
    assert codes(FULL, unless=unless) == [("full", "medium")]


def test_the_evidence_says_what_was_seen_in_numbers() -> None:
    rules = read_table({"sources": SOURCES, "facts": FACTS, "bottlenecks": [RULE]})
    [found] = diagnose(FULL, rules).found
    assert found.evidence == "50.0 % of looks had a queue; 8 ran"
    assert (found.lever, found.risk, found.watch) == ("turn it", "it breaks", "this")


def test_an_open_rule_names_what_is_unknown_and_a_closed_one_does_not() -> None:
    rules = read_table({"sources": SOURCES, "facts": FACTS, "bottlenecks": [RULE]})
    [unknown] = diagnose(Evidence(waiting_share=0.9), rules).unknown
    assert (unknown.fact, unknown.tells, unknown.codes) == ("running_max", "its page", ("full",))
    assert diagnose(Evidence(waiting_share=0.1), rules).unknown == ()
    assert diagnose(FULL, rules).unknown == ()


def test_the_surest_comes_first_and_equals_stay_in_the_tables_order() -> None:
    rules = [RULE | {"code": code, "base": base} for code, base in
             (("a", "low"), ("b", "high"), ("c", "medium"), ("d", "high"))]  # fmt: skip
    found = diagnose(
        FULL, read_table({"sources": SOURCES, "facts": FACTS, "bottlenecks": rules})
    ).found
    assert [each.code for each in found] == ["b", "d", "c", "a"]


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


def test_what_was_looked_at_is_told_where_it_is_known() -> None:
    assert looked_at(Evidence()) == "nothing could be looked at"
    assert looked_at(Evidence(interval_s=10.0, running_mean=2.0, error_share=0.0)) == (
        "over 10 s: running 2, errors 0 %"
    )


# --- evidence ------------------------------------------------------------------------------------------


def test_the_first_source_that_knows_a_fact_is_believed() -> None:
    found = merged((Evidence(running_max=3.0), Evidence(running_max=9.0, waiting_mean=1.0)))
    assert (found.running_max, found.waiting_mean) == (3.0, 1.0)


def test_false_and_zero_are_known() -> None:
    found = merged(
        (Evidence(prefix_caching=False, waiting_mean=0.0), Evidence(prefix_caching=True))
    )
    assert (found.prefix_caching, found.waiting_mean) == (False, 0.0)


def test_what_follows_from_two_sources_is_worked_out() -> None:
    found = merged(
        (
            Evidence(max_model_len=8192.0, prefix_hit_ratio=0.2, ttft_p50_ms=50.0),
            Evidence(
                longest_request_tokens=271.0, shared_prefix_share=0.8, client_ttft_p50_ms=200.0
            ),
        )
    )
    # the contest's 8,192 tokens against 271
    assert found.model_len_factor == pytest.approx(30.2, abs=0.1)
    assert found.prefix_hits_of_possible == pytest.approx(0.25)
    assert found.client_over_engine_ttft == pytest.approx(4.0)
    assert (
        merged((Evidence(prefix_hit_ratio=0.2, shared_prefix_share=0.0),)).prefix_hits_of_possible
        is None
    )


# --- the catalog's table ---------------------------------------------------------------------------------


def test_every_bottleneck_of_the_catalog_says_all_that_a_user_needs() -> None:
    rules = read_table(table("bottlenecks"))
    codes = [each.code for each in rules.bottlenecks]
    assert len(set(codes)) >= 19
    # one code may be known by several signs, each of which is a row with a name of its own
    assert len({each.name for each in rules.bottlenecks}) == len(codes)
    for each in rules.bottlenecks:
        assert all((each.name, each.lever, each.risk, each.watch, each.source)), each.code
        assert all(need["says"] for need in each.needs), each.code
        assert all(more["says"] for more in each.also), each.code


def test_every_fact_of_the_catalog_is_one_that_something_finds_out() -> None:
    rules = read_table(table("bottlenecks"))
    assert set(rules.facts) <= NAMES
    used = {
        condition["fact"]
        for each in rules.bottlenecks
        for condition in (*each.needs, *each.also, *each.unless)
    }
    assert used == set(rules.facts)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"needs": []}, "needs nothing"),
        ({"base": "certain"}, "no confidence"),
        ({"needs": [{"fact": "queue_share", "least": 1.0}]}, "explained nowhere"),
        ({"needs": [{"fact": "running_max", "least": 1.0, "most": 2.0}]}, "exactly one"),
        ({"needs": [{"fact": "running_max"}]}, "exactly one"),
    ],
)
def test_a_rule_that_could_never_hold_is_refused(changes, said: str) -> None:
    with pytest.raises(ToolkitError, match=said):
        read_table({"sources": SOURCES, "facts": FACTS, "bottlenecks": [RULE | changes]})


def test_a_source_is_told_by_its_full_name_and_the_place() -> None:
    (rule,) = read_table({"sources": SOURCES, "facts": FACTS, "bottlenecks": [RULE]}).bottlenecks
    assert rule.source == "A Talk of 2025 (minute 3); `The Book` (9 of 10)"


@pytest.mark.parametrize("source", ["somebody, said so", "talk", "talk, ", "talks, minute 3"])
def test_a_rule_whose_source_cannot_be_found_again_is_refused(source: str) -> None:
    rule = RULE | {"source": source}
    with pytest.raises(ToolkitError, match="is no source and its place"):
        read_table({"sources": SOURCES, "facts": FACTS, "bottlenecks": [rule]})


def test_a_fact_that_nobody_finds_out_is_refused() -> None:
    with pytest.raises(ToolkitError, match="`moon` in `share` is no fact"):
        read_table(
            {"sources": SOURCES, "facts": {"moon": FACTS["waiting_share"]}, "bottlenecks": []}
        )
