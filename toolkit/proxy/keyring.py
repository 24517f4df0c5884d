"""Who asks: the key in an Authorization header -> a team. It is given the keys as text; it never shows, logs or quotes one.

Keys are looked up by a hash, so that how long that takes tells nothing about how much of a guess was right.
"""

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b

from toolkit.errors import ToolkitError
from toolkit.proxy.settings import TeamSetting

MOST_KEY = 1024
"""Bytes; nobody's key is longer, and hashing what anybody sends should cost nothing."""
MAKE_ONE = "Make one with `openssl rand -hex 24`"

_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr][ \t]+([\x21-\x7e]+)[ \t]*")
_KEY = re.compile(r"[\x21-\x7e]+")

TeamKey = tuple[str, str]
"""A team's name and one of its keys."""


class Keyring:
    """The keys of all teams, hashed; a team may have several, so that one can be replaced while the other still works."""

    __slots__ = ("_secret", "_teams")

    def __init__(self, keys: Iterable[TeamKey], *, secret: bytes = b"") -> None:
        """`secret` makes fingerprints nobody else can compute; without one they are the same everywhere."""
        self._secret = secret[:64]
        self._teams: dict[bytes, str] = {}
        for team, key in keys:
            other = self._teams.setdefault(_hash(key.encode("ascii")), team)
            if other != team:
                raise ToolkitError(f"teams `{other}` and `{team}` have one key", MAKE_ONE)

    def __len__(self) -> int:
        return len(self._teams)

    def team(self, authorization: bytes | None) -> str | None:
        """The team whose key an Authorization header bears; None: no key, or nobody's."""
        key = bearer(authorization)
        return None if key is None else self._teams.get(_hash(key))

    def fingerprint(self, authorization: bytes | None) -> str | None:
        """Eight hexadecimal digits to tell keys apart in a log, known or not; None where there is no key."""
        key = bearer(authorization)
        if key is None:
            return None
        return blake2b(key, key=self._secret, digest_size=4, person=b"fingerprint").hexdigest()


def bearer(authorization: bytes | None) -> bytes | None:
    """The key in `Bearer KEY`; None for another scheme, several words, anything but visible ASCII, or far too much."""
    if authorization is None:
        return None
    match = _BEARER.fullmatch(authorization)
    return match.group(1) if match is not None and len(match.group(1)) <= MOST_KEY else None


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

    No word of a line is ever repeated: whoever writes `KEY TEAM` would read the key in a log.
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


def keyring(teams: Iterable[TeamSetting], keys: Iterable[TeamKey], *, secret: bytes) -> Keyring:
    """The ring of all keys found; raise for a team without any, which could never ask."""
    keys = list(keys)
    having = {team for team, _ in keys}
    for team in teams:
        if team.name not in having:
            raise ToolkitError(
                f"team `{team.name}` has no key", "Name its `key_env`, or write it into `keys_file`"
            )
    return Keyring(keys, secret=secret)


def _hash(key: bytes) -> bytes:
    return blake2b(key, digest_size=32, person=b"team key").digest()


def _refuse_odd(key: str, where: str) -> None:
    if len(key) > MOST_KEY or not _KEY.fullmatch(key):
        raise ToolkitError(
            f"{where} holds a key that no header could bear",
            f"A key is up to {MOST_KEY} visible ASCII characters. {MAKE_ONE}",
        )
