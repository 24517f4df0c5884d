"""What `toolkit serve` does once its command line is read: the stack's file, keys, models, the supervisor, signals, the end."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.catalog import profile_from, table
from toolkit.cli.children import TOOLKIT
from toolkit.cli.exit_codes import INTERRUPTED
from toolkit.cli.inputs import allow_open_files, occupy_standard_files
from toolkit.cli.output import to_stderr as say
from toolkit.cli.places import DATABASE, SERVE_FOLDER
from toolkit.cli.proxy.process import ENDING, REACHED_AT, meaning, proxy_of, run_loop, secrets_of
from toolkit.cli.real_vllm import vllm_home
from toolkit.cli.serve.events import ServeEvents, blast_on
from toolkit.cli.serve.flags import flags_told
from toolkit.cli.serve.preflight import refuse_unfit
from toolkit.cli.stack_read import preset_flags, stack_text
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.proxy.app import Proxy
from toolkit.proxy.cache.sqlite import SqliteCache
from toolkit.proxy.config import Settings, admin_port
from toolkit.proxy.upstream.fingerprint import Fingerprints
from toolkit.serving.control import held
from toolkit.serving.engine_command import LaunchConfig, found, interpreter
from toolkit.serving.gate import TrafficGate
from toolkit.serving.notify import Notify
from toolkit.serving.presets import preset
from toolkit.serving.processes import identity
from toolkit.serving.stack import KEY_VARIABLE, EngineSetting, Stack, changed, drafted, placed, read
from toolkit.serving.supervisor import Outside, StackSupervisor
from toolkit.serving.tiny_model import tiny
from toolkit.sim.presets import PRESETS
from toolkit.units import counted

if TYPE_CHECKING:
    from toolkit.proxy.workers import Workers

TINY_NAME = "tiny"
SECRET_FLAGS = ("hf-token", "ssl-keyfile")
COMMAND_LINE = "the command line"
TAKEN = "somebody does already"
NOT_ALLOWED = "ports below 1024 are not for everybody"


def run_serve(options: Mapping[str, Any]) -> None:
    """Serve until Ctrl-C, SIGTERM or `toolkit serve stop`."""
    stack, missing = _with_vllm(placed(*draft_of(options), is_free), options["vllm"])
    if missing and not options["check"]:
        raise missing[0]
    check_keys(stack)
    if stack.proxy is not None:
        # a missing key is told at once, and not when the proxy opens
        secrets_of(stack.proxy)
        _refuse_taken(stack.proxy)
    if stack.warm.profile is not None:
        profile_from(stack.warm.profile)
    if options["check"]:
        for line in told(stack):
            say(line)
        findings = dict.fromkeys(f"{each.message}. {each.hint}" for each in missing)
        for finding in findings:
            say(f"Finding: {finding}")
        say("This stack is good" + (", but not on this machine as it is" if findings else ""))
        return
    # before anybody copies the environment for an engine
    notify = Notify.from_environment(os.environ)
    allow_open_files()
    occupy_standard_files()

    def read_again() -> Stack:
        draft, where = draft_of(options)
        return _with_vllm(placed(_on_ports_of(stack, draft), where, is_free), options["vllm"])[0]

    sys.exit(run_loop(_serve(stack, notify, read_again)))


# --- what is to be served --------------------------------------------------------------------------------


def draft_of(options: Mapping[str, Any]) -> tuple[Stack, str]:
    """The stack that a file or the command line describes, without its free ports, and what messages call that."""
    target: str | None = options["target"]
    over = _over(options)
    if target is not None and target.endswith(".toml"):
        _refuse_engine_words(options)
        text = stack_text(Path(target))
        return read(text, target, preset_flags, over, {"database": DATABASE}), f"`{target}`"
    if target is None and not options["tiny"] and options["sim"] is None:
        return _of_words(engines_of(options["preset"]), over)
    words = ("preset", "served_name", "gpus")
    engine: dict[str, Any] = {key: options[key] for key in words if options[key] is not None}
    engine["flags"] = flags_told(options["flags"])
    if options["tiny"]:
        engine |= {"kind": "tiny", "name": TINY_NAME}
        engine.setdefault("served_name", TINY_NAME)
    elif options["sim"] is not None:
        engine |= {"kind": "sim", "model": _personality(options["sim"])}
    else:
        engine["model"] = target
    return _of_words([engine], over)


def _on_ports_of(stack: Stack, draft: Stack) -> Stack:
    """A draft with the ports that a running stack was given where none is named."""
    now = {each.name: each for each in stack.engines}
    engines = [
        replace(
            each,
            port=each.port or now[each.name].port,
            spare_port=now[each.name].spare_port if each.spare_port == 0 else each.spare_port,
        )
        if each.name in now
        else each
        for each in draft.engines
    ]
    proxy = draft.proxy
    if proxy is not None and proxy.admin_port is None and stack.proxy is not None:
        proxy = replace(proxy, admin_port=stack.proxy.admin_port)
    return replace(draft, engines=tuple(engines), proxy=proxy)


def _of_words(engines: list[Mapping[str, Any]], over: Mapping[str, Any]) -> tuple[Stack, str]:
    tables = {"folder": SERVE_FOLDER, "database": DATABASE, "engine": engines, **over}
    return drafted(tables, COMMAND_LINE, preset_flags), COMMAND_LINE


def _personality(name: str) -> str:
    """The simulator's of this name: the only engine, so that nothing would ever serve without it."""
    if name not in PRESETS:
        raise ToolkitError(
            f"the simulator has no personality `{name}`",
            "`toolkit sim list` names all of them and what they do",
        )
    return name


def engines_of(name: str) -> list[Mapping[str, Any]]:
    """The engines of a preset that is several."""
    found = preset(name, table("presets"))
    if not found.engines:
        raise ToolkitError(
            f"the preset `{name}` is for a model of yours", f"`toolkit serve MODEL --preset {name}`"
        )
    return list(found.engines)


def _over(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the command line says of the whole stack."""
    over: dict[str, Any] = {}
    if options["folder"] is not None:
        over["folder"] = str(options["folder"])
    if options["database"] is not None:
        over["database"] = options["database"]
    if options["no_preflight"]:
        over["preflight"] = False
    proxy = {key: options[key] for key in ("port", "host") if options[key] is not None}
    return over | ({"proxy": proxy} if proxy else {})


def _refuse_engine_words(options: Mapping[str, Any]) -> None:
    for key in ("preset", "flags", "served_name", "gpus"):
        if options[key]:
            word = {"flags": "set"}.get(key, key.replace("_", "-"))
            raise click.UsageError(f"--{word} belongs to one engine: write it into the stack file")


def is_free(host: str, port: int) -> bool:
    """Whether one can listen there. Raises ToolkitError for an address at which nobody can: each port would look taken."""
    refusal = why_taken(host, port)
    if refusal not in (None, TAKEN, NOT_ALLOWED):
        raise ToolkitError(f"nothing can listen on `{host}`: {refusal}", "E.g., `127.0.0.1`")
    return refusal is None


def why_taken(host: str, port: int) -> str | None:
    """Why nobody can listen there any more; None: one can."""
    try:
        with socket.socket(_family(host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except UnicodeError:
        return "that is no address"
    except OSError as error:
        words = {errno.EADDRINUSE: TAKEN, errno.EACCES: NOT_ALLOWED}
        return words.get(error.errno or 0, (error.strerror or "no reason given").lower())
    return None


def _refuse_taken(proxy: Settings) -> None:
    """Told before the engines start, which takes minutes; the proxy opens its port only after."""
    for key, host, port in (
        ("port", proxy.host, proxy.port),
        ("admin_port", proxy.admin_host, admin_port(proxy)),
    ):
        refusal = why_taken(host, port) if port else None
        if refusal is None:
            continue
        if refusal == TAKEN:
            word = " with --port" if key == "port" else ""
            hint = f"End that, or choose another `{key}`{word}"
        else:
            hint = "Choose another `host`, or a port from 1024 on"
        raise ToolkitError(f"the proxy cannot listen on {host}:{port}: {refusal}", hint)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _with_vllm(stack: Stack, command: str | None) -> tuple[Stack, list[ToolkitError]]:
    """Each engine with a vLLM that is there, and what is said of those for which there is none.

    The one that was named, the PATH's, else where install_vllm.sh puts it.
    """
    engines, missing = [], []
    for each in stack.engines:
        try:
            engines.append(_one_with_vllm(each, command))
        except ToolkitError as error:
            engines.append(each)
            missing.append(error)
    return replace(stack, engines=tuple(engines)), missing


def _one_with_vllm(setting: EngineSetting, command: str | None) -> EngineSetting:
    if setting.kind == "sim":
        return setting
    if command is not None:
        return replace(setting, vllm=str(found(command)))
    try:
        return replace(setting, vllm=str(found(setting.vllm)))
    except ToolkitError:
        if setting.kind != "tiny" or setting.vllm != "vllm":
            raise
    try:
        return replace(setting, vllm=str(vllm_home() / "bin" / "vllm"))
    except ToolkitError as error:
        raise ToolkitError(f"{error.message}, and none on the PATH", error.hint) from error


def check_keys(stack: Stack) -> None:
    """Raise for an engine's key that is missing, or that no header can carry. The keys are never printed."""
    for setting in stack.engines:
        if setting.key_env is None:
            # the variable is vLLM's own: it takes it without being told, and would then answer neither us nor the proxy
            if setting.kind != "sim" and os.environ.get(KEY_VARIABLE):
                raise ToolkitError(
                    f"`{KEY_VARIABLE}` is set, so vLLM will want that key, and engine `{setting.name}` names none",
                    f'Write `key_env = "{KEY_VARIABLE}"` into a stack file, or `unset {KEY_VARIABLE}`',
                )
            continue
        key = os.environ.get(setting.key_env, "").strip()
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ToolkitError(
                f"`{setting.key_env}`, the key of engine `{setting.name}`, is not set, or no header can carry it",
                f"`export {setting.key_env}=...`",
            )


def told(stack: Stack) -> list[str]:
    """What the stack means, in a few lines."""
    lines = []
    for each in stack.engines:
        what = each.model or "a tiny random model"
        by = {"sim": "the simulator", "tiny": f"`{each.vllm}` on the CPU"}.get(
            each.kind, f"`{each.vllm}`"
        )
        spare = "" if each.spare_port is None else f", its successors in turn at {each.spare_port}"
        lines.append(f"Engine {each.name}: {what}, by {by}, at {each.url}{spare}")
    if stack.proxy is not None:
        lines += meaning(stack.proxy)
    return lines


# --- serving ---------------------------------------------------------------------------------------------


class ServedProxy(TrafficGate):
    """The proxy of a stack, which runs in this process; its front workers, where it has some, in theirs."""

    def __init__(self) -> None:
        super().__init__()
        self._opened = contextlib.ExitStack()
        self._served: Proxy | Workers | None = None

    async def open(self, settings: Settings, *, is_others: bool) -> None:
        """Let clients in."""
        if is_others and settings.cache.file is not None:
            await asyncio.to_thread(forget_stored, settings)
            say(
                "Another model or other flags than the last time: what is stored of those is not shown"
            )
        variables, keys = secrets_of(settings)
        self._served = proxy_of(settings, variables, keys, self._opened, primary_here=True)
        try:
            await self._served.start()
        except ToolkitError as error:
            # serve has no such option as `toolkit proxy` has
            hint = error.hint.replace("--admin-port", "the proxy's `admin_port`")
            raise ToolkitError(error.message, hint) from error
        # a port that the system chose is known only now
        port, admin = ports = self._served.ports
        for line in meaning(replace(settings, port=port, admin_port=admin)):
            say(line)
        hosts = settings.host, settings.admin_host
        # an address to ask at, of one that is listened on
        asked = [REACHED_AT.get(each, each) for each in hosts]
        self.url, self.admin_url = (
            f"http://{f'[{host}]' if ':' in host else host}:{port}"
            for host, port in zip(asked, ports, strict=True)
        )
        self.proxy = self._served if isinstance(self._served, Proxy) else self._served.primary

    async def reload(self, settings: Settings) -> None:
        """Take over other settings. Raises ToolkitError, and then nothing has changed."""
        variables, keys = secrets_of(settings)
        assert self._served is not None
        await self._served.reload(settings, variables, keys)

    async def stop(self) -> None:
        """Take no more, end what is under way, and close."""
        try:
            if self._served is not None:
                await self._served.stop()
        finally:
            await asyncio.to_thread(self._opened.close)


def forget_stored(settings: Settings) -> None:
    """Have none of the answers in the file found: the proxy takes that over when it starts."""
    cache = settings.cache
    assert cache.file is not None
    with contextlib.closing(SqliteCache(cache.file, cache.file_bytes)) as file:
        Fingerprints(settings, file=file, changed=lambda: None, event=lambda *_: None).raise_all()


async def _serve(stack: Stack, notify: Notify, read_again: Callable[[], Stack]) -> int:
    folder = Path(stack.folder)
    for line in told(stack)[: len(stack.engines)]:
        say(line)
    with (
        held(folder),
        ServeEvents(stack, json.dumps(_shown(stack))) as events,
        contextlib.ExitStack() as signs,
    ):
        signs.enter_context(waiting_for("Starting"))
        made = None
        for setting in stack.engines:
            if setting.kind == "tiny":
                say("Making a tiny random model, unless it is there")
                made = await tiny(folder / "models", interpreter(found(setting.vllm)))
        launch = LaunchConfig(
            toolkit=TOOLKIT,
            folder=folder,
            tiny_model=made,
            media_hosts=() if stack.proxy is None else stack.proxy.media_hosts,
            warm=stack.warm,
            guard=stack.guard,
            tell=events.add,
            say=say,
            profile=profile_from(stack.warm.profile) if stack.warm.profile else None,
        )
        outside = Outside(
            launch=launch,
            gate=ServedProxy(),
            read=read_again,
            preflight=lambda: refuse_unfit(stack, say),
            changed=lambda setting, words: changed(setting, words, preset_flags, "the swap"),
            blasting=lambda: blast_on(stack.database),
        )
        supervisor = StackSupervisor(stack, outside)
        _listen_to_signals(supervisor, signs)

        def ready(url: str) -> None:
            signs.close()
            events.opened(url)
            default = "" if str(folder) == SERVE_FOLDER else f" --folder {folder}"
            engines = counted(len(stack.engines), "engine")
            say(f"Ready: clients on {url}; {engines}; `toolkit serve status{default}`")
            # the one line of data; nobody need read it, and a stack that serves must not end for that
            with contextlib.suppress(OSError):
                click.echo(url)
            notify.ready(supervisor.in_a_line())

        async with notify.telling(
            supervisor.in_a_line, supervisor.is_well, supervisor.stopping.wait
        ):
            await supervisor.run(ready)
    say("All ended")
    return 0


def _listen_to_signals(supervisor: StackSupervisor, signs: contextlib.ExitStack) -> None:
    loop = asyncio.get_running_loop()
    asked: list[bool] = []

    def end() -> None:
        if asked:
            # each engine's reaper sees that we are gone, and ends its family
            os._exit(INTERRUPTED)
        asked.append(True)
        signs.close()
        say(ENDING)
        signs.enter_context(waiting_for("Ending"))
        supervisor.stopping.set()

    def hang_up() -> None:
        # of one closed terminal its shell tells and then the kernel: the second is nobody's haste
        if not asked:
            end()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    # nohup's own wish is that a closed terminal ends nothing
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, hang_up)


def _shown(stack: Stack) -> dict[str, Any]:
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
        and {
            "host": stack.proxy.host,
            "port": stack.proxy.port,
            "media_hosts": stack.proxy.media_hosts,
        },
    }
