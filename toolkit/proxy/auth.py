"""Authentication: the key in an Authorization header -> a team. Keys come as text; none is ever shown, logged or quoted.

Keys are looked up by a hash, so that the time it takes does not depend on how much of a guess is right.
"""

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b

from toolkit.errors import ToolkitError
from toolkit.proxy.config import TeamSetting

MOST_KEY = 1024
"""Bytes; no key is longer, so that hashing what anybody sends costs next to nothing."""
MAKE_ONE = "Make one with `openssl rand -hex 24`"

_KEY = rf"[\x21-\x7e]{{1,{MOST_KEY}}}"
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr][ \t]+(%b)[ \t]*" % _KEY.encode())

TeamKey = tuple[str, str]
"""A team's name and one of its keys."""


class Keyring:
    """The keys of all teams, hashed; a team may have several, so that one can be replaced while the other still works."""

    def __init__(self, teams: Iterable[TeamSetting], keys: Iterable[TeamKey]) -> None:
        """Raises ToolkitError for one key of two teams, and for a team without any, which could never ask."""
        self._teams: dict[bytes, str] = {}
        for team, key in keys:
            other = self._teams.setdefault(_hash(key.encode("ascii")), team)
            if other != team:
                raise ToolkitError(f"teams `{other}` and `{team}` have one key", MAKE_ONE)
        for each in teams:
            if each.name not in self._teams.values():
                problem = f"team `{each.name}` has no key"
                raise ToolkitError(problem, "Name its `key_env`, or write it into `keys_file`")

    def team(self, authorization: bytes | None) -> str | None:
        """The team whose key stands in an Authorization header, `Bearer KEY`; None: no key, or no team's."""
        match = _BEARER.fullmatch(authorization or b"")
        return None if match is None else self._teams.get(_hash(match[1]))


def owner(team: TeamSetting) -> str:
    """Whom a team's stored answers belong to: its pool, or itself; a pool named like a team is not that team."""
    return f"team:{team.name}" if team.pool is None else f"pool:{team.pool}"


def from_environment(teams: Iterable[TeamSetting], environ: Mapping[str, str]) -> list[TeamKey]:
    """The keys in the teams' own variables; several in one stand apart by spaces."""
    found = []
    for team in teams:
        if team.key_env is None:
            continue
        keys = environ.get(team.key_env, "").split()
        if not keys:
            raise ToolkitError(
                f"`{team.key_env}`, the key of team `{team.name}`, is not set",
                f"`export {team.key_env}=...`; {MAKE_ONE[0].lower()}{MAKE_ONE[1:]}",
            )
        for key in keys:
            _refuse_odd(key, f"`{team.key_env}`")
            found.append((team.name, key))
    return found


def from_file(text: str, name: str, teams: Iterable[TeamSetting]) -> list[TeamKey]:
    """The keys in a file's text, `TEAM KEY` a line; `#` starts a comment. `name` is the file's in messages.

    No word of a line is ever repeated: of a line `KEY TEAM` the key would stand in a log.
    """
    known = [team.name for team in teams]
    found = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if not words:
            continue
        where = f"`{name}` line {number}"
        if len(words) != 2:
            raise ToolkitError(f"{where} holds {len(words)} words", "Write `TEAM KEY`")
        if words[0] not in known:
            raise ToolkitError(
                f"{where} begins with no team's name",
                f"Write `TEAM KEY`; the teams are: {', '.join(known) or 'none yet'}",
            )
        _refuse_odd(words[1], where)
        found.append((words[0], words[1]))
    return found


def refuse_open(mode: int, name: str) -> None:
    """Raise for a keys file that others than its owner may read or write, by its `st_mode`."""
    if mode & 0o077:
        raise ToolkitError(
            f"`{name}` holds keys and is open to others (mode {mode & 0o777:04o})",
            f"`chmod 600 {name}`",
        )


def _hash(key: bytes) -> bytes:
    return blake2b(key, digest_size=32, person=b"team key").digest()


def _refuse_odd(key: str, where: str) -> None:
    if not re.fullmatch(_KEY, key):
        raise ToolkitError(
            f"{where} holds a key that no header could bear",
            f"A key is up to {MOST_KEY} visible ASCII characters. {MAKE_ONE}",
        )
