"""What several verbs read before they start: hosts, keys from the environment, certificates; and what it lets the process open."""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from toolkit.errors import ToolkitError, reason_of
from toolkit.hosts import EXAMPLE, looks_like_url, one_host, read_hosts
from toolkit.records import Host

if TYPE_CHECKING:
    import ssl

OPEN_FILES = 65_536


def tls_for(*, insecure: bool, ca: str | None) -> "ssl.SSLContext":
    """Make the one TLS context that all hosts share."""
    from toolkit.scout.look import tls_context

    try:
        return tls_context(insecure=insecure, ca_file=ca)
    except OSError as error:
        import ssl

        # OpenSSL's own words for it name a line of its source
        is_read = isinstance(error, ssl.SSLError)
        why = "it holds no certificate" if is_read else error.strerror or "no reason given"
        raise ToolkitError(
            f"`{ca}` cannot be used: {why.lower()}",
            "Give a file of PEM certificates, e.g., `--ca company-ca.pem`",
        ) from error


def allow_open_files() -> None:
    """Lift the usual soft limit of 1,024: a host that hangs holds all its connections."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def occupy_standard_files() -> None:
    """Put the null device where `>&-` closed a file: uvloop aborts the process when a socket of its gets such a number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def hosts_from(words: Sequence[str]) -> list[Host]:
    """Read hosts from files, `-` for standard input, and URLs; a name or URL must not stand twice.

    Without words: the file that TOOLKIT_HOSTS names, else `hosts.txt`.
    """
    hosts: list[Host] = []
    for word in words or (os.environ.get("TOOLKIT_HOSTS") or "hosts.txt",):
        hosts += [one_host(word)] if looks_like_url(word) else _hosts_in(word)
    for kind in ("name", "url"):
        ((twice, times),) = Counter(getattr(host, kind) for host in hosts).most_common(1)
        if times > 1:
            raise ToolkitError(f"the {kind} `{twice}` stands twice", "Keep one of the two lines")
    return hosts


def open_input(word: str, hint: str) -> BinaryIO:
    """A file's bytes, or standard input's for `-`. Raises ToolkitError, with this hint for a file that can't be opened."""
    if word == "-":
        if sys.stdin is None:
            raise ToolkitError("standard input is closed", "Name a file, or pipe one in")
        return sys.stdin.buffer
    try:
        return Path(word).open("rb")
    except OSError as error:
        raise ToolkitError(f"`{word}` cannot be read: {reason_of(error)}", hint) from error


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
