"""What several verbs read before they start: hosts, keys from the environment, certificates; and what it lets the process open."""

import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from toolkit.errors import ToolkitError, reason_of
from toolkit.hosts import DEFAULT_PORT, EXAMPLE, KEYS, looks_like_url, one_host, read_hosts
from toolkit.records import Host
from toolkit.units import spoken_list

if TYPE_CHECKING:
    import ssl

OPEN_FILES = 65_536
HOSTS_FILE = "hosts.txt"
NO_HOSTS = (
    f"{EXAMPLE}; `toolkit example hosts.txt` writes an example. To practise without servers: "
    "`toolkit sim fleet > hosts.txt &`"
)
"""Where nobody names a host and there is no hosts file."""
NAMED = 8
"""Hosts or values that an error lists."""


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


def is_hosts_file(word: str) -> bool:
    """Whether a word that is no URL means a file: by its look, or because there is one."""
    return not _may_be_name(word) or _is_there(word)


def hosts_from(
    words: Sequence[str], listed_in: str | None = None, only: Sequence[str] = ()
) -> list[Host]:
    """Hosts by their names in `listed_in` or the hosts file, of files, `-` for standard input, and of URLs.

    Without words: all of that file. `only`: names, and `key=value` of hosts; of one key any value fits, of several keys each
    must. A name or URL must not stand twice. Raises ToolkitError.
    """
    files = [word for word in words if not looks_like_url(word) and is_hosts_file(word)]
    names = [word for word in words if not looks_like_url(word) and word not in files]
    list_file = listed_in or _list_file()
    listed: dict[str, Host] = {}
    if not words or any(map(_may_be_name, words)):
        try:
            listed = _listed(
                list_file,
                EXAMPLE if words or listed_in else NO_HOSTS,
                # beside a file the refusal below says more
                is_needed=not files and bool(names or listed_in or not words),
            )
        except ToolkitError as error:
            if names and isinstance(error.__cause__, FileNotFoundError):
                raise ToolkitError(
                    f"`{names[0]}` is no file and no URL, and there is no `{list_file}` that could list it",
                    f"Write a host like `10.0.0.4:8000`, or name the file that lists `{names[0]}`: `--hosts FILE`",
                ) from error
            raise
    if both := [word for word in files if _may_be_name(word) and word in listed]:
        of_list = f"--hosts {listed_in} " if listed_in else ""
        raise click.UsageError(
            f"`{both[0]}` is a file and also a host in `{list_file}`\n\n"
            f"Hint: `./{both[0]}` for the file, `{of_list}--only {both[0]}` for the host"
        )
    if files and (names or listed_in):
        name = names[0] if names else "NAME"
        raise click.UsageError(
            f"`{files[0]}` is a file, which means all hosts in it\n\n"
            f"Hint: For one of them `--hosts {listed_in or files[0]} {name}`; for all `{files[0]}` alone"
        )
    if listed_in and words and not names and listed.keys().isdisjoint(words):
        raise click.UsageError(
            f"--hosts is where names are looked up, and `{words[0]}` is none; leave --hosts out"
        )
    _refuse_unknown(names, listed, f"`{list_file}`")
    hosts: list[Host] = []
    for word in words:
        if word in files:
            hosts += _hosts_in(word)
        else:  # an address may be a listed name, too, with a key and a team
            hosts.append(listed.get(word) or one_host(word))
    hosts = hosts if words else list(listed.values())
    for kind in ("name", "url"):
        ((twice, times),) = Counter(getattr(host, kind) for host in hosts).most_common(1)
        if times > 1:
            raise ToolkitError(f"the {kind} `{twice}` stands twice", "Keep one of the two")
    return _only(hosts, only) if only else hosts


def host_from(word: str) -> Host:
    """One host: a name of the hosts file, else the only host of a file, else an address. Raises ToolkitError."""
    # an address may have a path: `10.0.0.4:8000/v1` is no file by its look
    is_file = word.endswith(".txt") or word.startswith((".", "/")) or word == "-" or _is_there(word)
    is_name = _may_be_name(word) and not looks_like_url(word) and not is_file
    # `gpu1` may be either, a name or an address: no list has to be there, but one that is has to be readable
    list_file = _list_file()
    listed = _listed(list_file, EXAMPLE, is_needed=is_name and _is_there(list_file))
    if word in listed:
        return listed[word]
    if not is_file:
        return one_host(word)
    hosts = _hosts_in(word)
    if len(hosts) > 1:
        raise ToolkitError(
            f"`{word}` lists {len(hosts)} hosts, and one is wanted",
            f"Name it, e.g., `{hosts[0].name}`",
        )
    return hosts[0]


def _may_be_name(word: str) -> bool:
    """Not by its look a file or a whole URL, which are never looked up in a list."""
    return word != "-" and "/" not in word and not word.endswith(".txt")


def _is_there(word: str) -> bool:
    """Whether a word is an existing file, or a pipe."""
    # pathlib raises where the folder is another user's, or a name is too long
    return os.path.exists(word) and not os.path.isdir(word)  # noqa: PTH110, PTH112


def _list_file() -> str:
    return os.environ.get("TOOLKIT_HOSTS") or HOSTS_FILE


def _listed(file: str, hint: str, *, is_needed: bool) -> dict[str, Host]:
    """A list's hosts by name; one that is not needed may be missing or bad, and is not waited for. Raises ToolkitError."""
    if not is_needed and not os.path.isfile(file):  # noqa: PTH113 (as above)
        return {}
    try:
        return {host.name: host for host in _hosts_in(file, hint)}
    except ToolkitError:
        if is_needed:
            raise
        return {}


def _hosts_in(file: str, hint: str = EXAMPLE) -> list[Host]:
    return read_hosts(text_of(file, hint), "standard input" if file == "-" else file)


def _refuse_unknown(names: Iterable[str], known: Collection[str], where: str) -> None:
    """Name what is nobody's name, and whose it may have been meant to be."""
    from difflib import get_close_matches

    unknown = [name for name in names if name not in known]
    if not unknown:
        return
    by_small = {name.lower(): name for name in known}
    near = [by for name in unknown for by in get_close_matches(name.lower(), by_small, n=2)]
    meant = " or ".join(f"`{by_small[name]}`" for name in dict.fromkeys(near))
    hint = f"Did you mean {meant}?" if near else f"There are {spoken_list(list(known), NAMED)}"
    if "." in unknown[0]:
        hint += f"; an address of that name is written `{unknown[0]}:{DEFAULT_PORT}`"
    raise ToolkitError(f"{where} has no host {' or '.join(f'`{name}`' for name in unknown)}", hint)


def _only(hosts: Sequence[Host], wanted: Sequence[str]) -> list[Host]:
    """Those that fit, in their order. Raises ToolkitError for what none of them has."""
    by_key: dict[str, set[str]] = {}
    for word in wanted:
        key, equals, value = word.partition("=")
        by_key.setdefault(key if equals else "name", set()).add(value if equals else word)
    found = list(hosts)
    for key, values in by_key.items():
        if key not in ("name", *KEYS):
            raise click.UsageError(
                f"--only takes a host's name, or one of {', '.join(f'`{each}=`' for each in KEYS)}; not `{key}=`"
            )
        present = {str(each) for host in hosts if (each := getattr(host, key)) is not None}
        if key == "name":
            _refuse_unknown(sorted(values), present, "the list")
        elif missing := sorted(values - present):
            there = ", ".join(sorted(present)[:NAMED])
            raise ToolkitError(
                f"no host has `{key}={missing[0]}`",
                f"There is {key} {there}" if present else f"No host says its {key}",
            )
        found = [host for host in found if str(getattr(host, key)) in values]
    if not found:
        raise ToolkitError(
            f"no host is all of {' and '.join(f'`{word}`' for word in wanted)}",
            "Values of one key add hosts, another key takes away: leave one out",
        )
    return found


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
