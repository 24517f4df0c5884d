"""Prometheus for a site: what it looks at, what it works out beforehand, when it alerts. Pure text; nothing is asked or started.

Engines are looked at in both of their places, the proxy on its admin's port. Labels: `host` is an engine's name, `slot` its place
(vLLM's own `engine` is the rank of data parallelism); alerts and dashboard go by them and by the jobs' names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from toolkit.deploy import alerts, recording
from toolkit.deploy.metric_names import ENGINES
from toolkit.deploy.names import address
from toolkit.deploy.quoting import shell
from toolkit.deploy.site import Kit, Rendered, Site, SiteEngine
from toolkit.deploy.templating import render

FOLDER = "prometheus/"
"""Of the templates."""
KEYS = "keys/"
"""Beside the configuration; never written here."""
PORT = 9090
"""Prometheus' own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One address that is looked at."""

    address: str
    host: str
    slot: str | None = None
    """`a` or `b`, as the proxy calls the places of one engine; None: it has but one."""
    team: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Targets that want the same key."""

    job: str
    targets: Sequence[Target]
    key_env: str | None = None
    key_file: str = field(default="")


def kit(site: Site, templates: Mapping[str, str]) -> Kit:
    """Configuration and rules."""
    groups = tuple(_groups(site.engines))

    def written(name: str, **values: object) -> Rendered:
        place = name if name == "prometheus.yml" else f"rules/{name}"
        return Rendered(
            path=place, text=render(templates[f"{FOLDER}{name}.j2"], language="yaml", **values)
        )

    found = alerts.of_site(site)
    return Kit(
        files=(
            written("prometheus.yml", site=site, groups=groups, proxy=_proxy_address(site)),
            written("recording.yml", groups=_records(site)),
            written(
                "alerts.yml",
                groups=_by_job(found),
                thresholds=alerts.told(found),
                duration=alerts.duration,
            ),
        ),
        next_steps=tuple(_steps(site, groups)),
    )


def _groups(engines: Sequence[SiteEngine]) -> Iterator[Group]:
    """Engines without a key first; a key's file is told once for a job, and a job's name can't stand twice."""
    wanted = dict.fromkeys(each.key_env for each in engines)
    for key_env in sorted(wanted, key=lambda name: (name is not None, name)):
        targets = [
            target for each in engines if each.key_env == key_env for target in _targets(each)
        ]
        if key_env is None:
            yield Group(job=ENGINES, targets=targets)
        else:
            job, file = f"{ENGINES}-{key_env}", f"{KEYS}{key_env}"
            yield Group(job=job, targets=targets, key_env=key_env, key_file=file)


def _targets(engine: SiteEngine) -> Iterator[Target]:
    places = [engine.port, engine.spare_port]
    slots = ["a", "b"] if engine.spare_port else [None]
    for port, slot in zip(places, slots, strict=False):
        if port:
            place = address(engine.host, port)
            yield Target(address=place, host=engine.name, slot=slot, team=engine.team)


def _proxy_address(site: Site) -> str | None:
    return None if site.proxy is None else address(site.proxy.admin_host, site.proxy.admin_port)


def _records(site: Site) -> list[tuple[str, Sequence[recording.Record]]]:
    groups: list[tuple[str, Sequence[recording.Record]]] = [("engines", recording.of_engines())]
    return groups if site.proxy is None else [*groups, ("proxy", recording.of_proxies())]


def _by_job(found: Sequence[alerts.Alert]) -> list[tuple[str, Sequence[alerts.Alert]]]:
    proxies = [each for each in found if each.name.startswith("Proxy")]
    groups = [("engine alerts", [each for each in found if each not in proxies])]
    return [*groups, ("proxy alerts", proxies)] if proxies else [*groups]


def _steps(site: Site, groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        if group.key_env is not None:
            yield (
                f"Put the key into {group.key_file}, beside prometheus.yml, readable for Prometheus alone:"
                f" `mkdir -p {KEYS} && (umask 077; printenv {shell(group.key_env)} > {shell(group.key_file)})`."
                " vLLM itself asks none for /metrics: where nothing stands before it, take `authorization` out."
            )
    yield "Check it: `promtool check config prometheus.yml`"
    listen = address(site.listen, PORT)
    yield f"Start it: `prometheus --config.file=prometheus.yml --web.listen-address={listen}`"
    yield "Tell it where alerts go (`alerting`), and put the dashboard beside it: `toolkit deploy grafana`"
