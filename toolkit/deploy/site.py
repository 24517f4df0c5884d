"""A stack as it would run elsewhere: what every template needs to know, as plain values. Nothing is rendered here."""

from dataclasses import dataclass, field

from toolkit.hosts import is_loopback

ASKED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here
"""What listens on all addresses -> where it is asked from the same machine."""
NO_TEAM = (
    "No team has a key, so whoever reaches the proxy may ask it: put a `[[proxy.team]]` with `name` and"
    ' `key_env = "VARIABLE"` into the stack file, and deploy again'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEngine:
    """One inference server of the site."""

    name: str
    """As in the stack file; a valid DNS label (lower case, digits, `-`), as Kubernetes and compose want it."""
    kind: str
    """`vllm`, `tiny` or `sim`, as in the stack file."""
    model: str
    served_name: str
    host: str
    """Where it is asked from this machine, as the stack file says."""
    port: int
    spare_port: int | None = None
    """Where a successor stands after `toolkit serve swap`; None: it has no such place."""
    arguments: tuple[str, ...] = ()
    """Of `vllm serve MODEL`, with dashes, without host, port and keys: `--max-model-len`, `4096`."""
    env: tuple[tuple[str, str], ...] = ()
    """Further variables; never a key."""
    key_env: str | None = None
    """The variable that holds its API key."""
    gpus: tuple[str, ...] = ()
    """Indices or UUIDs as in CUDA_VISIBLE_DEVICES; empty: as many as it wants, any of them."""
    gpu_count: int = 1
    """Tensor times pipeline parallel, or as many as are pinned."""
    ready_s: float = 1800.0
    """Longest loading."""
    team: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteProxy:
    """The response cache in front of the engines."""

    host: str = "127.0.0.1"
    """Where it listens, as the stack file says."""
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 8002
    is_open: bool = False
    """By the stack file, clients of other machines are taken."""
    has_teams: bool = False
    """Clients are asked for a team's key."""
    key_envs: tuple[str, ...] = ()
    """Variables that hold keys: its teams', and those of all that it asks."""
    redis_env: str | None = None
    """The variable that holds the address of the shared cache."""
    body_bytes: int = 32 * 2**20
    media_hosts: tuple[str, ...] = ()
    """From where engines may fetch what requests name; `*`: from anywhere."""
    paths: tuple[str, ...] = ()
    """That it lets through, uncached, beside its own."""
    wait_s: float = 30.0
    """Longest that a request waits before an engine is asked for it: for a slot, and for the answer that another proxy fetches."""
    whole_s: float | None = 600.0
    """Longest answer, from then on."""
    drain_s: float = 30.0
    asks_others: bool = False
    """It asks servers on other machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """All of it, and how it is to be reached."""

    name: str
    """Of the stack: its file's name without the ending, as a DNS label."""
    engines: tuple[SiteEngine, ...]
    proxy: SiteProxy | None
    """None: clients ask the engines themselves."""
    listen: str = "127.0.0.1"
    """The address that clients' ports are bound to, unless asked otherwise the loopback."""
    image: str = ""
    """vLLM's container image, with its version."""
    stack_file: str = "stack.toml"
    """As it is named on the machine that serves; an absolute path where one was told."""
    stack_text: str = ""
    """Its content, for what carries it along."""
    database: str | None = None
    command: str = "/usr/local/bin/toolkit"
    """How `toolkit` is called on the machine that serves."""
    stop_s: float = 10.0
    """From SIGTERM to SIGKILL of an engine."""
    writes: tuple[str, ...] = ()
    """Whole paths that the stack writes to; relative ones lie in a folder of its own."""

    @property
    def key_envs(self) -> tuple[str, ...]:
        """Variables that hold keys of engines and proxy: names, never values."""
        engines = [each.key_env for each in self.engines if each.key_env is not None]
        proxy = () if self.proxy is None else self.proxy.key_envs
        return tuple(dict.fromkeys([*engines, *proxy]))

    @property
    def variables(self) -> tuple[str, ...]:
        """All that must be set where it runs: keys, and the address of Redis."""
        return self.key_envs if self.redis_env is None else (*self.key_envs, self.redis_env)

    @property
    def redis_env(self) -> str | None:
        """The variable that holds the address of the shared cache."""
        return None if self.proxy is None else self.proxy.redis_env

    @property
    def is_open(self) -> bool:
        """Clients of other machines are taken."""
        return not is_loopback(self.listen)

    @property
    def keyless(self) -> tuple[str, ...]:
        """What is to be said where clients of other machines are taken: that they are asked for no key."""
        if self.proxy is not None:
            return () if self.proxy.has_teams else (NO_TEAM,)
        names = ", ".join(f"`{each.name}`" for each in self.engines if each.key_env is None)
        if not names:
            return ()
        what = f"Whoever reaches an engine without a key may ask it ({names})"
        return (f'{what}: give each a `key_env = "VARIABLE"` in the stack file, and deploy again',)

    @property
    def asked_at(self) -> str:
        """Where that is asked from this machine which listens for clients."""
        return ASKED_AT.get(self.listen, self.listen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One file to be written."""

    path: str
    """Below `--out`, with `/`."""
    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """What one kind of deployment comes to."""

    files: tuple[Rendered, ...]
    next_steps: tuple[str, ...] = field(default=())
    """Commands and sentences for who holds the files now, in order."""
