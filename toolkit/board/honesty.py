"""Who is left out of the honest board. It knows codes of verdicts only, not how they came about."""

from collections.abc import Iterable

from toolkit.records import Verdict

DISHONEST = frozenset({"truncated_output", "inflated_usage", "hidden_backend"})
"""What makes figures that are not the engine's own: a response cache is allowed, and shown."""
UNJUDGED = frozenset({"not_judged"})
"""Nobody can tell whether these figures are the engine's own."""


def reasons(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts for which a host is left out; a hint alone (low confidence) leaves out nobody."""
    return [
        each for each in verdicts if each.code in DISHONEST | UNJUDGED and each.confidence != "low"
    ]
