"""Is this machine fit to serve? Facts in, checks out. It looks at nothing itself: machine.py does.

Each group of rules stands in a file of its own; here is their order on the screen.
"""

from toolkit.serving.fit import disk_checks, engine_checks, gpu_checks, port_checks, system_checks
from toolkit.serving.fit.facts import Facts
from toolkit.serving.fit.needs import Needs
from toolkit.serving.outcome import Check, State

__all__ = ["Check", "State", "checks", "is_fit"]


def checks(facts: Facts, needs: Needs) -> tuple[Check, ...]:
    """Everything that was looked at, in the order in which a start would stumble over it."""
    return (
        *system_checks.open_files_checks(facts, needs),
        *disk_checks.checks(facts, needs),
        *system_checks.memory_checks(facts, needs),
        *system_checks.shared_memory_checks(facts),
        *port_checks.checks(facts, needs),
        *gpu_checks.checks(facts, needs),
        *engine_checks.checks(facts, needs),
        *system_checks.cpu_checks(facts, needs),
        *system_checks.clock_checks(facts),
    )


def is_fit(found: tuple[Check, ...]) -> bool:
    """Whether nothing fails; what is doubtful serves."""
    return all(check.status != "fail" for check in found)
