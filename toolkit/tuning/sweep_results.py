"""What a sweep has measured so far, read back from the store: each configuration's blasts, as figures a block."""

import math
from collections.abc import Iterable

from toolkit.tuning.configurations import Configuration
from toolkit.tuning.figures import Figures, counted_seconds, measured
from toolkit.tuning.sweep_file import SweepPlan
from toolkit.tuning.sweep_state import Kept, SweepCell, SweepStore
from toolkit.tuning.sweep_table import MeasuredConfiguration, Status
from toolkit.units import counted


def measured_of(one: Configuration, plan: SweepPlan, kept: Kept) -> MeasuredConfiguration:
    """All that is known of one configuration."""
    cells = {
        block: cell
        for block in range(1, plan.blocks + 1)
        if (cell := kept.state.cell(one.key, block)) is not None
    }
    done = {block: cell for block, cell in cells.items() if cell.status == "measured" and cell.run}
    status, cause = _status(one, cells, kept)
    return MeasuredConfiguration(
        configuration=one,
        status=status,
        cause=cause,
        blocks={block: figures_of(kept.store, cell, plan) for block, cell in done.items()},
        runs=tuple(cell.run for cell in cells.values() if cell.run),
        start_s=tuple(cell.start_s for cell in done.values() if cell.start_s is not None),
        notes=(
            *_told_by_cells(cells, status),
            *_undrafted(done.values()),
            *_limited(kept.store, done.values()),
        ),
    )


def _status(
    one: Configuration, cells: dict[int, SweepCell], kept: Kept
) -> tuple[Status, str | None]:
    if one.key in kept.state.skipped:
        return "skipped", kept.state.skipped[one.key]
    if any(cell.status == "measured" for cell in cells.values()):
        return "measured", None
    failed = next((cell for cell in cells.values() if cell.status == "failed"), None)
    return ("failed", failed.cause) if failed else ("not begun", None)


def figures_of(store: SweepStore, cell: SweepCell, plan: SweepPlan) -> Figures:
    """One block's figures, from its blast's tallies and what was noted beside it."""
    run = cell.run or ""
    tallies = store.tallies(run)
    everything = {tally.at_s for tally in tallies}
    slowest_ms = measured(tallies, everything)["e2e_p95_ms"] or 0.0
    seconds = counted_seconds(
        [second for _, second in store.loader_seconds(run)],
        [event for _, event in store.events(run)],
        settle_s=plan.load.settle_s,
        duration_s=plan.load.duration_s,
        drain_s=math.ceil(slowest_ms / 1000),
    )
    return measured(tallies, seconds, store.shots(run)) | cell.figures


def _told_by_cells(cells: dict[int, SweepCell], status: Status) -> list[str]:
    """What was noted beside a block; why it failed, where others did not."""
    notes = [note for cell in cells.values() for note in cell.notes]
    if status == "measured":
        notes += [
            f"block {block} failed: {cell.cause}"
            for block, cell in cells.items()
            if cell.status == "failed"
        ]
    return list(dict.fromkeys(notes))


def _undrafted(cells: Iterable[SweepCell]) -> list[str]:
    """An engine that speculates, and found nothing to: then no share of it was accepted either."""
    drafts = [cell.figures.get("spec_drafts") for cell in cells]
    if drafts and not any(drafts) and None not in drafts:
        return ["nothing was drafted under this load, so that no acceptance is known"]
    return []


def _limited(store: SweepStore, cells: Iterable[SweepCell]) -> list[str]:
    """In how many seconds the load generator was the limit, and the figures describe it."""
    seconds = [
        {second.at_s for _, second in store.loader_seconds(cell.run or "") if second.limited}
        for cell in cells
    ]
    blocks = sum(map(bool, seconds))
    if not blocks:
        return []
    total = sum(map(len, seconds))
    return [f"the load generator was the limit in {total:,} s of {counted(blocks, 'block')}"]
