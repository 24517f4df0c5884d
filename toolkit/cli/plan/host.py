"""`--host`: a running server's own figures, looked at once, or as scout last saw it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from toolkit.cli.inputs import allow_open_files, tls_for
from toolkit.cli.plan.options import PlanOptions
from toolkit.errors import ToolkitError
from toolkit.hosts import looks_like_url, one_host
from toolkit.records import Sighting

if TYPE_CHECKING:
    from toolkit.scout.look import Scout
    from toolkit.store import Store

TIMEOUT_S = 5.0


def seen_host(options: PlanOptions) -> Sighting | None:
    """The server of `--host`; None where none is named. Raises ToolkitError for one that is down or unknown."""
    from toolkit.metrics.names import GATEWAYS

    if options.host is None:
        return None
    if not looks_like_url(options.host):
        return _remembered(options.host, options)
    sighting = _looked_at(options)
    if sighting.status in ("down", "not_an_engine") or sighting.engine in GATEWAYS:
        raise ToolkitError(
            f"`{sighting.url}` cannot be looked at: {sighting.error or 'it is a gateway'}",
            "Give the address of the inference server itself; `toolkit scout` shows what answers there",
        )
    return sighting


def _remembered(name: str, options: PlanOptions) -> Sighting | None:
    """As scout last saw it; None: never, but a run of `--run` measured it, and it says whose times count."""
    from toolkit.store import Store

    with Store.open_readonly(options.database) as store:
        told = [
            last
            for url in {one.url for one in store.sightings(name)}
            if (last := store.last_telling(name, url))
        ]
        known = ", ".join(store.known_names()) or "none yet"
        is_measured = name in _measured_in(store, options.run)
    if is_measured and not told and options.model is not None:
        return None
    if not told:
        raise ToolkitError(
            f"`{options.database}` has no sighting of `{name}`",
            f"Known hosts: {known}; or give the server's URL, e.g., `--host http://10.0.0.4:8000`",
        )
    return max(told, key=lambda one: one.at)


def _measured_in(store: "Store", runs: Iterable[str]) -> set[str]:
    from toolkit.cli.named_run import measured_hosts

    found = [run for each in runs if (run := store.run(each)) is not None]
    return {name for run in found for name in measured_hosts(store, run)}


def _looked_at(options: PlanOptions) -> Sighting:
    import asyncio

    from toolkit.cli.waiting import waiting_for
    from toolkit.scout.look import QuietMoments, Scout

    allow_open_files()
    host = one_host(options.host or "")
    tls = tls_for(insecure=options.insecure, ca=options.ca)
    with waiting_for(f"Looking at {host.url}"):
        return asyncio.run(_look(Scout(host, tls, None, TIMEOUT_S, QuietMoments())))


async def _look(scout: "Scout") -> Sighting:
    from toolkit.scout.evidence import examine
    from toolkit.scout.sighting import sight

    try:
        return sight(examine(await scout.look()))
    finally:
        await scout.aclose()
