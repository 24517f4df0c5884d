"""`toolkit scout`: look at every host, say what is there, keep it."""

import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli import suggestions
from toolkit.cli.inputs import allow_open_files, hosts_from, keys_for, tls_for
from toolkit.cli.options import DURATION, database_option, tls_options
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from toolkit.cli.scout.show import SightingShow
    from toolkit.records import Host, Sighting
    from toolkit.store import Store

WATCH_INTERVAL_S = 2.0

EXAMPLES = """
Ask each host for /health, /version, /v1/models and /metrics, all hosts at once, and print what
they are, how full they are and what a person should know. HOSTS are files (`-` for standard
input) or URLs; without any, the file in TOOLKIT_HOSTS, else hosts.txt.

\b
  toolkit scout hosts.txt
  toolkit scout 127.0.0.1:8000 --json
  toolkit scout hosts.txt --interval 5s
      two looks and true rates between them
  toolkit scout hosts.txt --watch   a live table, every look stored
  toolkit scout --history alice     how a host changed

Exits with 1 when no host is up; one that is down is a row with its reason. 130: interrupted.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoutOptions:
    """The command line of one scout, fields named as its options."""

    hosts: tuple[str, ...]
    timeout: float
    interval: float | None
    watch: bool
    count: int | None
    history: str | None
    as_json: bool
    database: Path
    no_store: bool
    insecure: bool
    ca: str | None
    verbose: bool

    @property
    def interval_s(self) -> float:
        """Seconds between two looks at a host."""
        return self.interval or WATCH_INTERVAL_S

    @property
    def looks(self) -> int | None:
        """How often to look at each host; None: until somebody stops it."""
        if self.watch:
            return self.count
        return 2 if self.interval else 1


@click.command(
    "scout", help=EXAMPLES, short_help="Look at every host: what it is, how full, what changed."
)
@click.argument("hosts", nargs=-1, metavar="[HOSTS]...", shell_complete=suggestions.file)
@click.option(
    "--timeout", type=DURATION, default="5s", show_default=True, help="For all pages of one host."
)
@click.option("--interval", type=DURATION, help="Look twice, this far apart, and show true rates.")
@click.option(
    "--watch",
    is_flag=True,
    help="Look again every interval (2s), show a live table, store each look.",
)
@click.option(
    "--count", type=click.IntRange(min=1), help="End --watch after so many looks at each host."
)
@click.option(
    "--history",
    metavar="NAME",
    shell_complete=suggestions.host,
    help="Show from the database how a host changed; contact nobody.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a host.")
@database_option
@click.option(
    "--no-store", is_flag=True, help="Keep nothing; changes since the last look stay unseen."
)
@tls_options
@click.option("-v", "--verbose", is_flag=True, help="Tell each request on stderr.")
def command(**options: Any) -> None:
    """Look at every host (the help text is EXAMPLES)."""
    chosen = ScoutOptions(**options)
    if chosen.verbose:
        logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
        logging.getLogger("toolkit").setLevel(logging.DEBUG)
    if chosen.history:
        _show_history(chosen)
    elif chosen.count and not chosen.watch:
        raise click.UsageError("--count goes with --watch")
    else:
        _scout(chosen)


def _scout(options: ScoutOptions) -> None:
    hosts = hosts_from(options.hosts)
    keys = keys_for(hosts)
    show = _show(hosts, options)
    with _store(options) as store, show:
        stopped = _look(hosts, keys, store, show.add, options)
    if stopped and not options.watch:
        sys.exit(130)  # what a shell calls an interrupted command
    if show.all_down:
        sys.exit(1)


def _show(hosts: "Sequence[Host]", options: ScoutOptions) -> "SightingShow":
    """Choose how to show what is seen."""
    if options.as_json:
        from toolkit.cli.scout.show import JsonSightings, JsonStream

        return JsonStream(hosts) if options.watch else JsonSightings(hosts)
    from toolkit.cli.scout.table import LiveSightings, SightingTable

    return LiveSightings(hosts, options.interval_s) if options.watch else SightingTable(hosts)


def _look(
    hosts: "Sequence[Host]",
    keys: dict[str, str],
    store: "Store | None",
    show: "Callable[[Sighting], None]",
    options: ScoutOptions,
) -> bool:
    """Run all looks; tell whether somebody stopped them."""
    import asyncio

    from toolkit.cli.waiting import waiting_for
    from toolkit.scout.look import QuietMoments, Scout
    from toolkit.scout.watch import HostWatch

    allow_open_files()
    tls, quiet = tls_for(insecure=options.insecure, ca=options.ca), QuietMoments()
    watch = HostWatch(
        [Scout(host, tls, keys.get(host.name), options.timeout, quiet) for host in hosts],
        before=_known(store, hosts),
        keep=lambda batch: store.add_sightings(batch, hosts) if store else None,
        show=show,
        only_pairs=bool(options.interval) and not options.watch,
    )
    try:
        with waiting_for("Looking", shown=not options.watch):
            asyncio.run(watch.run(options.looks, options.interval_s))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return True
    return False


def _store(options: ScoutOptions) -> "AbstractContextManager[Store | None]":
    from toolkit.store import Store

    return nullcontext(None) if options.no_store else Store.open(options.database)


def _known(store: "Store | None", hosts: "Sequence[Host]") -> "dict[str, Sighting]":
    """The last time each host told its settings, to see what changed since."""
    if store is None:
        return {}
    last = {host.name: store.last_telling(host.name, host.url) for host in hosts}
    return {name: sighting for name, sighting in last.items() if sighting}


def _show_history(options: ScoutOptions) -> None:
    from toolkit.store import Store

    name = options.history or ""
    with Store.open_readonly(options.database) as store:
        sightings = store.sightings(name)
        if not sightings:
            known = ", ".join(store.known_names()) or "none yet"
            raise ToolkitError(
                f"`{options.database}` has no sighting of `{name}`", f"Known hosts: {known}"
            )
    if options.as_json:
        from toolkit.cli.scout.show import print_sightings

        print_sightings(sightings)
    else:
        from toolkit.cli.scout.table import print_chapters

        print_chapters(sightings)
