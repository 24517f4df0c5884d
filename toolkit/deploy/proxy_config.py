"""The proxy's settings for a place where engines have other addresses: a stack's `[proxy]` -> the TOML of `toolkit proxy --config`.

Nothing of it is lost but what can't be true there: addresses, files of this machine. It opens nothing, and keys stay names of variables.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from toolkit.config_file import toml_text
from toolkit.deploy.containers import ANYWHERE
from toolkit.deploy.render import Plain, render
from toolkit.deploy.site import Site, SiteProxy
from toolkit.errors import ToolkitError
from toolkit.hosts import is_loopback

STATE = "/var/lib/toolkit"
"""The folder inside the container that the proxy may write to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyFile:
    """Settings as a file's text, and what others must know of them."""

    text: str
    has_public_metrics: bool
    """The clients' port has /metrics, too."""
    slots: int | None
    """Calls upstream at a time, all engines together; None: no limit."""


def proxy_file(site: Site, proxy: SiteProxy, urls: Sequence[str]) -> ProxyFile:
    """The settings with the site's engines at these places. Raises ToolkitError for what can't go along."""
    told = tomllib.loads(site.stack_text.removeprefix("\ufeff")).get("proxy", {})
    # `proxy = true` is all that it may say instead
    told = dict(told) if isinstance(told, dict) else {}
    if told.get("keys_file", "none") != "none":
        raise ToolkitError(
            "`[proxy]` has a `keys_file`, and no secret leaves this machine in a file",
            'Give each `[[proxy.team]]` a `key_env = "VARIABLE"` instead',
        )
    others = told.pop("upstream", [])
    for each in others:
        if is_loopback(urlsplit(str(each.get("url"))).hostname or ""):
            raise ToolkitError(
                f"the upstream `{each.get('url')}` is this machine, and inside a container another one",
                "Name it by an address that containers reach",
            )
    engines = [
        {"name": each.name, "url": url} | ({"key_env": each.key_env} if each.key_env else {})
        for each, url in zip(site.engines, urls, strict=True)
    ]
    # as `serve` has it: answers outlive a restart of an engine whose model, version and settings are the same
    cache = {"epoch": "change", **told.get("cache", {})}
    if cache.get("file") != "none":
        cache["file"] = f"{STATE}/proxy-cache.db"
    tables = told | {
        "host": ANYWHERE,
        "port": proxy.port,
        # reached from inside the container alone: whoever may ask it may empty the cache
        "admin_host": "127.0.0.1",
        "admin_port": proxy.admin_port,
        "cache": cache,
        "upstream": [*engines, *others],
    }
    tell = dict(told.get("tell", {}))
    # a container's log is its standard output; a database lies beside the cache
    for name, place in (("log", "-"), ("database", f"{STATE}/proxy.db")):
        if tell.get(name, "none") != "none":
            tell[name] = place
    if "tell" in told:
        tables["tell"] = tell
    settings = Plain(toml_text(tables))
    is_public = tell.get("metrics_on_port", "none")
    slots = told.get("admission", {}).get("concurrency")
    return ProxyFile(
        text=render("proxy.toml.j2", "shell", stack_file=site.stack_file, settings=settings),
        # "none" is the proxy's own choice: where no team has a key
        has_public_metrics=not told.get("team") if is_public == "none" else is_public,
        slots=slots if isinstance(slots, int) else None,
    )
