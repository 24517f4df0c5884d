"""Which metrics and labels a PromQL expression asks for: a small reader of its tokens. Of grammar it knows only what tells names apart.

promtool says whether an expression is right, but lists no names; this is for expressions that promtool has taken.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<number>\d[\w.]*)|(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)|(?P<sign>=~|!~|!=|==|>=|<=|.)"""
)
LABEL_LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
WORDS = frozenset({"and", "or", "unless", "offset", "bool", "inf", "nan", "Inf", "NaN"})
AGGREGATIONS = frozenset(
    "sum min max avg group stddev stdvar count count_values bottomk topk quantile".split()
)
OF_PROMETHEUS = frozenset({"up", "ALERTS"})
"""Prometheus makes these itself."""
TARGET_LABELS = frozenset({"job", "instance", "host", "slot", "team"})
"""Those of the scrape configuration."""
LISTED = frozenset({"finished_reason", "state", "cache"})
"""Labels whose values are all on a page from the beginning, or were all made to come."""


@dataclass
class Asked:
    """What expressions ask for."""

    matched: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Metric -> labels in its braces."""
    values: set[tuple[str, str, str]] = field(default_factory=set)
    """Metric, label and value, where one value is wanted."""
    grouped: set[str] = field(default_factory=set)
    """Labels in `by (...)` and the like."""


def asked(expressions: Iterable[str]) -> Asked:
    found = Asked()
    for each in expressions:
        _read(list(_tokens(each)), found)
    return found


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    for match in TOKEN.finditer(expression):
        assert match.lastgroup is not None
        if match.lastgroup != "space":
            yield match.lastgroup, match.group()


def _read(tokens: list[tuple[str, str]], found: Asked) -> None:
    place, metric = 0, ""
    while place < len(tokens):
        kind, text = tokens[place]
        after = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        if text == "[":
            # durations, and of a subquery two with a colon
            place = tokens.index(("sign", "]"), place)
        elif text == "{":
            place = _matchers(tokens, place + 1, metric, found)
        elif kind == "name" and text in LABEL_LISTS and after == "(":
            end = tokens.index(("sign", ")"), place)
            found.grouped |= {word for sort, word in tokens[place:end] if sort == "name"} - {text}
            place = end
        elif kind == "name" and not (text in WORDS or after == "(" or text in AGGREGATIONS):
            metric = text
            found.matched[metric] |= set()
        place += 1


def _matchers(tokens: list[tuple[str, str]], place: int, metric: str, found: Asked) -> int:
    """Read to the closing brace; its place."""
    while tokens[place][1] != "}":
        (kind, label), (_, sign), (_, value) = tokens[place : place + 3]
        assert kind == "name", f"{label} in the braces of {metric}"
        found.matched[metric].add(label)
        if sign == "=":
            found.values.add((metric, label, value[1:-1]))
        place += 3
        if tokens[place][1] == ",":
            place += 1
    return place


def samples(page: str) -> dict[str, list[dict[str, str]]]:
    """Sample name -> labels of each, of a page in Prometheus' text format."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    for line in page.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("{")
            if not rest:
                name = line.split()[0]
            pairs = re.findall(r'(\w+)="((?:\\.|[^"\\])*)"', rest.rpartition("}")[0])
            found[name].append(dict(pairs))
    return found


def missing(
    found: Asked, pages: dict[str, list[dict[str, str]]], made: Collection[str] = ()
) -> list[str]:
    """What expressions ask for and no page has; `made` are series that rules make."""
    known = OF_PROMETHEUS | set(made)
    faults = [f"metric {each}" for each in found.matched if each not in known | pages.keys()]
    for metric, labels in found.matched.items():
        there = {label for one in pages.get(metric, ()) for label in one} | TARGET_LABELS
        if metric in pages:
            faults += [f"label {each} of {metric}" for each in sorted(labels - there)]
    for metric, label, value in sorted(found.values):
        values = {one.get(label) for one in pages.get(metric, ())}
        if label in LISTED and metric in pages and value not in values:
            faults.append(f"{label}={value} of {metric}")
    every = {label for page in pages.values() for one in page for label in one} | TARGET_LABELS
    return faults + [f"label {each}" for each in sorted(found.grouped - every)]
