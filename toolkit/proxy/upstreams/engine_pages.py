"""Several engines' /metrics pages -> one, as if they were replicas behind one address: that is what clients of the proxy see. Pure.

Each further page's series get the label by which Ray tells its replicas apart, WorkerId: so whoever reads replicas' pages adds them up
and takes no two for one. An upstream's number is shown, not its name, which may be an address.
"""

import re
from collections.abc import Mapping

LABEL = "WorkerId"
_SAMPLE = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(\{[ \t]*(\})?)?")
_SUFFIXES = frozenset({"", "_total", "_bucket", "_sum", "_count", "_created", "_info"})
"""Of a family's samples."""
_END = "# EOF"


def one_page(pages: Mapping[int, str]) -> str:
    """All series of all pages, each family once; a page's key is its upstream's number."""
    heads: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for number, page in pages.items():
        family = ""
        for line in page.split("\n"):
            if line.startswith("#"):
                family = _read_comment(line, heads, samples) or family
            elif line.strip():
                name = _name(line)
                place = family if family and name.removeprefix(family) in _SUFFIXES else name
                samples.setdefault(place, []).append(_numbered(line, number))
    lines = [
        line
        for family, those in samples.items()
        for line in (*heads.get(family, {}).values(), *those)
    ]
    lines += [_END] * any(_END in page for page in pages.values())
    return "".join(f"{line}\n" for line in lines)


def _read_comment(
    line: str, heads: dict[str, dict[str, str]], samples: dict[str, list[str]]
) -> str | None:
    """The family that a comment is about; of what several pages say of it the first word stays."""
    words = line.split(maxsplit=3)
    if len(words) < 3 or words[1] not in ("HELP", "TYPE", "UNIT"):
        return None
    heads.setdefault(words[2], {}).setdefault(words[1], line)
    samples.setdefault(words[2], [])
    return words[2]


def _name(line: str) -> str:
    found = _SAMPLE.match(line)
    return found[1] if found else ""


def _numbered(line: str, number: int) -> str:
    """The line with its page's number among its labels; one that is no sample stays what it is."""
    found = _SAMPLE.match(line)
    if found is None or f'{LABEL}="' in line:
        return line
    label = f'{LABEL}="{number}"'
    rest = line[found.end() :]
    if found[2] is None:
        return f"{found[1]}{{{label}}} {rest}"
    return f"{found[1]}{{{label}{'}' if found[3] else ','}{rest}"
