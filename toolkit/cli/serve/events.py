"""Where a served stack's events go: into a run of its own, and onto the board of whatever blast is on."""

import json
import os
import secrets
import socket
import time
from dataclasses import asdict, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from toolkit.cli.event_keeper import EventKeeper
from toolkit.errors import ToolkitError
from toolkit.hosts import one_host
from toolkit.records import Event, Host, Run
from toolkit.serving.processes import identity
from toolkit.serving.stack import Stack

if TYPE_CHECKING:
    from toolkit.store import Store

ON_BOARD = ("restart", "model")
"""Kinds that whoever looks at the clients' URL wants to see; the others are about the engine."""
FRESH_S = 20.0
"""A blast writes a row each second; one whose last row is older was killed, or hangs."""
SECRET_FLAGS = ("hf-token", "ssl-keyfile")


class ServeEvents(EventKeeper):
    """Of one serve."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(None if stack.database is None else Path(stack.database))
        self._clients_url: str | None = None
        self._run = Run(
            id=secrets.token_hex(6),
            verb="serve",
            started_at=time.time(),
            settings=json.dumps(recorded(stack)),
        )

    def __enter__(self) -> Self:
        self.keep(lambda store: store.add_run(self._run))
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        now = time.time()
        self.keep(lambda store: store.end_run(self._run.id, ended_at=now, client_ok=None))
        super().__exit__()

    def opened(self, url: str) -> None:
        """Clients are let in there from now on, and a board may know this address as one of its hosts."""
        self._clients_url = url

    def add(self, event: Event) -> None:
        """Take one."""

        def write(store: "Store") -> None:
            store.add_event(replace(event, run=self._run.id))
            if event.kind in ON_BOARD and self._clients_url is not None:
                host = _on_board(store, self._clients_url)
                text = f"{event.name}: {event.text}"
                store.add_event(replace(event, run=None, name=host.name, url=host.url, text=text))

        self.keep(write)


def recorded(stack: Stack) -> dict[str, Any]:
    """The stack as a run's settings; no key is in it, only their variables' names are left out, too."""
    engines = [
        {name: value for name, value in asdict(each).items() if name not in ("key_env", "env")}
        | {"flags": {name: value for name, value in each.flags if name not in SECRET_FLAGS}}
        for each in stack.engines
    ]
    return {
        "process": identity(os.getpid()),
        "engines": engines,
        "warm": asdict(stack.warm),
        "guard": asdict(stack.guard),
        "folder": stack.folder,
        "proxy": stack.proxy
        and {name: getattr(stack.proxy, name) for name in ("host", "port", "media_hosts")},
    }


def blast_on(database: str | None) -> str | None:
    """The run of a blast that is on at this moment, as far as the database knows."""
    from toolkit.store import Store

    if database is None or not Path(database).is_file():
        return None
    try:
        with Store.open_readonly(Path(database)) as store:
            for run in store.runs(verb="blast"):
                if run.ended_at is not None:
                    continue
                last = max(run.started_at, store.last_second(run.id) or 0)
                if time.time() - last < FRESH_S:
                    return run.id
    except ToolkitError:
        return None  # a database that cannot be read keeps nobody from mending a server
    return None


def _on_board(store: "Store", url: str) -> Host:
    """As whom blasts know the stack: by its port at any address of this machine, the last met first; else by its URL."""
    own = one_host(url)
    port = urlsplit(own.url).port
    named = (each for each in store.hosts() if urlsplit(each.url).port == port)
    return next((each for each in named if _is_here(urlsplit(each.url).hostname or "")), own)


def _is_here(host: str) -> bool:
    """Whether it is this machine: a name of it, or an address that can be bound; nobody is asked."""
    if host in ("localhost", socket.gethostname()):
        return True
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        ip_address(host)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True
