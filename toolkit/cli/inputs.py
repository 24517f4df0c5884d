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
HOSTS_FILE = "hosts.txt"
NO_HOSTS = (
    f"{EXAMPLE}; `data/hosts.example.txt` is an example. To practise without servers: "
    "`toolkit sim fleet > hosts.txt &`"
)
"""Where nobody names a host and there is no hosts file."""


def tls_for(*, insecure: bool, ca: str | None) -> "ssl.SSLContext":
    """Make the one TLS context that all hosts share."""
    from toolkit.scout.scrape import tls_context

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
    hint = EXAMPLE if words else NO_HOSTS
    for word in words or (os.environ.get("TOOLKIT_HOSTS") or HOSTS_FILE,):
        if looks_like_url(word):
            hosts.append(one_host(word))
        else:
            name = "standard input" if word == "-" else word
            hosts += read_hosts(text_of(word, hint), name)
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
    except (OSError, ValueError) as error:
        raise ToolkitError(f"`{word}` cannot be read: {reason_of(error)}", hint) from error


def text_of(word: str, hint: str) -> str:
    """A file's text, or standard input's for `-`. Raises ToolkitError, with this hint, for what is no UTF-8, too."""
    file = open_input(word, hint)
    try:
        return file.read().decode()  # bytes: whatever the locale, it is UTF-8
    except UnicodeDecodeError as error:
        name = "standard input" if word == "-" else word
        raise ToolkitError(f"`{name}` is not UTF-8 text", hint) from error
    finally:
        if word != "-":
            file.close()


def keys_for(hosts: Iterable[Host]) -> dict[str, str]:
    """Host name -> API key, for the hosts that name a variable. The keys are never printed."""
    keys = {}
    for host in hosts:
        if not host.api_key_env:
            continue
        variable = host.api_key_env
        key = os.environ.get(variable, "").strip()
        if not key:
            raise ToolkitError(
                f"`{variable}` is not set, which holds the key of host `{host.name}`",
                f"Set it, e.g., `export {variable}=...`, or take `api_key_env=` out of the line",
            )
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise ToolkitError(
                f"`{variable}` holds characters that no HTTP header may carry",
                "Was it pasted whole?",
            )
        keys[host.name] = key
    return keys
