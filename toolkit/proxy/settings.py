"""All that a proxy can be told: one record per part, with its defaults. Reading them from TOML is settings_file's."""

from dataclasses import dataclass, field
from typing import Literal

MIB = 2**20

Policy = Literal["all", "declared", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSetting:
    """One server that answers misses."""

    name: str
    """Shown in logs and metrics."""
    url: str
    """Without a path at the end, e.g., `http://127.0.0.1:8001`."""
    key_env: str | None = None
    """Environment variable that holds its API key."""
    concurrency: int | None = None
    """Most requests of ours at a time; None: no limit but the system's."""
    fallback: bool = False
    """Asked only when none of the others can be."""
    model: str | None = None
    """Asked for instead of the request's own, for a fallback with another model."""
    probes: bool | None = None
    """Its /metrics and /health are looked at, and a token is asked for when it seems stuck; None: unless it is a fallback, whose
    tokens may cost money."""

    @property
    def is_watched(self) -> bool:
        """Whether it is looked at beside the requests that it answers."""
        return not self.fallback if self.probes is None else self.probes


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamSetting:
    """Who may ask, and how much at a time."""

    name: str
    key_env: str | None = None
    """Environment variable with its API key; a file of keys is the other way."""
    concurrency: int | None = None
    queue: int | None = None
    """Most requests that wait for one of these slots; None: as the system's."""
    priority: int = 0
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    pool: str | None = None
    """Teams with one pool share their stored answers; None: shares with nobody."""
    policy: Policy | None = None
    """None: the proxy's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSetting:
    """What is stored, where, and for how long."""

    policy: Policy = "all"
    ttl_s: float | None = 3600.0
    """None: without end."""
    memory_bytes: int = 256 * MIB
    file: str | None = "data/proxy-cache.db"
    """The shared layer; None: memory only."""
    file_bytes: int = 2048 * MIB
    redis_env: str | None = None
    """Environment variable with the address of a Redis that several proxies share (it may hold a password)."""
    redis_timeout_s: float = 0.03
    redis_wait_s: float = 30.0
    """As long waits a request at most while another proxy asks for the same answer; then it asks itself. 0: at once."""
    max_answer_bytes: int = 16 * MIB
    replay: Literal["instant", "original"] | float = "instant"
    """How a stored stream is sent: at once, as it came, or at so many tokens/s."""
    verify_share: float = 0.0
    """Of the hits so many are asked again in the background and compared."""
    epoch: Literal["restart", "change"] = "restart"
    """What makes stored answers unreachable: any restart of the upstream, or only another model, version or settings."""
    inert: frozenset[str] = frozenset()
    """Top-level fields that are known not to change the answer, e.g., `user`, `metadata`."""
    longest_flight_s: float | None = None
    """A call under way for so long is joined no more."""
    obeys_upstream: bool = True
    """An answer with `Cache-Control: no-store` or `private`, or `Vary: *`, is not stored. False: stored all the same, e.g., in a contest
    behind a gateway that sends them with everything."""
    asks_usage: bool = True
    """A stream's usage is asked for, so that it can be shown as a whole body, too; clients that didn't ask don't see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSetting:
    """How many at a time, who waits, and until when."""

    concurrency: int | None = None
    """Calls upstream at a time, all teams together; None: no limit."""
    queue: int = 1024
    """Most that wait, all teams together."""
    wait_s: float = 30.0
    """Longest wait for a slot; what can't be served in time is rejected before it waits. For an engine that is started, too."""
    first_token_s: float | None = 120.0
    """Longest wait for the first token, once sent upstream (prefill)."""
    token_gap_s: float | None = 60.0
    """Longest gap between two reads of an answer (decode)."""
    whole_s: float | None = 600.0
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSetting:
    """How upstreams are chosen and given up."""

    affinity: bool = False
    """Equal beginnings of prompts go to one upstream, as long as it is not much fuller than the others."""
    look_s: float = 1.0
    """How often each upstream's /metrics is read."""
    stuck_s: float = 4.0
    """Requests run and no token came for so long: it is asked for one token."""
    probe_s: float = 3.0
    """As long may that take; then the upstream is left."""
    back_s: float = 5.0
    """First wait before one that was left is tried again; doubles up to a minute."""
    retries: int = 1
    """Other upstreams tried before the first byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontSetting:
    """What one client may cost before it is understood."""

    header_bytes: int = 64 * 1024
    headers: int = 100
    body_bytes: int = 32 * MIB
    held_bytes: int = 256 * MIB
    """Of bodies that come and of those that wait for their answer, all clients together."""
    header_s: float = 10.0
    body_s: float = 60.0
    """One that brings 64 KiB a second may take longer."""
    idle_s: float = 75.0
    stall_s: float = 60.0
    """A client that reads nothing of its answer for so long is let go."""
    connections: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TellSetting:
    """What is told of each request, and where."""

    log: str | None = None
    """A file of JSON lines, `-` for standard output; None: no log."""
    log_prompts: bool = False
    database: str | None = None
    """Store Seen rows and Shots there."""
    metrics_on_port: bool | None = None
    """/metrics and /version on the clients' port, too; None: where no team has a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One proxy."""

    upstreams: tuple[UpstreamSetting, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    """None: the next port above the clients' that is no upstream's."""
    workers: int = 1
    teams: tuple[TeamSetting, ...] = ()
    """Empty: everybody may ask, without a key, and shares all answers."""
    keys_file: str | None = None
    """Lines `TEAM KEY`; readable by its owner alone."""
    paths: tuple[str, ...] = ()
    """Further paths to be forwarded, uncached."""
    media_hosts: tuple[str, ...] = ()
    """Where a server may fetch images, videos and sounds from that a request names; `*`: anywhere. Data that comes along may always."""
    drain_s: float = 30.0
    cache: CacheSetting = field(default_factory=CacheSetting)
    admission: AdmissionSetting = field(default_factory=AdmissionSetting)
    routing: RoutingSetting = field(default_factory=RoutingSetting)
    front: FrontSetting = field(default_factory=FrontSetting)
    tell: TellSetting = field(default_factory=TellSetting)
