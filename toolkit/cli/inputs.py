"""What several verbs read before they start: hosts, keys from the environment, the database path."""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from toolkit.errors import ToolkitError
from toolkit.hosts import EXAMPLE, looks_like_url, one_host, read_hosts
from toolkit.records import Host

DATABASE = "data/toolkit.db"

database_option = click.option(
    "--db",
    "database",
    envvar="TOOLKIT_DB",
    default=DATABASE,
    show_default=True,
    show_envvar=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The SQLite file, made on first use.",
)


def hosts_from(words: Sequence[str]) -> list[Host]:
    """Read hosts from files, `-` for standard input, and URLs; a name or URL must not stand twice.

    Without words: the file that TOOLKIT_HOSTS names, else `hosts.txt`.
    """
    hosts: list[Host] = []
    for word in words or (os.environ.get("TOOLKIT_HOSTS", "hosts.txt"),):
        hosts += [one_host(word)] if looks_like_url(word) else _hosts_in(word)
    for kind in ("name", "url"):
        ((twice, times),) = Counter(getattr(host, kind) for host in hosts).most_common(1)
        if times > 1:
            raise ToolkitError(f"the {kind} `{twice}` stands twice", "Keep one of the two lines")
    return hosts


def _hosts_in(word: str) -> list[Host]:
    name = "standard input" if word == "-" else word
    try:
        # bytes: whatever the locale, a hosts file is UTF-8
        return read_hosts(_bytes_of(word).decode(), name)
    except UnicodeDecodeError as error:
        raise ToolkitError(f"`{name}` is not UTF-8 text", EXAMPLE) from error
    except OSError as error:
        raise ToolkitError(
            f"`{word}` cannot be read: {(error.strerror or 'no reason given').lower()}", EXAMPLE
        ) from error


def _bytes_of(word: str) -> bytes:
    if word != "-":
        return Path(word).read_bytes()
    if sys.stdin is None:
        raise ToolkitError("standard input is closed", "Name a file, or pipe one in")
    return sys.stdin.buffer.read()


def keys_for(hosts: Iterable[Host]) -> dict[str, str]:
    """Host name -> API key, for the hosts that name a variable. The keys are never printed."""
    return {host.name: _key(host, host.api_key_env) for host in hosts if host.api_key_env}


def _key(host: Host, variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ToolkitError(
            f"`{variable}` is not set, which holds the key of host `{host.name}`",
            f"Set it, e.g., `export {variable}=...`, or take `api_key_env=` out of the line",
        )
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ToolkitError(
            f"`{variable}` holds characters that no HTTP header may carry", "Was it pasted whole?"
        )
    return key
