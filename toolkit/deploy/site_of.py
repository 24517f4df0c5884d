"""A stack of `toolkit serve` -> the Site that templates are filled from, or one ToolkitError. It opens nothing.

What a file of a deployment must not hold is refused here, once for all kinds: secrets, and ports that nobody has chosen yet.
"""

import re
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from toolkit.deploy.names import dns_label, unlike
from toolkit.deploy.site import ASKED_AT, Site, SiteEngine, SiteProxy
from toolkit.errors import ToolkitError
from toolkit.hosts import is_loopback
from toolkit.proxy.settings import CacheSetting, Settings
from toolkit.serving.flags import Flags, Value
from toolkit.serving.stack import EngineSetting, Stack

Spelled = Callable[[Iterable[tuple[str, Value]]], Flags]
"""Flags as the vLLM that is deployed reads them; raises ToolkitError for one that it does not have."""

SECRET_FLAGS = ("hf-token", "api-key")
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


def site_of(
    stack: Stack,
    *,
    name: str,
    listen: str = "127.0.0.1",
    image: str = "",
    stack_file: str = "stack.toml",
    stack_text: str = "",
    flags: Spelled | None = None,
) -> Site:
    """The site of a stack whose ports are placed; `name` is its file's without the ending."""
    for engine in stack.engines:
        _refuse_secrets(engine)
    labels = unlike(each.name for each in stack.engines)
    return Site(
        name=dns_label(name),
        engines=tuple(
            _engine(each, label, flags or _as_given)
            for each, label in zip(stack.engines, labels, strict=True)
        ),
        proxy=None if stack.proxy is None else _proxy(stack.proxy),
        listen=listen,
        image=image,
        stack_file=stack_file,
        stack_text=stack_text,
        database=stack.database,
        stop_s=stack.guard.stop_s,
        writes=_writes(stack),
    )


def _engine(setting: EngineSetting, label: str, spelled: Spelled) -> SiteEngine:
    is_vllm = setting.kind == "vllm"
    pinned = _pinned(setting.gpus)
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
        gpu_count=(len(pinned) or _gpus_wanted(setting)) if is_vllm else 0,
        ready_s=setting.ready_s,
        team=setting.team,
    )


def _proxy(settings: Settings) -> SiteProxy:
    named = [team.key_env for team in settings.teams]
    named += [upstream.key_env for upstream in settings.upstreams]
    return SiteProxy(
        host=ASKED_AT.get(settings.host, settings.host),
        port=_chosen(settings.port, "[proxy]: `port`"),
        admin_host=ASKED_AT.get(settings.admin_host, settings.admin_host),
        admin_port=_chosen(settings.admin_port, "[proxy]: `admin_port`"),
        is_open=not is_loopback(settings.host),
        has_teams=bool(settings.teams),
        key_envs=tuple(dict.fromkeys(each for each in named if each is not None)),
        redis_env=settings.cache.redis_env,
        body_bytes=settings.front.body_bytes,
        media_hosts=settings.media_hosts,
        paths=settings.paths,
        wait_s=settings.admission.wait_s + _far_s(settings.cache),
        whole_s=settings.admission.whole_s,
        drain_s=settings.drain_s,
        asks_others=not all(
            is_loopback(urlsplit(each.url).hostname or "") for each in settings.upstreams
        ),
    )


def _far_s(cache: CacheSetting) -> float:
    """For another proxy's answer, where there may be another one."""
    return 0.0 if cache.redis_env is None else cache.redis_wait_s


def _writes(stack: Stack) -> tuple[str, ...]:
    told = [stack.folder, stack.database]
    if stack.proxy is not None:
        told += [stack.proxy.cache.file, stack.proxy.tell.database, stack.proxy.tell.log]
    return tuple(dict.fromkeys(each for each in told if each is not None and each.startswith("/")))


def _chosen(port: int | None, where: str) -> int:
    if not port:
        raise ToolkitError(
            f"{where} is any free one, which other machines can't know", "Name one, e.g., 8000"
        )
    return port


def _pinned(gpus: str | None) -> tuple[str, ...]:
    return tuple(one for one in (gpus or "").split(",") if one)


def _gpus_wanted(setting: EngineSetting) -> int:
    flags = dict(setting.flags)
    count = 1
    for names in GPU_FLAGS:
        told = next((flags[name] for name in names if name in flags), "1")
        count *= int(told) if isinstance(told, str) and told.isdecimal() else 1
    return max(1, count)


def _as_given(flags: Iterable[tuple[str, Value]]) -> Flags:
    """Flags with dashes, where nobody can say which ones the engine has."""
    words: list[str] = []
    for name, value in flags:
        if value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", value]
    return Flags(argv=tuple(words))


def _refuse_secrets(setting: EngineSetting) -> None:
    flags = [f"flags.{name}" for name, value in setting.flags if _is_secret_flag(name, value)]
    variables = [f"env.{name}" for name, value in setting.env if _is_secret(name, value)]
    model = ["model"] if _IN_ADDRESS.search(setting.model or "") else []
    for found in (*flags, *variables, *model):
        raise ToolkitError(
            f"engine `{setting.name}`: `{found}` holds a secret, and what is deployed is read by many",
            "Take it out of the stack file, and set the variable where the engine runs",
        )


def _is_secret(name: str, value: str) -> bool:
    return bool(_SECRET.search(name) or _IN_ADDRESS.search(value))


def _is_secret_flag(name: str, value: Value) -> bool:
    """`hf-token = true` only says that the one on the disk is to be used."""
    return isinstance(value, str) and bool(name in SECRET_FLAGS or _IN_ADDRESS.search(value))
