"""Which of several proxies asks upstream for an answer that none of them has: what they leave for one another in Redis.

Beside an answer's place there is one for a lease: the token of the proxy that asks. It lies there until the answer does, until it is known
that there will be none, or until its holder has been dead for LEASE_S. Pure: the commands are redis_cache's, the waiting is far's.
"""

from typing import Final, Literal, NamedTuple

LEASE_S: Final = 3.0
"""A holder that is heard of no more for so long is dead: another one takes over."""
RENEW_S: Final = 1.0
"""So often a holder says that it lives, and who waits that it does."""
GIVEN_UP_S: Final = 1.0
"""For so long everybody may see that there will be no answer; who waits looks a hundred times a second."""
GIVEN_UP: Final = b"-"
"""In place of a token."""

Step = Literal["show", "lead", "wait", "ask"]
"""Send the answer; ask upstream for all proxies; wait for the one that does; ask upstream for oneself."""

LOOK: Final = """
local answer = redis.call('GET', KEYS[1])
if answer then return {answer} end
local lease = redis.call('GET', KEYS[2])
if not lease then
  local set = redis.pcall('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
  return {false, set.ok and ARGV[1] or '-'}
end
if lease ~= '-' then redis.pcall('SET', KEYS[3], '1', 'PX', ARGV[2]) end
return {false, lease}
"""
"""The answer, or whose lease it is: ours from now on, if it was nobody's. One that is full or may not be written leases nothing."""
STORE: Final = """
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if redis.call('GET', KEYS[2]) == ARGV[3] then redis.call('DEL', KEYS[2], KEYS[3]) end
return 1
"""
"""The answer is there before the lease is gone: nobody finds neither."""
GIVE_UP: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if not redis.pcall('SET', KEYS[1], '-', 'PX', ARGV[2]).ok then redis.call('DEL', KEYS[1]) end
return 1
"""
LET_GO: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
RENEW: Final = """
local found = {}
for place = 1, #KEYS, 2 do
  local kept = redis.call('GET', KEYS[place]) == ARGV[1]
  if kept then redis.call('PEXPIRE', KEYS[place], ARGV[2]) end
  found[#found + 1] = kept and 1 + redis.call('EXISTS', KEYS[place + 1]) or 0
end
return found
"""
"""Of each lease: 0 lost, 1 kept, 2 kept and somebody waits."""


class Look(NamedTuple):
    """What there is of an answer."""

    found: tuple[bytes, float] | None = None
    """Packed, and when it ends."""
    lease: bytes | None = None
    """Who asks for it; None: nobody knows, as Redis did not tell."""


class Renewed(NamedTuple):
    """What became of a lease of ours."""

    kept: bool
    wanted: bool
    """Another proxy waits for the answer."""


def step(look: Look, own: bytes, *, may_wait: bool) -> Step:
    """What is to be done next; `own`: the token of who looked."""
    if look.found is not None:
        return "show"
    if look.lease is None or look.lease == GIVEN_UP:
        return "ask"
    if look.lease == own:
        return "lead"
    return "wait" if may_wait else "ask"


def looked(told: object) -> tuple[object, bytes | None]:
    """What LOOK told: what lies in the answer's place, and whose the lease is."""
    if not isinstance(told, list) or len(told) not in (1, 2):
        return None, None
    lease = told[1] if len(told) > 1 else None
    return told[0], lease if isinstance(lease, bytes) else None


def renewed(told: object, count: int) -> list[Renewed] | None:
    """What RENEW told; None: nothing that can be read."""
    if not isinstance(told, list) or len(told) != count:
        return None
    return [Renewed(kept=each in (1, 2), wanted=each == 2) for each in told]


def turned(seen: bytes | None, lease: bytes) -> bool:
    """Whether who waits for the holder of a lease should look again: it is done, dead, or another's."""
    return seen != lease
