"""nginx in front of a site: what it lets through, to whom, and for how long. Pure text; nothing is asked or started.

In front of the proxy where there is one, else of the engines themselves: those that serve one model to one team by one key share a
port, and another model has another port, as nginx reads no bodies and so never learns which model is asked for.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from toolkit.deploy.names import address
from toolkit.deploy.quoting import Plain
from toolkit.deploy.site import ASKED_AT, Kit, Rendered, Site, SiteEngine, SiteProxy
from toolkit.deploy.templating import render
from toolkit.proxy import routes

FIRST_PORT = 8080
"""For clients; more models without a proxy have the next ones."""
READ_S = 3600
"""Longest wait for the next byte where nobody behind ends an answer: one that isn't streamed sends nothing before its end."""
MORE_S = 60
"""Beyond the proxy's own limits, so that the client gets its words and not nginx's."""
READS = ("GET", "HEAD")
ANY = ("GET", "HEAD", "POST")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One address that is asked."""

    address: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Servers that stand in for each other, and the port at which clients ask them."""

    name: Plain
    listen: str
    what: str
    servers: tuple[Server, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """What clients may ask for."""

    path: str
    methods: tuple[str, ...]

    @property
    def pattern(self) -> Plain:
        """Of the methods, for a regular expression."""
        return Plain("|".join(self.methods))

    @property
    def allow(self) -> str:
        """As the `Allow` header has them."""
        return ", ".join(self.methods)


def kit(site: Site, templates: Mapping[str, str]) -> Kit:
    """What nginx needs of a site."""
    found = groups(site)
    text = render(
        templates["nginx.conf.j2"],
        language="nginx",
        site=site,
        # nginx has formats of its own, and its packages, too: `combined`, `main`
        log=Plain(f"toolkit_{site.name.replace('-', '_')}"),
        groups=found,
        paths=paths(site.proxy),
        body_bytes=(site.proxy or SiteProxy()).body_bytes,
        limit_owner="the proxy" if site.proxy else "`toolkit proxy`",
        read_s=_read_s(site.proxy),
        read_why=_read_why(site.proxy),
    )
    file = Rendered(path=f"{site.name}.conf", text=text)
    return Kit(files=(file,), next_steps=_next_steps(site, file.path, found))


def paths(proxy: SiteProxy | None) -> tuple[Path, ...]:
    """All that is let through; the proxy's own pages but those that tell what others do."""
    every = dict.fromkeys(routes.ANSWERS, "POST") | routes.PASSED
    found: dict[str, tuple[str, ...]] = {
        path: READS if method == "GET" else (method,) for path, method in every.items()
    }
    found |= dict.fromkeys(routes.OWN, READS)
    if proxy is None:
        # vLLM has no such page: what loads refuses connections
        found.pop("/ready")
    else:
        found |= dict.fromkeys(set(proxy.paths) - routes.NEVER - set(routes.PUBLIC), ANY)
    return tuple(Path(path=path, methods=found[path]) for path in found)


def groups(site: Site) -> tuple[Group, ...]:
    """Who stands in for whom."""
    if site.proxy is not None:
        proxy = Server(address=address(site.proxy.host, site.proxy.port), what="the proxy")
        what = "Its proxy. Another machine with the same stack is another `server` line."
        return (_group(site, site.name, next(_free(site)), what, (proxy,)),)
    alike: dict[tuple[str, str | None, str | None], list[SiteEngine]] = {}
    for engine in site.engines:
        alike.setdefault((engine.served_name, engine.team, engine.key_env), []).append(engine)
    return tuple(
        _engines(site, engines, port, several=len(alike) > 1)
        for engines, port in zip(alike.values(), _free(site), strict=False)
    )


def _free(site: Site) -> Iterator[int]:
    """Ports for clients, none of them one of the stack's own."""
    taken = {port for engine in site.engines for port in (engine.port, engine.spare_port)}
    if site.proxy is not None:
        taken |= {site.proxy.port, site.proxy.admin_port}
    return (port for port in range(FIRST_PORT, 65536) if port not in taken)


def _engines(site: Site, engines: Sequence[SiteEngine], port: int, *, several: bool) -> Group:
    first = engines[0]
    name = f"{site.name}-{first.name}" if several else site.name
    what = f"Engines with the model `{first.served_name}`"
    what += f" of the team {first.team}" if first.team else ""
    what += f", by the key in {first.key_env}." if first.key_env else "."
    servers = tuple(
        Server(address=address(each.host, each.port), what=f"the engine `{each.name}`")
        for each in engines
    )
    return _group(site, name, port, what, servers)


def _group(site: Site, name: str, port: int, what: str, servers: tuple[Server, ...]) -> Group:
    return Group(name=Plain(name), listen=address(site.listen, port), what=what, servers=servers)


def _read_s(proxy: SiteProxy | None) -> int:
    if proxy is None or proxy.whole_s is None:
        return READ_S
    return math.ceil(proxy.wait_s + proxy.whole_s) + MORE_S


def _read_why(proxy: SiteProxy | None) -> str:
    if proxy is None or proxy.whole_s is None:
        return "an answer that is not streamed sends nothing before its end, and no server here ends long ones"
    return (
        f"the proxy lets a request wait {proxy.wait_s:g} s, ends its answer after {proxy.whole_s:g} s, and says so;"
        f" this is {MORE_S} s more"
    )


def _door(site: Site, group: Group) -> str:
    if site.listen in ASKED_AT:
        return f"any address of this machine at port {group.listen.rpartition(':')[2]}"
    return f"http://{group.listen}"


def _next_steps(site: Site, path: str, found: Sequence[Group]) -> tuple[str, ...]:
    place = f"/etc/nginx/conf.d/{path}"
    asked = [f"Clients ask {_door(site, group)}: {group.what}" for group in found]
    room = (
        "A stream holds two of nginx's connections: in /etc/nginx/nginx.conf set `worker_connections 8192;` in `events`, and"
        " above it `worker_rlimit_nofile 32768;` (Debian's 768 are 384 streams for each worker)"
    )
    steps = [
        f"sudo cp {path} {place} && sudo nginx -t && sudo systemctl reload nginx",
        *asked,
        room,
    ]
    if site.is_open:
        steps.append(
            "Clients' keys travel in the clear: add `listen ... ssl;` with a certificate before others may reach it"
        )
        steps += site.keyless
    return tuple(steps)
