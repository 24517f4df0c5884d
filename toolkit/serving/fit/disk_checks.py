"""Rules over the disks: room for the weights that are about to come, and what stands in their way. Facts in, checks out. Pure."""

import shlex
from collections.abc import Iterator

from toolkit.serving.fit.facts import Disk, Facts, Folder
from toolkit.serving.fit.needs import Needs
from toolkit.serving.outcome import Check, as_root, bad, doubtful, good, size

SPARE_SHARE = 0.05
"""What compilation, logs and temporary files should find free beside the weights; more than that is not asked for."""
SPARE_MOST = 10 * 2**30
FULL_SHARE = 0.02
FULL_MOST = 2**30
FEW_FILES = 1_000
"""A start of vLLM writes some hundred small files."""
NAMED = 3
CODES = {"models": "disk", "vllm_cache": "disk_vllm_cache", "temporary": "disk_tmp"}
LOST = {
    "models": "no model can be downloaded to it",
    "vllm_cache": "vLLM cannot keep there what it compiles, and compiles it anew at each start, if it starts at all",
    "temporary": "vLLM's processes meet in files there",
}
"""What goes wrong where nobody may write."""
LESSON = 'vLLM then says "Engine core initialization failed" and never names the disk'


def checks(facts: Facts, needs: Needs) -> Iterator[Check]:
    """One check a disk."""
    for disk in facts.disks:
        yield check(disk, needs, root=facts.root)


def check(disk: Disk, needs: Needs, *, root: bool) -> Check:
    """Whether a disk takes what is about to be written to it."""
    code = CODES[disk.role]
    if disk.free_bytes is None or disk.total_bytes is None:
        return doubtful(code, f"unknown: `{disk.path}` cannot be looked at: {disk.error}")
    room = f"{size(disk.free_bytes)} of {size(disk.total_bytes)} free at `{disk.path}`"
    if disk.read_only or disk.writable is False:
        if _is_written(disk, needs):
            return _shut(code, disk, root=root)
        return good(code, f"{room}; nothing is to be written there")
    weights = (needs.disk_bytes or 0) if disk.role == "models" else 0
    wanted = weights + _least(disk)
    asked = f"{room}, and {size(weights)} of weights are to come" if weights else room
    if disk.free_files is not None and disk.free_files < FEW_FILES:
        why = f"only {disk.free_files:,} more files fit at `{disk.path}`, however small: {LESSON}"
        return bad(code, why, _fix(disk, needs, wanted + _spare(disk)))
    if disk.free_bytes < wanted:
        return bad(
            code, f"{asked}: {LESSON}{_filled(disk)}", _fix(disk, needs, weights + _spare(disk))
        )
    if disk.free_bytes < weights + _spare(disk):
        why = f"{asked}, which leaves little for compiled code and logs{_filled(disk)}"
        return doubtful(code, why, _fix(disk, needs, weights + _spare(disk)))
    return good(code, f"{asked}")


def _is_written(disk: Disk, needs: Needs) -> bool:
    """A model that is there already may lie where nobody writes; the simulator keeps nothing."""
    if disk.role == "models":
        return needs.disk_bytes != 0
    return disk.role == "temporary" or needs.vllm is not None


def _shut(code: str, disk: Disk, *, root: bool) -> Check:
    lost = LOST[disk.role]
    if disk.read_only:
        fix = as_root(f"mount -o remount,rw {shlex.quote(disk.mount or disk.path)}", root=root)
        return bad(code, f"`{disk.path}` is mounted read-only: {lost}", fix)
    return bad(code, f"this user cannot write to `{disk.path}`: {lost}", _own(disk, root=root))


def _own(disk: Disk, *, root: bool) -> str:
    """The folder is made this user's; temporary files go elsewhere, for their folder is everybody's."""
    if disk.role == "temporary":
        return 'mkdir -p "$HOME/tmp" && export TMPDIR="$HOME/tmp"'
    place = shlex.quote(disk.path)
    make, own = f"mkdir -p {place}", f'chown -R "$(id -un)" {place}'
    return f"{as_root(make, root=root)} && {as_root(own, root=root)}"


def _least(disk: Disk) -> float:
    """Below this a disk is full: 2 %, at most a gibibyte."""
    return min(FULL_MOST, FULL_SHARE * (disk.total_bytes or 0))


def _spare(disk: Disk) -> float:
    """What should stay free: 5 %, at most 10 GiB."""
    return min(SPARE_MOST, SPARE_SHARE * (disk.total_bytes or 0))


def _filled(disk: Disk) -> str:
    named = [_told(folder) for folder in disk.folders[:NAMED] if folder.used_bytes]
    return f"; it holds {', '.join(named)}" if named else ""


def _told(folder: Folder) -> str:
    least = "" if folder.complete else "at least "
    return f"`{folder.path}` with {least}{size(folder.used_bytes)}"


def _fix(disk: Disk, needs: Needs, wanted: float) -> str:
    """Remove what can be fetched again, the biggest first, until it is enough; else show what is there."""
    chosen, free = [], disk.free_bytes or 0
    for folder in disk.folders:
        if free >= wanted:
            break
        if folder.spare and folder.used_bytes and not _is_of(folder, needs.model):
            chosen.append(shlex.quote(folder.path))
            free += folder.used_bytes
    if chosen and free >= wanted:
        return f"rm -rf -- {' '.join(chosen)}"
    return f"du -xhd2 {shlex.quote(disk.mount or disk.path)} | sort -h | tail -20"


def _is_of(folder: Folder, model: str | None) -> bool:
    """Whether a folder of the Hugging Face cache holds the very model that is to be served."""
    return model is not None and folder.path.endswith("/models--" + model.replace("/", "--"))
