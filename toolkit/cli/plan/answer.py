"""One plan with all that was asked beside it."""

from dataclasses import dataclass

from toolkit.plan.capacity import Chain, Cost, Headroom
from toolkit.plan.checkup import Checkup, Deviation
from toolkit.plan.result import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """One plan and what follows from it beside its flags. None: not asked for, or not known."""

    plan: Plan
    cost: Cost | None = None
    chain: Chain | None = None
    headroom: Headroom | None = None
    checkup: Checkup | None = None
    deviation: Deviation | None = None
