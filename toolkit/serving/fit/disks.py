"""The places that serving writes to: how much is free there, and what fills them. It looks, bounded in time, and removes nothing."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from toolkit.serving.fit.facts import Disk, Folder
from toolkit.serving.fit.needs import Needs

LOOK_S = 2.0
"""For all folders together: a cache on a network disk may hold a million files."""
MOST_FOLDERS = 200


def disks(needs: Needs, environ: Mapping[str, str] = os.environ) -> tuple[Disk, ...]:
    """One for each file system that models, vLLM's cache or temporary files go to."""
    places = {
        "models": expanded(needs.disk_path) if needs.disk_path else hub(environ),
        "vllm_cache": vllm_cache(environ),
        "temporary": temporary(environ),
    }
    found: dict[int | str, Disk] = {}
    for role, path in places.items():
        there = nearest(path)
        device, disk = _device(there), _disk(role, path, there)
        # one disk is told once; a folder on it that is shut is a matter of its own
        is_known = device in found and disk.writable is not False
        if not is_known:
            found[role if device is None or device in found else device] = disk
    return tuple(_filled(found, _folders(places), time.monotonic() + LOOK_S))


def hub(environ: Mapping[str, str]) -> Path:
    """Where Hugging Face's library puts models; its own order of variables."""
    if environ.get("HF_HUB_CACHE"):
        return expanded(environ["HF_HUB_CACHE"])
    return expanded(environ.get("HF_HOME") or _cache(environ) / "huggingface") / "hub"


def vllm_cache(environ: Mapping[str, str]) -> Path:
    """Where vLLM puts what it compiled."""
    return expanded(environ.get("VLLM_CACHE_ROOT") or _cache(environ) / "vllm")


def temporary(environ: Mapping[str, str]) -> Path:
    """Where temporary files go. Python's own answer is none at all where the disk is full: it tries to write one."""
    told = next((environ[name] for name in ("TMPDIR", "TEMP", "TMP") if environ.get(name)), "/tmp")  # noqa: S108
    return Path(told)


def expanded(path: Path | str) -> Path:
    """The path without `~`; Path's own raises for a user whom nobody knows."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def _cache(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME") or expanded("~")
    return Path(environ.get("XDG_CACHE_HOME") or Path(home) / ".cache")


def nearest(path: Path) -> Path:
    """The path, or the nearest folder above it that this user can see."""
    path = path.absolute()
    # Path's own raises where another user's folder stands in the way
    while not os.path.exists(path) and path != path.parent:  # noqa: PTH110
        path = path.parent
    return path


def _mount_of(path: Path) -> Path:
    path = path.resolve()
    while not path.is_mount() and path != path.parent:
        path = path.parent
    return path


def _device(path: Path) -> int | None:
    try:
        return path.stat().st_dev
    except OSError:
        return None


def _disk(role: str, path: Path, there: Path) -> Disk:
    try:
        room = os.statvfs(there)
    except OSError as error:
        return Disk(role=role, path=str(path), error=(error.strerror or "?").lower())
    return Disk(
        role=role,
        path=str(path),
        mount=str(_mount_of(there)),
        total_bytes=room.f_blocks * room.f_frsize,
        free_bytes=room.f_bavail * room.f_frsize,
        free_files=room.f_favail if room.f_files else None,
        writable=os.access(there, os.W_OK),
        read_only=bool(room.f_flag & os.ST_RDONLY),
    )


def _folders(places: Mapping[str, Path]) -> Iterator[tuple[Path, bool]]:
    """What may fill them, and whether it can be fetched or made again."""
    for path in _inside(places["models"]):
        yield path, path.name.startswith(("models--", "datasets--", "spaces--"))
    for path in _inside(places["vllm_cache"]):
        yield path, True
    for path in _inside(places["temporary"]):
        if path.name.startswith(("torchinductor_", "vllm_dist_")):
            yield path, path.name.startswith("torchinductor_")


def _inside(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            folders = [each for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    # a terminal's escape in a name would be pasted, too
    names = sorted(each.name for each in folders if each.name.isprintable())
    return [folder / name for name in names[:MOST_FOLDERS]]


def _filled(
    found: Mapping[int | str, Disk], folders: Iterable[tuple[Path, bool]], until: float
) -> Iterator[Disk]:
    """Give each disk the folders that lie on it; each gets its part of the time that is left."""
    counted: dict[int | str | None, list[Folder]] = {}
    waiting = list(folders)
    for number, (path, spare) in enumerate(waiting):
        now = time.monotonic()
        end = now + max(0.0, until - now) / (len(waiting) - number)
        counted.setdefault(_device(path), []).append(measured(path, spare=spare, until=end))
    for key, disk in found.items():
        mine = sorted(counted.get(key, []), key=lambda each: (-each.used_bytes, each.path))
        yield replace(disk, folders=tuple(mine))


def measured(path: Path, *, spare: bool = True, until: float = float("inf")) -> Folder:
    """How much a folder holds on its disk; a file with several names counts once."""
    used, seen, open_folders = 0, set[tuple[int, int]](), [path]
    while open_folders:
        if time.monotonic() > until:
            return Folder(path=str(path), used_bytes=used, spare=spare, complete=False)
        for entry in _entries(open_folders.pop()):
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if entry.is_dir(follow_symlinks=False):
                open_folders.append(Path(entry.path))
            elif facts.st_nlink == 1 or (facts.st_dev, facts.st_ino) not in seen:
                seen.add((facts.st_dev, facts.st_ino))
                used += facts.st_blocks * 512
    return Folder(path=str(path), used_bytes=used, spare=spare)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
