"""A stack of `toolkit serve` -> the Site that templates are filled from, or one ToolkitError. It opens nothing and renders nothing.

What a file of a deployment must not hold is refused here, once for all kinds: secrets, and ports that nobody has chosen yet.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from toolkit.deploy.render import dns_label, unlike
from toolkit.errors import ToolkitError
from toolkit.hosts import is_loopback
from toolkit.proxy.config import Settings
from toolkit.serving.flags import Flags, Value
from toolkit.serving.stack import EngineSetting, Stack

Spelled = Callable[[Iterable[tuple[str, Value]]], Flags]
"""Flags as the vLLM that is deployed reads them; raises ToolkitError for one that it does not have."""

GPU_FLAGS = (
    ("tensor-parallel-size", "tp"),
    ("pipeline-parallel-size", "pp"),
    ("data-parallel-size", "dp"),
)
"""Each copy of the model takes tensor x pipeline GPUs, and data parallel is so many copies."""
_SECRET = re.compile(
    r"(^|_)(TOKEN|ACCESSKEY|KEY|PASS)$|(API_?KEYS?|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTHORIZATION)$",
    re.IGNORECASE,
)
_IN_ADDRESS = re.compile(r"""://[^/?#\s"']*:[^/?#\s"']+@""")
"""A password in an address, e.g., of a web proxy or of a collector."""
ASKED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here
"""All addresses -> the one by which the same machine reaches what listens there."""
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
    """Its address on the machine that serves."""
    port: int
    spare_port: int | None = None
    """Of its successor after `toolkit serve swap`; None: it has none."""
    arguments: tuple[str, ...] = ()
    """Of `vllm serve MODEL`, with dashes, without host, port and keys: `--max-model-len`, `4096`."""
    env: tuple[tuple[str, str], ...] = ()
    """Further variables; never a key."""
    key_env: str | None = None
    """The variable that holds its API key."""
    gpus: tuple[str, ...] = ()
    """Indices or UUIDs as in CUDA_VISIBLE_DEVICES; empty: any `gpu_count` of them."""
    gpu_count: int = 1
    """Tensor times pipeline parallel, or as many as are pinned."""
    ready_s: float = 1800.0
    """Longest time to load."""
    team: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteProxy:
    """The response cache in front of the engines."""

    host: str = "127.0.0.1"
    """Where it is reached from the machine that serves."""
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 8002
    is_open: bool = False
    """The stack file lets clients of other machines in."""
    has_teams: bool = False
    """Clients need a team's key."""
    key_envs: tuple[str, ...] = ()
    """Variables that hold its teams' and its upstreams' keys."""
    redis_env: str | None = None
    """The variable that holds the address of the shared cache."""
    body_bytes: int = 32 * 2**20
    media_hosts: tuple[str, ...] = ()
    """Hosts from which engines may fetch what requests name; `*`: any."""
    paths: tuple[str, ...] = ()
    """Passed on to engines, uncached, beside its own."""
    wait_s: float = 30.0
    """Longest wait of a request before it is sent to an engine: for a slot, and for the answer that another proxy fetches."""
    whole_s: float | None = 600.0
    """Longest answer after that; None: no limit."""
    drain_s: float = 30.0
    asks_others: bool = False
    """It has upstreams on other machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The stack and how it is reached."""

    name: str
    """Of the stack: its file's name without the ending, as a DNS label."""
    engines: tuple[SiteEngine, ...]
    proxy: SiteProxy | None
    """None: clients reach the engines directly."""
    listen: str = "127.0.0.1"
    """The address that clients' ports are bound to."""
    image: str = ""
    """vLLM's container image, with its version."""
    stack_file: str = "stack.toml"
    """Its path on the machine that serves."""
    stack_text: str = ""
    """The stack file's content."""
    database: str | None = None
    command: str = "/usr/local/bin/toolkit"
    """The toolkit's path on the machine that serves."""
    stop_s: float = 10.0
    """From SIGTERM to SIGKILL of an engine."""
    writes: tuple[str, ...] = ()
    """Absolute paths that the stack writes to; relative ones lie in a folder of its own."""

    @property
    def key_envs(self) -> tuple[str, ...]:
        """Variables that hold keys of engines and proxy: names, never values."""
        engines = [each.key_env for each in self.engines if each.key_env is not None]
        proxy = () if self.proxy is None else self.proxy.key_envs
        return tuple(dict.fromkeys([*engines, *proxy]))

    @property
    def variables(self) -> tuple[str, ...]:
        """All variables that must be set where it runs: keys, and the address of Redis."""
        return self.key_envs if self.redis_env is None else (*self.key_envs, self.redis_env)

    @property
    def redis_env(self) -> str | None:
        """The variable that holds the address of the shared cache."""
        return None if self.proxy is None else self.proxy.redis_env

    @property
    def is_open(self) -> bool:
        """Clients of other machines are let in."""
        return not is_loopback(self.listen)

    @property
    def keyless(self) -> tuple[str, ...]:
        """A warning for a stack that clients of other machines reach: they need no key."""
        if self.proxy is not None:
            return () if self.proxy.has_teams else (NO_TEAM,)
        names = ", ".join(f"`{each.name}`" for each in self.engines if each.key_env is None)
        if not names:
            return ()
        what = f"Whoever reaches an engine without a key may ask it ({names})"
        return (f'{what}: give each a `key_env = "VARIABLE"` in the stack file, and deploy again',)

    @property
    def asked_at(self) -> str:
        """`listen` as the same machine reaches it."""
        return ASKED_AT.get(self.listen, self.listen)


def site_of(
    stack: Stack,
    *,
    name: str,
    listen: str,
    image: str,
    stack_file: str,
    stack_text: str,
    command: str,
    flags: Spelled,
) -> Site:
    """The site of a stack whose ports are placed; `name` is its file's without the ending."""
    for engine in stack.engines:
        _refuse_secrets(engine)
    labels = unlike(each.name for each in stack.engines)
    writes = [stack.folder, stack.database]
    if stack.proxy is not None:
        writes += [stack.proxy.cache.file, stack.proxy.tell.database, stack.proxy.tell.log]
    return Site(
        name=dns_label(name),
        engines=tuple(map(_engine, stack.engines, labels, [flags] * len(labels))),
        proxy=None if stack.proxy is None else _proxy(stack.proxy),
        listen=listen,
        image=image,
        stack_file=stack_file,
        stack_text=stack_text,
        database=stack.database,
        command=command,
        stop_s=stack.guard.stop_s,
        writes=tuple(dict.fromkeys(each for each in writes if each and each.startswith("/"))),
    )


def _engine(setting: EngineSetting, label: str, spelled: Spelled) -> SiteEngine:
    is_vllm = setting.kind == "vllm"
    pinned = tuple(one for one in (setting.gpus or "").split(",") if one)
    gpu_count = len(pinned)
    if not pinned:
        flags, gpu_count = dict(setting.flags), 1
        for names in GPU_FLAGS:
            told = next((flags[name] for name in names if name in flags), "1")
            gpu_count *= int(told) if isinstance(told, str) and told.isdecimal() else 1
    return SiteEngine(
        name=label,
        kind=setting.kind,
        model=setting.model or setting.kind,
        served_name=setting.served_name or setting.model or setting.kind,
        host=ASKED_AT.get(setting.host, setting.host),
        port=_chosen(setting.port, f"engine `{setting.name}`: `port`"),
        spare_port=setting.spare_port,
        arguments=spelled(setting.flags).argv if is_vllm else (),
        env=setting.env,
        key_env=setting.key_env,
        gpus=pinned,
        gpu_count=max(1, gpu_count) if is_vllm else 0,
        ready_s=setting.ready_s,
        team=setting.team,
    )


def _proxy(settings: Settings) -> SiteProxy:
    cache, admission = settings.cache, settings.admission
    keys = [each.key_env for each in settings.teams]
    keys += [each.key_env for each in settings.upstreams]
    return SiteProxy(
        host=ASKED_AT.get(settings.host, settings.host),
        port=_chosen(settings.port, "[proxy]: `port`"),
        admin_host=ASKED_AT.get(settings.admin_host, settings.admin_host),
        admin_port=_chosen(settings.admin_port, "[proxy]: `admin_port`"),
        is_open=not is_loopback(settings.host),
        has_teams=bool(settings.teams),
        key_envs=tuple(dict.fromkeys(each for each in keys if each is not None)),
        redis_env=cache.redis_env,
        body_bytes=settings.front.body_bytes,
        media_hosts=settings.media_hosts,
        paths=settings.paths,
        # for another proxy's answer, too, where there may be another one
        wait_s=admission.wait_s + (0.0 if cache.redis_env is None else cache.redis_wait_s),
        whole_s=admission.whole_s,
        drain_s=settings.drain_s,
        asks_others=not all(
            is_loopback(urlsplit(each.url).hostname or "") for each in settings.upstreams
        ),
    )


def _chosen(port: int | None, where: str) -> int:
    if not port:
        raise ToolkitError(
            f"{where} is any free one, which other machines can't know", "Name one, e.g., 8000"
        )
    return port


def holds_secret(name: str, value: str) -> bool:
    """Whether a variable of the environment is one that nobody else may read, by its name or as an address with a password."""
    return bool(_SECRET.search(name) or _IN_ADDRESS.search(value))


def _refuse_secrets(setting: EngineSetting) -> None:
    # `hf-token = true` only says that the one on the disk is to be used; `api-key` the stack file itself refuses
    flags = [
        f"flags.{name}"
        for name, value in setting.flags
        if isinstance(value, str) and (name == "hf-token" or _IN_ADDRESS.search(value))
    ]
    variables = [f"env.{name}" for name, value in setting.env if holds_secret(name, value)]
    model = ["model"] if _IN_ADDRESS.search(setting.model or "") else []
    for found in (*flags, *variables, *model):
        raise ToolkitError(
            f"engine `{setting.name}`: `{found}` holds a secret, and what is deployed is read by many",
            "Take it out of the stack file, and set the variable where the engine runs",
        )
