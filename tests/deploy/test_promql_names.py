"""The reader of names that the other tests trust."""

import pytest
from support.promql import asked


@pytest.mark.parametrize(
    ("expression", "matched", "grouped"),
    [
        ("up", {"up": set()}, set()),
        ("up == 0 or vector(0)", {"up": set()}, set()),
        (
            'sum by (le, host) (rate(vllm:a_bucket{job="e",host=~"x|by"}[5m] offset 1h)) / 2e3',
            {"vllm:a_bucket": {"job", "host"}},
            {"le", "host"},
        ),
        (
            'sum(a{b="}",c!="or"}) by (d) and on (e) b:c:d5m unless on () x{y!~"sum(z)"}',
            {"a": {"b", "c"}, "b:c:d5m": set(), "x": {"y"}},
            {"d", "e"},
        ),
        (
            "histogram_quantile(0.95, p:q) >= bool 5 and time() - max(start{}) > Inf",
            {"p:q": set(), "start": set()},
            set(),
        ),
        (
            "a * on (host) group_left (team) b[1m:5s] @ 7",
            {"a": set(), "b": set()},
            {"host", "team"},
        ),
        ('topk(3, by_host{le="+Inf"})', {"by_host": {"le"}}, set()),
    ],
)
def test_names_are_told_from_functions_labels_values_and_durations(
    expression: str, matched: dict[str, set[str]], grouped: set[str]
) -> None:
    found = asked([expression])
    assert (found.matched, found.grouped) == (matched, grouped)
