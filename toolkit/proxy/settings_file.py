"""A proxy's settings from the text of a TOML file, and what the command line says over it -> Settings, or one ToolkitError.

    port = 8000                          # the top: what is no part of a table below
    drain = "30s"
    keys_file = "proxy-keys.txt"         # lines `TEAM KEY`

    [[upstream]]                         # one table for each
    url = "http://10.0.0.4:8000"         # its name, where none is given: `10.0.0.4:8000`
    key_env = "VLLM_API_KEY"             # keys stand in variables, never here

    [[team]]
    name = "red"
    concurrency = 8

    [cache]
    ttl = "1h"                           # or "none": without end
    memory = "256MiB"
    file_size = "2GiB"

    [admission]
    first_token = "2m"

Names are those of settings.py without the unit: `ttl` for `ttl_s`, `memory` for `memory_bytes`, for the value bears it: a duration is
`90s`, `15m` or a number of seconds, a size `8GiB` or a number of bytes. Where that would make one name of two, `_size` and `_time` stand
for the units: `[front]` has `header_size` and `header_time`, `[cache]` `file` and `file_size`. "none" is no limit, no end, no
file: whatever settings.py says of None. It reads text, never a file or a variable.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from functools import lru_cache
from typing import Any

from toolkit import profile_checks as checks
from toolkit.errors import ToolkitError
from toolkit.proxy import setting_values as values
from toolkit.proxy.settings import (
    AdmissionSetting,
    CacheSetting,
    FrontSetting,
    RoutingSetting,
    Settings,
    TeamSetting,
    TellSetting,
    UpstreamSetting,
)

TABLES: dict[str, type] = {
    "cache": CacheSetting,
    "admission": AdmissionSetting,
    "routing": RoutingSetting,
    "front": FrontSetting,
    "tell": TellSetting,
}
LISTS: dict[str, tuple[str, type]] = {
    "upstream": ("upstreams", UpstreamSetting),
    "team": ("teams", TeamSetting),
}
"""What may stand several times: its name in a file, in Settings, and its record."""
COMMAND_LINE = "the command line"
UPSTREAM_EXAMPLE = (
    'An upstream is, e.g., `[[upstream]]` and below it `url = "http://10.0.0.4:8000"`'
)

Told = dict[str, Any]
"""Values by the names of Settings' fields; those of a table in a dict of their own."""


def read(text: str, name: str, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings in a file's text, and the command line's `flags` over them; `name` is the file's in messages.

    Without a file the text is empty. Flags: see `merged`.
    """
    told = _told(_toml(text, name), f"`{name}`")
    over = _told(_tables(flags or {}), COMMAND_LINE)
    for field, value in over.items():
        told[field] = {**told.get(field, {}), **value} if isinstance(value, dict) else value
    if not told.get("upstreams"):
        raise ToolkitError(
            f"`{name}` names no upstream" if text else "no upstream is named",
            f"{UPSTREAM_EXAMPLE}, or give `--upstream URL`",
        )
    return agreed(_settings(told), f"`{name}`" if text else COMMAND_LINE)


def settings_in(tables: Mapping[str, Any], where: str) -> Settings:
    """The settings in a table of another file, e.g., a stack's, with the upstreams that it names, or none.

    Whether they go together is asked by `agreed`, once all upstreams are there.
    """
    return _settings({"upstreams": (), **_told(tables, where)})


def _settings(told: Told) -> Settings:
    tables = {key: TABLES[key](**told.get(key, {})) for key in TABLES}
    return Settings(**{**told, **tables})


def merged(settings: Settings, flags: Mapping[str, Any]) -> Settings:
    """Settings with the command line's flags over them.

    A flag is called as in a file, a table's after a dot: `{"port": 8001, "cache.ttl": "10m", "upstream": ["URL", "NAME=URL"]}`. None
    and an empty list were not given; a list that was replaces the file's.
    """
    told = _told(_tables(flags), COMMAND_LINE)
    changed = {
        field: replace(getattr(settings, field), **value) if isinstance(value, dict) else value
        for field, value in told.items()
    }
    return agreed(replace(settings, **changed), COMMAND_LINE)


def agreed(settings: Settings, where: str) -> Settings:
    """The same settings, if they go together; else a ToolkitError."""
    _refuse_twins([each.name for each in settings.upstreams], f"{where}: the upstream's name")
    _refuse_twins([each.url for each in settings.upstreams], f"{where}: the upstream")
    _refuse_twins([each.name for each in settings.teams], f"{where}: the team")
    _check_upstreams(settings, where)
    _check_teams(settings, where)
    _check_ports(settings, where)
    if settings.front.held_bytes < settings.front.body_bytes:
        raise ToolkitError(
            f"{where}: `front.held` is less than `front.body_size`",
            "One body of that size could never be taken; all unfinished ones together need more room",
        )
    return settings


def admin_port(settings: Settings) -> int:
    """Where the admin listens: the next port above the clients' at which no upstream is asked; 0: any free port."""
    if settings.admin_port is not None:
        return settings.admin_port
    if not settings.port:
        return 0
    port = settings.port + 1
    while any(values.leads_to(each.url, settings.admin_host, port) for each in settings.upstreams):
        port += 1
    return port


def checked(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The values of all variables that upstreams and Redis name; raise for one that is not set or can't be sent.

    The teams' are keyring's.
    """
    named = {
        each.key_env: f"the key of upstream `{each.name}`"
        for each in settings.upstreams
        if each.key_env is not None
    }
    if settings.cache.redis_env is not None:
        named[settings.cache.redis_env] = "the address of Redis"
    return {variable: _variable(environ, variable, what) for variable, what in named.items()}


@lru_cache(maxsize=16)
def names(record: type) -> dict[str, str]:
    """How a file calls the fields of a record: name in the file -> field."""
    every = [field.name for field in fields(record)]
    bare = [name.removesuffix("_s").removesuffix("_bytes") for name in every]
    found = {}
    for name, short in zip(every, bare, strict=True):
        if name != short and bare.count(short) > 1:
            short += "_time" if name.endswith("_s") else "_size"  # noqa: PLW2901 - the longer name
        found[short] = name
    return found


def _toml(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        problem = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ToolkitError(
            f"`{name}` is no TOML: {checks.shown(problem)}", 'Texts stand in quotes: `ttl = "1h"`'
        ) from error


def _tables(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags as a file would have them."""
    tables: dict[str, Any] = {}
    for flag, given in flags.items():
        value = list(given) if isinstance(given, tuple | set | frozenset) else given
        if value is None or value == []:
            continue
        table, dot, name = flag.rpartition(".")
        if dot:
            tables.setdefault(table, {})[name] = value
        else:
            tables[flag] = value
    if "upstream" in tables:
        tables["upstream"] = [_named(each) for each in tables["upstream"]]
    return tables


def _named(upstream: Any) -> Any:
    """`URL` or `NAME=URL` on the command line."""
    if not isinstance(upstream, str):
        return upstream
    name, equals, url = upstream.partition("=")
    return {"name": name, "url": url} if equals and "/" not in name else {"url": upstream}


def _told(tables: Mapping[str, Any], where: str) -> Told:
    """All that a file says, read and checked one by one."""
    told: Told = {}
    top = _top()
    for key, value in tables.items():
        if key in LISTS:
            field, record = LISTS[key]
            told[field] = _list(value, key, record, where)
        elif key in TABLES:
            if not isinstance(value, dict):
                raise ToolkitError(
                    f"{where}: `{key}` is no table", f"Write `[{key}]` and its keys below it"
                )
            told[key] = _table(value, TABLES[key], where, f"{key}.")
        elif key in top:
            told[top[key]] = values.value(Settings, top[key], value, f"{where}: `{key}`")
        else:
            raise _unknown(key, [*top, *TABLES, *LISTS], where)
    return told


def _top() -> dict[str, str]:
    """Settings' own fields."""
    parts = {*TABLES, *(field for field, _ in LISTS.values())}
    return {name: field for name, field in names(Settings).items() if field not in parts}


def _list(entries: object, key: str, record: type, where: str) -> tuple[Any, ...]:
    if not checks.are_tables(entries) or not isinstance(entries, list):
        raise ToolkitError(f"{where}: `{key}` is no list of tables", f"Write `[[{key}]]` for each")
    return tuple(
        _entry(entry, record, f"{where}: {key} {number}")
        for number, entry in enumerate(entries, start=1)
    )


def _entry(entry: Mapping[str, Any], record: type, where: str) -> Any:
    told = _table(entry, record, where, "")
    if record is UpstreamSetting and "url" in told:
        told.setdefault("name", told["url"].partition("://")[2])
    for field in fields(record):
        if field.default is MISSING and field.name not in told:
            raise ToolkitError(f"{where} has no `{field.name}`", values.example(field.name))
    return record(**told)


def _table(table: Mapping[str, Any], record: type, where: str, before: str) -> Told:
    known = names(record)
    for key in table:
        if key not in known:
            raise _unknown(key, known, f"{where}: [{before[:-1]}]" if before else where)
    return {
        known[key]: values.value(record, known[key], value, f"{where}: `{before}{key}`")
        for key, value in table.items()
    }


def _unknown(key: str, known: Mapping[str, Any] | Sequence[str], where: str) -> ToolkitError:
    """The error for a key nobody knows: where else it would be known, or which one may be meant."""
    every = {f"[{name}]": names(record) for name, record in TABLES.items()}
    every |= {f"[[{name}]]": names(record) for name, (_, record) in LISTS.items()}
    every["the top of the file, before the first table"] = _top()
    elsewhere = [place for place, keys in every.items() if key in keys]
    if elsewhere:
        return ToolkitError(
            f"{where}: unknown key `{key}`", f"It belongs into {' or '.join(elsewhere)}"
        )
    try:
        checks.refuse_unknown({key: None}, list(known), where)
    except ToolkitError as error:
        return error
    raise AssertionError(key)


def _refuse_twins(named: Sequence[str], what: str) -> None:
    for name in named:
        if named.count(name) > 1:
            raise ToolkitError(f"{what} `{name}` stands twice", "Keep one of them, or rename one")


def _check_upstreams(settings: Settings, where: str) -> None:
    if all(each.fallback for each in settings.upstreams):
        raise ToolkitError(
            f"{where}: every upstream is a fallback",
            "Let one be the first choice: without `fallback`",
        )
    for each in settings.upstreams:
        if each.model is not None and not each.fallback:
            # its answers would be stored as the other model's
            raise ToolkitError(
                f"{where}: upstream `{each.name}` has a `model` and is no fallback",
                "Set `fallback = true`, or let clients ask for that model",
            )


def _check_teams(settings: Settings, where: str) -> None:
    if settings.keys_file is not None and not settings.teams:
        raise ToolkitError(
            f"{where}: `keys_file` is set and there is no team",
            'Add `[[team]]` with `name = "..."`',
        )
    variables = [each.key_env for each in settings.teams if each.key_env is not None]
    _refuse_twins(variables, f"{where}: the teams' variable")
    for each in settings.teams:
        if each.key_env is None and settings.keys_file is None:
            raise ToolkitError(
                f"{where}: team `{each.name}` has no key",
                'Add `key_env = "VARIABLE"` to it, or `keys_file` at the top',
            )


def _check_ports(settings: Settings, where: str) -> None:
    admin = admin_port(settings)
    if admin > 65535:
        raise ToolkitError(f"{where}: no port is above `port` for the admin", "Set `admin_port`")
    one_host = values.same_host(settings.host, settings.admin_host)
    if admin and admin == settings.port and one_host:
        raise ToolkitError(
            f"{where}: `port` and `admin_port` are both {admin}", "Give each a port of its own"
        )
    for each in settings.upstreams:
        if settings.port and values.leads_to(each.url, settings.host, settings.port):
            raise _asks_itself(each, "listens", "port", where)
        if admin and values.leads_to(each.url, settings.admin_host, admin):
            raise _asks_itself(each, "has its admin", "admin_port", where)


def _asks_itself(upstream: UpstreamSetting, does: str, key: str, where: str) -> ToolkitError:
    return ToolkitError(
        f"{where}: upstream `{upstream.name}` is where this proxy {does}, `{upstream.url}`",
        f"Set another `{key}`",
    )


def _variable(environ: Mapping[str, str], variable: str, what: str) -> str:
    value = environ.get(variable, "").strip()
    if not value:
        raise ToolkitError(f"`{variable}`, {what}, is not set", f"`export {variable}=...`")
    if not values.is_visible(value):
        raise ToolkitError(
            f"`{variable}`, {what}, holds a space or what is no ASCII",
            "Set it anew, without quotes in it",
        )
    return value
