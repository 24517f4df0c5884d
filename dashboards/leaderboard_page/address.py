"""What a link to the page says: the state a viewer may share, read from the query and written back.

Only what differs from the usual stands in a link, so that it stays short. A value that nobody can use is left out,
never an error: links are typed by hand and outlive hosts.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from math import floor
from typing import Literal, get_args
from urllib.parse import unquote, urlencode

from toolkit.board.standings import RANK_BY, RankBy

Theme = Literal["light", "dark"]
View = Literal["hosts"]

MOST_COMPARED = 4
MOST_ROWS = 200
LONGEST_WINDOW_S = 24 * 3600

_UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One view of the page. Field names are the query's, but `window_s` and `compare`."""

    rank: RankBy = "rps"
    window_s: int | None = None
    """None: as long as the run says, else 15 minutes."""
    top: int | None = None
    """Rows of the table and lines of the rank chart; None: 20, in a kiosk 10."""
    honest: bool = False
    skip_limited: bool = False
    """Leave out the seconds in which the load generator was the limit."""
    compare: tuple[str, ...] = ()
    host: str | None = None
    """Whose panel is open."""
    event: int | None = None
    """The second of the events whose story is told in the panel: those of `host`, else all."""
    t: int | None = None
    """The second to look at, since 1970; None: live."""
    run: str | None = None
    """None: the newest blast."""
    theme: Theme | None = None
    """None: as the visitor's browser prefers."""
    kiosk: bool = False
    view: View | None = None
    """`hosts`: what scout, bench and capture know (hosts_view.py), also while there is a blast; None: its leaderboard."""

    @property
    def rows(self) -> int:
        """How many hosts are shown."""
        return self.top or (10 if self.kiosk else 20)


USUAL = Address()


def parsed(query: Mapping[str, str]) -> Address:
    """What a query says, as far as it can be used."""
    words = {key: value.strip() for key, value in query.items()}
    window = re.fullmatch(r"([0-9]{1,6})([smh]?)", words.get("window", ""))
    seconds = int(window[1]) * _UNITS[window[2] or "s"] if window else 0
    names = [unquote(name).strip() for name in words.get("cmp", "").split(",")]
    found = {
        "rank": _one_of(words.get("rank"), RANK_BY),
        "window_s": seconds if 1 <= seconds <= LONGEST_WINDOW_S else None,
        "top": _whole(words.get("top"), MOST_ROWS),
        "honest": _is_on(words.get("honest")),
        "skip_limited": _is_on(words.get("skip_limited")),
        "compare": tuple(dict.fromkeys(filter(None, names)))[:MOST_COMPARED],
        "host": words.get("host") or None,
        "event": _whole(words.get("event"), 2**40),
        "t": _whole(words.get("t"), 2**40),
        "run": words.get("run") or None,
        "theme": _one_of(words.get("theme"), get_args(Theme)),
        "kiosk": _is_on(words.get("kiosk")),
        "view": _one_of(words.get("view"), get_args(View)),
    }
    return replace(USUAL, **{name: value for name, value in found.items() if value is not None})


def query(address: Address) -> dict[str, str]:
    """The query that says it: only what is not as usual."""
    window = None
    if address.window_s is not None:
        unit = next(unit for unit in "hms" if address.window_s % _UNITS[unit] == 0)
        window = f"{address.window_s // _UNITS[unit]}{unit}"
    written = {
        "rank": address.rank,
        "window": window,
        "top": address.top,
        "honest": int(address.honest),
        "skip_limited": int(address.skip_limited),
        "cmp": written_names(address.compare),
        "host": address.host,
        "event": address.event,
        "t": address.t,
        "run": address.run,
        "theme": address.theme,
        "kiosk": int(address.kiosk),
        "view": address.view,
    }
    usual = {"rank": USUAL.rank, "honest": 0, "skip_limited": 0, "kiosk": 0}
    return {
        key: str(value)
        for key, value in written.items()
        if value not in (None, "") and value != usual.get(key)
    }


def written_names(names: Iterable[str]) -> str:
    """Names of hosts as one value, whatever they are called."""
    return ",".join(name.replace("%", "%25").replace(",", "%2C") for name in names)


# --- the page's own links -------------------------------------------------------------------------

_REPLACED = {
    "rank": ("rank",),
    "skip_limited": ("skip_limited",),
    "cmp": ("cmp",),
    "host": ("host", "event"),
    "event": ("event", "host"),
    "run": ("run",),
    "view": ("view",),
}
"""First key of a link -> what of the view it replaces; all else of it stays."""
_BEGIN = re.compile(rf'href="\?({"|".join(_REPLACED)})='.encode())


def link(**words: object) -> str:
    """A link that changes these words of the view, e.g., `?host=alice`; an empty one means the usual."""
    given = {key: value for key, value in words.items() if value is not None}
    return f"?{urlencode(given, errors='replace')}"  # a host may be called by half a character


def story_link(at: float, host: str | None) -> str:
    """A link to what happened at a moment, and what came of it: for a host, or for all."""
    return link(event=floor(at), host=host)


def with_view(html: bytes, address: Address) -> bytes:
    """Put the rest of a viewer's view into the links of a part that was built once for all, and mark the open host's link.

    That link closes its panel, so that a second click undoes the first.
    """
    view = query(address)
    if not view:
        return html
    if address.host is not None:
        opens, closes = f'href="{link(host=address.host)}"', f'href="{link(host="")}"'
        html = html.replace(opens.encode(), f'{closes} aria-current="true"'.encode())
    begins = {}
    for first, replaced in _REPLACED.items():
        rest = {key: value for key, value in view.items() if key not in replaced}
        kept = escape(urlencode(rest, errors="replace"))
        begins[first.encode()] = f'href="?{kept}{"&amp;" if rest else ""}{first}='.encode()
    return _BEGIN.sub(lambda found: begins[found[1]], html)


def _one_of(word: str | None, words: tuple[str, ...]) -> str | None:
    return word if word in words else None


def _is_on(word: str | None) -> bool:
    return word is not None and word.lower() in {"1", "true", "yes", "on"}


def _whole(word: str | None, most: int) -> int | None:
    if word is None or not re.fullmatch(r"[0-9]{1,13}", word):
        return None
    return int(word) if 1 <= int(word) <= most else None
