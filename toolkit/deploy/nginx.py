"""nginx in front of a site: what it lets through, to whom, and for how long. Pure text; nothing is asked or started.

In front of the proxy where there is one, else of the engines themselves: those that serve one model to one team by one key share a
port, and another model has another port, as nginx reads no bodies and so never learns which model is asked for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.deploy.render import Kit, Plain, Rendered, address, render
from toolkit.deploy.site import ASKED_AT, Site, SiteEngine, SiteProxy
from toolkit.proxy import routes

FIRST_PORT = 8080
"""For clients; more models without a proxy have the next ones."""
READ_S = 3600
"""Longest wait for the next byte where nobody behind ends an answer: one that isn't streamed sends nothing before its end."""
MORE_S = 60
"""Beyond the proxy's own limits, so that the client gets its words and not nginx's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGroup:
    """Servers that stand in for each other, and the port at which clients ask them."""

    name: Plain
    listen: str
    what: str
    servers: Sequence[tuple[str, str]]
    """Addresses, each with what is asked there."""


def kit(site: Site) -> Kit:
    """What nginx needs of a site."""
    proxy, found = site.proxy, groups(site)
    if proxy is None or proxy.whole_s is None:
        read_s = READ_S
        why = "an answer that is not streamed sends nothing before its end, and no server here ends long ones"
    else:
        read_s = math.ceil(proxy.wait_s + proxy.whole_s) + MORE_S
        why = (
            f"the proxy lets a request wait {proxy.wait_s:g} s, ends its answer after {proxy.whole_s:g} s, and says so;"
            f" this is {MORE_S} s more"
        )
    text = render(
        "nginx.conf.j2",
        "nginx",
        site=site,
        # nginx has formats of its own, and its packages, too: `combined`, `main`
        log=Plain(f"toolkit_{site.name.replace('-', '_')}"),
        groups=found,
        paths=paths(proxy),
        body_bytes=(proxy or SiteProxy()).body_bytes,
        limit_owner="the proxy" if proxy else "`toolkit proxy`",
        read_s=read_s,
        read_why=why,
    )
    name = f"{site.name}.conf"
    place = f"/etc/nginx/conf.d/{name}"
    steps = [f"sudo cp {name} {place} && sudo nginx -t && sudo systemctl reload nginx"]
    for group in found:
        at = f"http://{group.listen}"
        if site.listen in ASKED_AT:
            at = f"any address of this machine at port {group.listen.rpartition(':')[2]}"
        steps.append(f"Clients ask {at}: {group.what}")
    steps.append(
        "A stream holds two of nginx's connections: in /etc/nginx/nginx.conf set `worker_connections 8192;` in `events`, and"
        " above it `worker_rlimit_nofile 32768;` (Debian's 768 are 384 streams for each worker)"
    )
    if site.is_open:
        steps += [
            "Clients' keys travel in the clear: add `listen ... ssl;` with a certificate before others may reach it",
            *site.keyless,
        ]
    return Kit(files=(Rendered(path=name, text=text),), next_steps=tuple(steps))


def paths(proxy: SiteProxy | None) -> dict[str, list[str]]:
    """All that is let through, with its methods; the proxy's own pages but those that tell what others do."""
    found = dict.fromkeys(routes.ANSWERS, "POST") | routes.PASSED
    found |= dict.fromkeys(routes.OWN, "GET, HEAD")
    if proxy is None:
        # vLLM has no such page: what loads refuses connections
        found.pop("/ready")
    else:
        opened = set(proxy.paths) - routes.NEVER - set(routes.PUBLIC)
        found |= dict.fromkeys(opened, "GET, HEAD, POST")
    return {path: methods.split(", ") for path, methods in found.items()}


def groups(site: Site) -> list[ServerGroup]:
    """Who stands in for whom."""
    proxy = site.proxy
    taken = {port for engine in site.engines for port in (engine.port, engine.spare_port)}
    if proxy is not None:
        taken |= {proxy.port, proxy.admin_port}
    ports = (port for port in range(FIRST_PORT, 65536) if port not in taken)
    if proxy is not None:
        what = "Its proxy. Another machine with the same stack is another `server` line."
        servers = [(address(proxy.host, proxy.port), "the proxy")]
        listen = address(site.listen, next(ports))
        return [ServerGroup(name=Plain(site.name), listen=listen, what=what, servers=servers)]
    alike: dict[tuple[str, str | None, str | None], list[SiteEngine]] = {}
    for engine in site.engines:
        alike.setdefault((engine.served_name, engine.team, engine.key_env), []).append(engine)
    found = []
    for (model, team, key), engines in alike.items():
        what = f"Engines with the model `{model}`"
        what += f" of the team {team}" if team else ""
        what += f", by the key in {key}." if key else "."
        name = f"{site.name}-{engines[0].name}" if len(alike) > 1 else site.name
        servers = [(address(x.host, x.port), f"the engine `{x.name}`") for x in engines]
        listen = address(site.listen, next(ports))
        found.append(ServerGroup(name=Plain(name), listen=listen, what=what, servers=servers))
    return found
