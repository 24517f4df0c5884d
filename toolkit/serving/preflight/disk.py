"""The disks that serving writes to: room for the weights that are to come, and what stands in their way. It removes nothing."""

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from toolkit.serving.preflight.check import Check, Needs, as_root, fail, ok, warn
from toolkit.units import size

LOOK_S = 2.0
"""For all folders of a disk together: a cache on a network disk may hold a million files."""
MOST_FOLDERS = 200
SPARE_SHARE = 0.05
"""What compilation, logs and temporary files should find free beside the weights; more than that is not asked for."""
SPARE_MOST = 10 * 2**30
FULL_SHARE = 0.02
FULL_MOST = 2**30
FEW_FILES = 1_000
"""A start of vLLM writes some hundred small files."""
NAMED = 3
MODELS, COMPILED, TEMPORARY = "disk", "disk_vllm_cache", "disk_tmp"
LOST = {
    MODELS: "no model can be downloaded to it",
    COMPILED: "vLLM cannot keep there what it compiles, and compiles it anew at each start, if it starts at all",
    TEMPORARY: "vLLM's processes meet in files there",
}
"""What goes wrong where nobody may write."""
SPARE = {
    MODELS: ("models--", "datasets--", "spaces--"),
    COMPILED: ("",),
    TEMPORARY: ("torchinductor_",),
}
"""How folders begin that can be fetched or made again."""
LESSON = 'on a full disk vLLM says "Engine core initialization failed" and never names the disk'


def checks(needs: Needs) -> Iterator[Check]:
    """One for each file system that models, vLLM's cache or temporary files go to."""
    # Python's own answer is none at all where the disk is full: it tries to write one
    folders = (os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name))
    places = {
        MODELS: expanded(needs.disk_path) if needs.disk_path else hub(),
        COMPILED: expanded(os.environ.get("VLLM_CACHE_ROOT") or _cache() / "vllm"),
        TEMPORARY: Path(next(folders, "/tmp")),  # noqa: S108
    }
    seen: set[int] = set()
    for code, path in places.items():
        there = path.absolute()
        # the nearest folder that this user can see; Path's own raises where another user's folder stands in the way
        while not os.path.exists(there) and there != there.parent:  # noqa: PTH110
            there = there.parent
        try:
            device, room = there.stat().st_dev, os.statvfs(there)
        except OSError as error:
            yield warn(code, f"unknown: `{path}` cannot be read: {(error.strerror or '?').lower()}")
            continue
        # one disk is shown once; a folder on it that is shut is a matter of its own
        if device not in seen or not os.access(there, os.W_OK):
            seen.add(device)
            yield _check(code, path, there, room, needs, places)


def with_weights(needs: Needs, weights: int, *, of_gpu: int) -> Needs:
    """Add what a model's weights want of disk, GPU and memory; `weights` and `of_gpu`: bytes of all and on one GPU."""
    to_come, model = weights, needs.model
    # what is on the disk already: a folder of its own, or the model's part of the Hugging Face cache
    if model and os.path.isdir(model):  # noqa: PTH112 (Path's own raises behind another user's folder)
        to_come = 0
    elif model:
        cache = expanded(needs.disk_path) if needs.disk_path else hub()
        to_come -= measured(cache / ("models--" + model.replace("/", "--")))[0]
    return replace(
        needs,
        disk_bytes=max(0, to_come),
        gpu_bytes=of_gpu if needs.gpu else None,
        memory_bytes=needs.memory_bytes if needs.gpu else weights,
    )


def hub() -> Path:
    """Where Hugging Face's library puts models; its own order of variables."""
    if os.environ.get("HF_HUB_CACHE"):
        return expanded(os.environ["HF_HUB_CACHE"])
    return expanded(os.environ.get("HF_HOME") or _cache() / "huggingface") / "hub"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or expanded("~/.cache"))


def expanded(path: Path | str) -> Path:
    """The path without `~`; Path's own raises for a user whom nobody knows."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def _check(
    code: str,
    path: Path,
    there: Path,
    room: os.statvfs_result,
    needs: Needs,
    places: Mapping[str, Path],
) -> Check:
    """Whether a disk takes what is about to be written to it; `there` is as much of the path as there is."""
    # for this user: the blocks reserved for root are not free to others
    total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    said = f"{size(free)} of {size(total)} free at `{path}`"
    mount = there.resolve()
    while not mount.is_mount() and mount != mount.parent:
        mount = mount.parent
    if not os.access(there, os.W_OK):
        # a model that is there already may lie where nobody writes; the simulator keeps nothing
        if (code == MODELS and needs.disk_bytes == 0) or (code == COMPILED and not needs.vllm):
            return ok(code, f"{said}; nothing is to be written there")
        if room.f_flag & os.ST_RDONLY:
            fix = as_root(f"mount -o remount,rw {shlex.quote(str(mount))}")
            return fail(code, f"`{path}` is mounted read-only: {LOST[code]}", fix)
        place = shlex.quote(str(path))
        fix = as_root(f"mkdir -p {place}") + " && " + as_root(f'chown -R "$(id -un)" {place}')
        if code == TEMPORARY:  # that folder is everybody's
            fix = 'mkdir -p "$HOME/tmp" && export TMPDIR="$HOME/tmp"'
        return fail(code, f"this user cannot write to `{path}`: {LOST[code]}", fix)

    weights = (needs.disk_bytes or 0) if code == MODELS else 0
    least = weights + min(FULL_MOST, FULL_SHARE * total)
    wanted = weights + min(SPARE_MOST, SPARE_SHARE * total)
    said += f", and {size(weights)} of weights are to come" if weights else ""
    is_few = bool(room.f_files) and room.f_favail < FEW_FILES
    if free >= wanted and not is_few:
        return ok(code, said)
    lacking = wanted + (least - weights if is_few else 0) - free
    filled, fix = _what_fills(mount, places, needs.model, lacking)
    if is_few:
        why = f"only {room.f_favail:,} more files fit at `{path}`, however small: {LESSON}"
        return fail(code, why, fix)
    if free < least:
        return fail(code, f"{said}: {LESSON}{filled}", fix)
    return warn(code, f"{said}, which leaves little for compiled code and logs{filled}", fix)


def _what_fills(
    mount: Path, places: Mapping[str, Path], model: str | None, lacking: float
) -> tuple[str, str]:
    """What fills a disk, in words, and the command that makes room: what can be fetched again goes, the biggest first, until it is enough."""
    found: list[tuple[Path, bool]] = []
    for code, place in places.items():
        names: list[str] = []
        with suppress(OSError):
            device = mount.stat().st_dev
            for each in os.scandir(place):
                # a terminal's escape in a name would be pasted, too
                is_plain = each.name.isprintable() and each.is_dir(follow_symlinks=False)
                if is_plain and Path(each.path).stat().st_dev == device:
                    names.append(each.name)
        for name in sorted(names)[:MOST_FOLDERS]:
            is_spare = name.startswith(SPARE[code])
            # other people's temporary files are nobody's business
            if code != TEMPORARY or is_spare or name.startswith("vllm_dist_"):
                found.append((place / name, is_spare))

    folders = []
    until = time.monotonic() + LOOK_S
    for number, (path, is_spare) in enumerate(found):
        # each gets its part of the time that is left
        now = time.monotonic()
        used, is_whole = measured(path, now + max(0.0, until - now) / (len(found) - number))
        folders.append((-used, path, is_spare, "" if is_whole else "at least "))
    folders.sort()

    named = [
        f"`{path}` with {least}{size(-used)}" for used, path, _, least in folders[:NAMED] if used
    ]
    own, chosen = "models--" + (model or "").replace("/", "--"), []
    for used, path, is_spare, _ in folders:
        if lacking > 0 and used and is_spare and path.name != own:
            chosen.append(shlex.quote(str(path)))
            lacking += used
    fix = f"du -xhd2 {shlex.quote(str(mount))} | sort -h | tail -20"
    if chosen and lacking <= 0:
        fix = f"rm -rf -- {' '.join(chosen)}"
    return f"; it holds {', '.join(named)}" if named else "", fix


def measured(path: Path, until: float = float("inf")) -> tuple[int, bool]:
    """How much a folder holds on its disk, and whether all of it was counted in time; a file with several names counts once."""
    used, seen = 0, set[tuple[int, int]]()
    for folder, _, names in os.walk(path):
        if time.monotonic() > until:
            return used, False
        for name in names:
            with suppress(OSError):  # gone meanwhile
                facts = os.lstat(os.path.join(folder, name))  # noqa: PTH118 (a million of them)
                inode = facts.st_dev, facts.st_ino
                if facts.st_nlink == 1 or inode not in seen:
                    used += facts.st_blocks * 512
                if facts.st_nlink > 1:
                    seen.add(inode)
    return used, True
