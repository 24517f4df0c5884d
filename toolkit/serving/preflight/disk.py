"""The disks that serving writes to: room for the weights that are to come, and what stands in their way. It removes nothing."""

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from toolkit.serving.preflight.check import Check, Needs, as_root, bad, doubtful, good
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
CODES = {"models": "disk", "vllm_cache": "disk_vllm_cache", "temporary": "disk_tmp"}
LOST = {
    "models": "no model can be downloaded to it",
    "vllm_cache": "vLLM cannot keep there what it compiles, and compiles it anew at each start, if it starts at all",
    "temporary": "vLLM's processes meet in files there",
}
"""What goes wrong where nobody may write."""
LESSON = 'vLLM then says "Engine core initialization failed" and never names the disk'


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder that fills a disk."""

    path: Path
    used_bytes: int
    is_whole: bool
    """False: time ran out while it was counted; it holds at least so much."""
    is_spare: bool
    """Whether it can be fetched or made again."""


def checks(needs: Needs, environ: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """One for each file system that models, vLLM's cache or temporary files go to."""
    home = Path(environ.get("HOME") or expanded("~"))
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    # Python's own answer is none at all where the disk is full: it tries to write one
    folders = (environ[name] for name in ("TMPDIR", "TEMP", "TMP") if environ.get(name))
    places = {
        "models": expanded(needs.disk_path) if needs.disk_path else hub(environ),
        "vllm_cache": expanded(environ.get("VLLM_CACHE_ROOT") or cache / "vllm"),
        "temporary": Path(next(folders, "/tmp")),  # noqa: S108
    }
    seen: set[int] = set()
    for role, path in places.items():
        there = path.absolute()
        # the nearest folder that this user can see; Path's own raises where another user's folder stands in the way
        while not os.path.exists(there) and there != there.parent:  # noqa: PTH110
            there = there.parent
        try:
            device, room = there.stat().st_dev, os.statvfs(there)
        except OSError as error:
            reason = (error.strerror or "?").lower()
            yield doubtful(CODES[role], f"unknown: `{path}` cannot be looked at: {reason}")
            continue
        is_shut = not os.access(there, os.W_OK)
        # one disk is shown once; a folder on it that is shut is a matter of its own
        if device not in seen or is_shut:
            seen.add(device)
            mount = there.resolve()
            while not mount.is_mount() and mount != mount.parent:
                mount = mount.parent
            yield _check(role, path, mount, room, needs, places, is_shut=is_shut)


def hub(environ: Mapping[str, str]) -> Path:
    """Where Hugging Face's library puts models; its own order of variables."""
    if environ.get("HF_HUB_CACHE"):
        return expanded(environ["HF_HUB_CACHE"])
    home = Path(environ.get("HOME") or expanded("~"))
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    return expanded(environ.get("HF_HOME") or cache / "huggingface") / "hub"


def expanded(path: Path | str) -> Path:
    """The path without `~`; Path's own raises for a user whom nobody knows."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def _check(
    role: str,
    path: Path,
    mount: Path,
    room: os.statvfs_result,
    needs: Needs,
    places: Mapping[str, Path],
    *,
    is_shut: bool,
) -> Check:
    """Whether a disk takes what is about to be written to it."""
    code, is_model = CODES[role], role == "models"
    # for this user: the blocks reserved for root are not free to others
    total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    said = f"{size(free)} of {size(total)} free at `{path}`"
    is_read_only = bool(room.f_flag & os.ST_RDONLY)
    if is_read_only or is_shut:
        # a model that is there already may lie where nobody writes; the simulator keeps nothing
        is_written = needs.disk_bytes != 0 if is_model else role == "temporary" or needs.vllm
        if not is_written:
            return good(code, f"{said}; nothing is to be written there")
        if is_read_only:
            fix = as_root(f"mount -o remount,rw {shlex.quote(str(mount))}")
            return bad(code, f"`{path}` is mounted read-only: {LOST[role]}", fix)
        place = shlex.quote(str(path))
        fix = as_root(f"mkdir -p {place}") + " && " + as_root(f'chown -R "$(id -un)" {place}')
        if role == "temporary":  # that folder is everybody's
            fix = 'mkdir -p "$HOME/tmp" && export TMPDIR="$HOME/tmp"'
        return bad(code, f"this user cannot write to `{path}`: {LOST[role]}", fix)

    weights = (needs.disk_bytes or 0) if is_model else 0
    least = weights + min(FULL_MOST, FULL_SHARE * total)
    wanted = weights + min(SPARE_MOST, SPARE_SHARE * total)
    said += f", and {size(weights)} of weights are to come" if weights else ""
    is_few = bool(room.f_files) and room.f_favail < FEW_FILES
    if free >= wanted and not is_few:
        return good(code, said)
    folders = sorted(_folders(places, mount), key=lambda each: (-each.used_bytes, each.path))
    named = [
        f"`{each.path}` with {'' if each.is_whole else 'at least '}{size(each.used_bytes)}"
        for each in folders[:NAMED]
        if each.used_bytes
    ]
    filled = f"; it holds {', '.join(named)}" if named else ""
    fix = _fix(folders, needs.model, wanted + (least - weights if is_few else 0) - free, mount)
    if is_few:
        why = f"only {room.f_favail:,} more files fit at `{path}`, however small: {LESSON}"
        return bad(code, why, fix)
    if free < least:
        return bad(code, f"{said}: {LESSON}{filled}", fix)
    return doubtful(code, f"{said}, which leaves little for compiled code and logs{filled}", fix)


def _fix(folders: list[Folder], model: str | None, lacking: float, mount: Path) -> str:
    """Remove what can be fetched again, the biggest first, until it is enough; else show what is there."""
    own = "models--" + (model or "").replace("/", "--")
    chosen = []
    for each in folders:
        if lacking > 0 and each.is_spare and each.used_bytes and each.path.name != own:
            chosen.append(shlex.quote(str(each.path)))
            lacking -= each.used_bytes
    if chosen and lacking <= 0:
        return f"rm -rf -- {' '.join(chosen)}"
    return f"du -xhd2 {shlex.quote(str(mount))} | sort -h | tail -20"


def _folders(places: Mapping[str, Path], mount: Path) -> Iterator[Folder]:
    """What may fill a disk; each gets its part of the time that is left."""
    found: list[tuple[Path, bool]] = []
    for role, place in places.items():
        try:
            with os.scandir(place) as entries:
                names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
            device = mount.stat().st_dev
        except OSError:
            continue
        # a terminal's escape in a name would be pasted, too
        for name in sorted(name for name in names if name.isprintable())[:MOST_FOLDERS]:
            is_spare, is_ours = True, True
            if role == "models":
                is_spare = name.startswith(("models--", "datasets--", "spaces--"))
            elif role == "temporary":
                is_spare = name.startswith("torchinductor_")
                is_ours = is_spare or name.startswith("vllm_dist_")
            with suppress(OSError):
                if is_ours and (place / name).stat().st_dev == device:
                    found.append((place / name, is_spare))
    until = time.monotonic() + LOOK_S
    for number, (path, is_spare) in enumerate(found):
        now = time.monotonic()
        used, is_whole = measured(path, now + max(0.0, until - now) / (len(found) - number))
        yield Folder(path=path, used_bytes=used, is_whole=is_whole, is_spare=is_spare)


def measured(path: Path, until: float = float("inf")) -> tuple[int, bool]:
    """How much a folder holds on its disk, and whether all of it was counted in time; a file with several names counts once."""
    used, seen, open_folders = 0, set[tuple[int, int]](), [str(path)]
    while open_folders:
        if time.monotonic() > until:
            return used, False
        try:
            with os.scandir(open_folders.pop()) as entries:
                for entry in entries:
                    try:
                        facts = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue  # gone meanwhile
                    if entry.is_dir(follow_symlinks=False):
                        open_folders.append(entry.path)
                    elif facts.st_nlink == 1 or (facts.st_dev, facts.st_ino) not in seen:
                        seen.add((facts.st_dev, facts.st_ino))
                        used += facts.st_blocks * 512
        except OSError:
            continue  # kept from this user, or gone
    return used, True
