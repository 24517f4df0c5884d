"""A stack from the text of a TOML file, or from the words of a command line -> Stack, or one ToolkitError. It reads no file.

    folder = "data/serve"                # the top: logs, orders, what is to be known after a crash
    database = "data/toolkit.db"

    [[engine]]                           # one table for each server
    model = "Qwen/Qwen2.5-7B-Instruct"   # its name, where none is given: `Qwen2.5-7B-Instruct`
    preset = "throughput"                # its flags come first, those below go over them
    gpus = "0"
    key_env = "VLLM_API_KEY"             # keys stand in variables, never here
    ready = "30m"

    [engine.flags]                       # as `vllm serve` has them, without dashes
    max-model-len = 4096
    speculative-config = { method = "ngram", num_speculative_tokens = 3 }

    [warm]
    limit = "10m"

    [guard]
    stuck = "30s"

    [proxy]                              # the keys of `toolkit proxy --config`; `proxy = false`: none
    port = 8000

Names are those of stack.py without the unit, as in the proxy's settings: `ready` for `ready_s`. A port that is not named is the
next free one when the stack starts.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from toolkit import profile_checks as checks
from toolkit.errors import ToolkitError
from toolkit.file_values import one_line, switch
from toolkit.proxy.settings import CacheSetting, Settings, UpstreamSetting
from toolkit.proxy.settings_file import agreed, names, settings_in
from toolkit.serving import stack_values as values
from toolkit.serving.presets import over
from toolkit.serving.stack import EngineSetting, GuardSetting, Stack, WarmSetting

Flags = Mapping[str, str | bool]
Preset = Callable[[str], Flags]
"""A preset's name -> its flags; raises ToolkitError for one that nobody knows."""

EXAMPLE = 'An engine is, e.g., `[[engine]]` and below it `model = "Qwen/Qwen2.5-7B-Instruct"`'
NOTHING: Mapping[str, Any] = MappingProxyType({})
CACHE_FILE = "proxy-cache.db"
HIGHEST_PORT = 65535
SLOTS = ("a", "b")
"""Of two upstreams that stand for one engine, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A stack whose free ports are not known yet; `placed` makes the Stack."""

    stack: Stack
    proxy: Mapping[str, Any] | None
    where: str


def read(
    text: str,
    name: str,
    preset: Preset,
    over: Mapping[str, Any] = NOTHING,
    usual: Mapping[str, Any] = NOTHING,
) -> Draft:
    """The stack in a file's text; `name` is the file's in messages.

    `over` are the command line's words at the top and for the proxy, `usual` what holds at the top where nobody says anything.
    """
    tables = {**usual, **_toml(text, name)}
    return drafted(_merged(tables, over), f"`{name}`", preset)


def drafted(tables: Mapping[str, Any], where: str, preset: Preset) -> Draft:
    """The stack in a file's tables, or in what a command line says in their words."""
    checks.refuse_unknown(tables, (*TOP, *TABLES, "engine", "proxy"), where)
    told = {key: _at_top(key, tables[key], where) for key in TOP if key in tables}
    for key, record in TABLES.items():
        told[key] = _record(
            values.table(tables.get(key, {}), f"{where}: `{key}`"), record, where, f"{key}."
        )
    engines = _engines(tables.get("engine", []), where, preset)
    proxy = _proxy(tables.get("proxy", {}), where)
    return Draft(stack=Stack(engines=engines, proxy=None, **told), proxy=proxy, where=where)


def placed(draft: Draft, is_free: Callable[[str, int], bool]) -> Stack:
    """The stack with each engine on a port, and the proxy in front of them; `is_free` says whether nobody listens at (host, port)."""
    where = f"{draft.where}: [proxy]"
    settings = None if draft.proxy is None else settings_in(draft.proxy, where)
    taken = _ports_named(draft.stack.engines, settings, draft.where)
    first = (settings.port if settings is not None and settings.port else 8000) + 1
    ports = _Ports(taken, first, is_free, draft.where)
    engines = [
        each if each.port else replace(each, port=ports.next(each.host))
        for each in draft.stack.engines
    ]
    engines = [_with_spare(each, ports, has_proxy=settings is not None) for each in engines]
    stack = replace(draft.stack, engines=tuple(engines))
    if draft.proxy is None or settings is None:
        return stack
    if settings.admin_port is None and settings.port:
        settings = replace(settings, admin_port=ports.next(settings.admin_host))
    settings = replace(settings, upstreams=(*upstreams(engines), *settings.upstreams))
    settings = replace(settings, cache=_cache(settings.cache, draft.proxy, stack.folder))
    return replace(stack, proxy=agreed(settings, where))


def upstreams(engines: Sequence[EngineSetting]) -> tuple[UpstreamSetting, ...]:
    """What the proxy asks: each engine, and the place of its successor."""
    found = []
    for engine in engines:
        ports = (engine.port, engine.spare_port)
        for slot, port in zip(SLOTS, ports, strict=True):
            if port is not None:
                name = upstream_name(engine.name, slot)
                url = replace(engine, port=port).url
                found.append(UpstreamSetting(name=name, url=url, key_env=engine.key_env))
    return tuple(found)


def upstream_name(engine: str, slot: str) -> str:
    """How the proxy calls one of an engine's two places, e.g., `qwen.a`."""
    return f"{engine}.{slot}"


def changed(
    setting: EngineSetting, told: Mapping[str, Any], preset: Preset, where: str
) -> EngineSetting:
    """An engine's successor: what is `told` in a file's words, the rest as it was.

    Another preset takes the place of all flags but those that are told beside it.
    """
    known = {key: told[key] for key in told if key in CHANGEABLE}
    checks.refuse_unknown(told, CHANGEABLE, where)
    if setting.kind == "tiny" and "model" in told:
        raise ToolkitError(f"`{setting.name}` has the tiny model, and no other", "Change its flags")
    read_ = _values(known, EngineSetting, where, "")
    flags = preset(read_["preset"]) if "preset" in read_ else dict(setting.flags)
    read_["flags"] = tuple(over(flags, read_.get("flags", ())).items())
    return replace(setting, **read_)


def _at_top(key: str, told: Any, where: str) -> Any:
    if key == "database" and told == "none":
        return None
    return TOP[key](told, f"{where}: `{key}`")


# --- parts ---------------------------------------------------------------------------------------------


def _toml(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        problem = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ToolkitError(
            f"`{name}` is no TOML: {checks.shown(problem)}",
            'Texts stand in quotes: `model = "..."`',
        ) from error


def _merged(tables: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A file's tables with the command line's words over them."""
    merged = dict(tables)
    for key, value in over.items():
        there = merged.get(key)
        if there is False and isinstance(value, Mapping):
            raise ToolkitError(
                f"the stack has `{key} = false`, and the command line sets its `{next(iter(value))}`",
                "Leave one of them out",
            )
        if not isinstance(value, Mapping):
            merged[key] = value
        elif there is None or isinstance(there, Mapping):
            merged[key] = {**(there or {}), **value}
    return merged


def _engines(entries: Any, where: str, preset: Preset) -> tuple[EngineSetting, ...]:
    if not checks.are_tables(entries):
        raise ToolkitError(f"{where}: `engine` is no list of tables", EXAMPLE)
    if not entries:
        raise ToolkitError(f"{where} names no engine", EXAMPLE)
    engines = [
        _engine(entry, f"{where}: engine {number}", preset)
        for number, entry in enumerate(entries, start=1)
    ]
    return _named(engines, [entry.get("name") for entry in entries], where)


def _engine(entry: Mapping[str, Any], where: str, preset: Preset) -> EngineSetting:
    told = _values(entry, EngineSetting, where, "")
    setting = EngineSetting(**told)
    if not setting.model and setting.kind != "tiny":
        raise ToolkitError(f"{where} has no `model`", EXAMPLE)
    if setting.preset is not None:
        flags = over(preset(setting.preset), setting.flags)
        setting = replace(setting, flags=tuple(flags.items()))
    return setting


def _named(
    engines: Sequence[EngineSetting], given: Sequence[str | None], where: str
) -> tuple[EngineSetting, ...]:
    """Each with a name of its own: the one that it has, else its model's last word."""
    taken = [name for name in given if name is not None]
    for each in taken:
        if taken.count(each) > 1:
            raise ToolkitError(f"{where}: the engine `{each}` stands twice", "Rename one of them")
    found = []
    for engine, name in zip(engines, given, strict=True):
        named = name or _free_name(_last_word(engine), taken)
        taken.append(named)
        found.append(replace(engine, name=named))
    return tuple(found)


def _last_word(engine: EngineSetting) -> str:
    word = (engine.served_name or engine.model or engine.kind).rstrip("/").rpartition("/")[2]
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", word).strip("-._")[:60]
    return plain or engine.kind


def _free_name(word: str, taken: Sequence[str]) -> str:
    number, name = 1, word
    while name in taken:
        number += 1
        name = f"{word}-{number}"
    return name


def _proxy(told: Any, where: str) -> Mapping[str, Any] | None:
    if told is False:
        return None
    if not isinstance(told, Mapping):
        raise ToolkitError(
            f"{where}: `proxy` is neither a table nor false",
            "Write `[proxy]` and its keys below it, or `proxy = false`",
        )
    return told


def _cache(cache: CacheSetting, told: Mapping[str, Any], folder: str) -> CacheSetting:
    """Where the file does not say: stored answers outlive a restart of the engine, and lie in the stack's own folder.

    The proxy's own default, `restart`, is for servers of others, which may come back as anything. What runs here was started
    by the stack itself, with the very words of before; a swap to other words makes what was stored unreachable (swap.py), and
    so does another model, version or setting that the engine shows by itself.
    """
    own = told.get("cache", {})
    cache = cache if "epoch" in own else replace(cache, epoch="change")
    return cache if "file" in own else replace(cache, file=f"{folder.rstrip('/')}/{CACHE_FILE}")


class _Ports:
    """Hands out ports that neither the stack nor anybody else has."""

    def __init__(
        self, taken: set[int], first: int, is_free: Callable[[str, int], bool], where: str
    ) -> None:
        self._taken, self._first, self._is_free, self._where = taken, first, is_free, where

    def next(self, host: str) -> int:
        for port in range(self._first, HIGHEST_PORT + 1):
            if port not in self._taken and self._is_free(host, port):
                self._taken.add(port)
                return port
        raise ToolkitError(
            f"{self._where}: no port above {self._first - 1} is free", "Name each `port`"
        )


def _with_spare(engine: EngineSetting, ports: _Ports, *, has_proxy: bool) -> EngineSetting:
    if not has_proxy or engine.spare_port is None:
        # without a proxy clients know the port: a successor has to stand on the very same
        return replace(engine, spare_port=None)
    return replace(engine, spare_port=engine.spare_port or ports.next(engine.host))


def _ports_named(
    engines: Sequence[EngineSetting], settings: Settings | None, where: str
) -> set[int]:
    named = [port for each in engines for port in (each.port, each.spare_port) if port]
    if settings is not None:
        named += [port for port in (settings.port, settings.admin_port) if port]
    for port in named:
        if named.count(port) > 1:
            raise ToolkitError(
                f"{where}: port {port} is named twice", "Give each a port of its own"
            )
    return set(named)


def _record(table: Mapping[str, Any], record: type, where: str, before: str) -> Any:
    return record(**_values(table, record, where, before))


def _values(table: Mapping[str, Any], record: type, where: str, before: str) -> dict[str, Any]:
    known = names(record)
    checks.refuse_unknown(table, list(known), f"{where}: [{before[:-1]}]" if before else where)
    return {
        known[key]: _read(record, known[key], value, f"{where}: `{before}{key}`")
        for key, value in table.items()
    }


def _read(record: type, field: str, told: Any, where: str) -> Any:
    hint = next(str(each.type) for each in fields(record) if each.name == field)
    optional = "None" in hint
    if optional and told == "none":
        return None
    return values.reader(field)(told, where)


TOP: dict[str, values.Reader] = {
    "folder": one_line,
    "database": one_line,
    "preflight": switch,
}
TABLES: dict[str, type] = {"warm": WarmSetting, "guard": GuardSetting}
CHANGEABLE = ("model", "preset", "flags", "env", "served_name", "gpus", "vllm", "ready")
"""What a swap may change of an engine."""
