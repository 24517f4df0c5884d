"""Reads the templates that come with the package, and writes what was made of them below a folder.

No file of somebody else's is replaced, and none that was changed since it was written: sums stand beside the files, and
`sha256sum -c` reads them, too.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from toolkit.deploy.site import Rendered
from toolkit.errors import ToolkitError

SUMS = ".toolkit-deploy.sha256"
"""Of each file that was written here, as `sha256sum` prints them."""


def templates() -> dict[str, str]:
    """All templates of the package: name below `templates/` -> text."""
    return dict(_texts(files("toolkit") / "deploy" / "templates", ""))


def write(rendered: Sequence[Rendered], out: Path, *, force: bool = False) -> list[Path]:
    """Write those that were not there or have changed, once none of them would replace what is not ours. Raises ToolkitError."""
    try:
        sums = _sums(out)
        places = {each.path: _place(out, each.path) for each in rendered}
        changed = [each for each in rendered if _bytes(places[each.path]) != _content(each)]
        if not force:
            for each in changed:
                _refuse_foreign(places[each.path], sums.get(each.path))
        for each in rendered:
            if each in changed:
                _put(places[each.path], _content(each), each.mode)
            sums[each.path] = _sum(_content(each))
        _put(out / SUMS, _listed(sums), 0o644)
    except OSError as error:
        raise ToolkitError(
            f"`{error.filename or out}` can't be written: {(error.strerror or 'no reason given').lower()}",
            "Name another folder with --out",
        ) from error
    return [places[each.path] for each in changed]


def _texts(folder: Traversable, before: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _texts(entry, f"{before}{entry.name}/")
        elif entry.name.endswith((".j2", ".txt")):
            found.append((f"{before}{entry.name}", entry.read_text("utf-8")))
    return found


def _place(out: Path, path: str) -> Path:
    """A file's place below `out`. Raises ToolkitError for one that would leave it, by its name or through a link."""
    pure = PurePosixPath(path)
    place = out.joinpath(*pure.parts)
    is_inside = not pure.is_absolute() and ".." not in pure.parts and pure.parts
    if not is_inside or not place.resolve().is_relative_to(out.resolve()):
        raise ToolkitError(
            f"`{path}` does not lie below `{out}`", "Is a link in the way? Name another --out"
        )
    return place


def _refuse_foreign(place: Path, known: str | None) -> None:
    there = _bytes(place)
    if there is None or (known is not None and _sum(there) == known):
        return
    what = "was changed since it was written" if known else "is there, and not from `deploy`"
    raise ToolkitError(
        f"`{place}` {what}", "Move it away, name another --out, or replace it with --force"
    )


def _put(place: Path, content: bytes, mode: int) -> None:
    """Whole or not at all: who reads it meanwhile sees the old one or the new one."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        # with its mode from the beginning: what only its owner may read was never open to others
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:  # noqa: PTH123
            os.fchmod(file.fileno(), mode)
            file.write(content)
        part.replace(place)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _content(rendered: Rendered) -> bytes:
    return rendered.text.encode()


def _bytes(place: Path) -> bytes | None:
    try:
        return place.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sums(out: Path) -> dict[str, str]:
    """Path -> sum, of what was written before; a line that is none is passed over."""
    content = _bytes(out / SUMS) or b""
    lines = [line.split("  ", 1) for line in content.decode(errors="replace").splitlines()]
    return {words[1]: words[0] for words in lines if len(words) == 2}


def _listed(sums: Mapping[str, str]) -> bytes:
    return "".join(f"{sums[path]}  {path}\n" for path in sorted(sums)).encode()
