"""What every contract test may ask for, and which one is run when. Nothing here or in harness/ imports the toolkit, but the simulator's
start (harness/fleets.py).
"""

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

pytest.register_assert_rewrite("contract.harness")

HERE = Path(__file__).parent
FIRST = (
    "serve/test_swaps.py serve/test_reload.py serve/test_lives.py deploy/test_command.py redis/test_shared_limits.py"
    " verdicts/test_board_verdicts.py verdicts/test_bench_verdicts.py board/test_kills.py page/test_leaderboard.py"
    " serve/test_restarts.py redis/test_redis.py serve/test_sweeps.py settings/test_settings_files.py"
    " sinks/test_hostile_database.py limits/test_connections.py fixtures/test_earlier_files.py capture/test_damage.py"
    " signals/test_ends.py responses/test_timed.py scout/test_outages.py diagnose/test_load_ends.py calls/test_calls.py"
).split()
"""They take or wait longest: begun last, one of them would keep one of two cores busy after all others are done."""
TOGETHER = (
    "verdicts/test_board_verdicts.py board/test_ranks.py scout/test_strangers.py sinks/test_hostile_database.py"
    " deploy/test_alerts.py deploy/test_recording.py deploy/test_command.py deploy/test_containers.py deploy/test_machine.py"
).split()
"""What their tests share takes seconds to make: one worker runs them all."""


# first: pytest-randomly wraps all of these, so what it did is done
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order them so; what is named nowhere stays in the order of chance."""
    ranks = {HERE / name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


class Scheduling(LoadScopeScheduling):
    """One test at a time for whoever is free, in their order; xdist's own `loadgroup` parts groups with pytest 9.2."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file.endswith(tuple(TOGETHER)) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)
