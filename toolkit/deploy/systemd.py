"""A systemd service for what `toolkit serve` runs: started after boot, ended in order, restarted when it hangs. Pure text."""

from collections.abc import Mapping

from toolkit.deploy.containers import fetches_media, fetches_weights
from toolkit.deploy.site import Kit, Rendered, Site
from toolkit.deploy.templating import render
from toolkit.errors import ToolkitError

CONFIGURATION = "/etc/toolkit"
DRAIN_S = 30.0
"""As `serve` waits where no proxy says how long."""
MORE_S = 60.0
"""For what follows: a GPU's memory to become free (30 s at most), what is to be written, and killing what does not end."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNSAID = "127.0.0.1"
"""Where clients are taken if --listen says nothing."""
HOMES = ("home", "root")
"""Top folders that `ProtectHome=yes` hides from a service (systemd.exec(5))."""


def kit(site: Site, templates: Mapping[str, str]) -> Kit:
    """What systemd needs of a site."""
    _refuse_strange(site.command)
    unit, example = f"toolkit-{site.name}.service", f"{site.name}.env.example"
    words = {
        "site": site,
        "unit": unit,
        "folder": f"toolkit-{site.name}",
        # not said: as the stack file has it
        "host": site.listen if site.proxy and site.listen != UNSAID else None,
        "stack_file": f"{CONFIGURATION}/{site.name}.toml",
        "env_file": f"{CONFIGURATION}/{site.name}.env",
        "variables": site.variables,
        "path": f"{site.command.rpartition('/')[0]}:{SYSTEM_PATH}",
        "stop_s": round(stop_s(site)),
        "stop_why": _stop_why(site),
        "writes": site.writes,
        "way_out": _way_out(site),
        "example": example,
        "place": f"{CONFIGURATION}/{site.name}.env",
    }
    service = render(templates["systemd.service.j2"], language="systemd", **words)
    env = render(templates["systemd.env.j2"], language="systemd", **words)
    files = (
        Rendered(path=unit, text=service),
        Rendered(path=f"{site.name}.toml", text=site.stack_text),
        # an example: filled in it is a secret, and nobody's second `deploy` is to write over it
        Rendered(path=example, text=env, mode=0o600),
    )
    return Kit(files=files, next_steps=_next_steps(site, unit, example))


def stop_s(site: Site) -> float:
    """From the wish to end until everything that is left is killed."""
    return _drain_s(site) + site.stop_s + MORE_S


def _refuse_strange(command: str) -> None:
    strange = sorted(set(command) & set("\"'\\$"))
    if strange:
        raise ToolkitError(
            f"`{command}` has a {strange[0]} in its path, and systemd starts no such command",
            "Install the toolkit elsewhere, e.g., below /opt",
        )


def _drain_s(site: Site) -> float:
    return site.proxy.drain_s if site.proxy is not None else DRAIN_S


def _stop_why(site: Site) -> str:
    drained = f"{_drain_s(site):g} s in which answers under way are finished"
    return f"{drained}, {site.stop_s:g} s for engines to end, and {MORE_S:g} s for their memory"


def _next_steps(site: Site, unit: str, example: str) -> tuple[str, ...]:
    place = f"{CONFIGURATION}/{site.name}"
    steps = [
        f"sudo install -D -m 0644 {site.name}.toml {place}.toml",
        # filled in it is not to be emptied by the next `deploy`
        f"sudo test -e {place}.env || sudo install -m 0600 {example} {place}.env   # and fill it in",
        f"sudo cp {unit} /etc/systemd/system/ && sudo systemctl daemon-reload",
        f"sudo systemctl enable {unit} && sudo systemctl restart {unit}   # back once clients are let in",
        f"systemctl status {unit}; journalctl -fu {unit}",
    ]
    if not site.variables:
        del steps[1]
    steps.append(
        f"Relative paths in {site.name}.toml are looked for below /var/lib/toolkit-{site.name}"
    )
    if site.proxy is None and site.listen != UNSAID:
        steps.append(
            f"Engines are asked without a proxy: for {site.listen} set each engine's `host`"
        )
    if _is_open(site):
        steps += site.keyless
    steps += [_moved(each) for each in _in_homes(site)]
    steps += [
        f"`{each}` is written to: it must belong to the service's user, so name one (`systemctl edit {unit}`)"
        for each in site.writes
    ]
    return tuple(steps)


def _way_out(site: Site) -> str | None:
    """Why it must reach other machines, or be reached; None: it need not."""
    proxy = site.proxy
    if _is_open(site):
        return "clients of other machines are taken"
    if any(map(fetches_weights, site.engines)):
        return "models come from Hugging Face: with their directories in the stack file, and deployed again, it is shut"
    if any(each.gpu_count > 1 for each in site.engines):
        return "NCCL's processes find each other by this machine's own address, which is not the loopback"
    if any(fetches_media(each, site) for each in site.engines):
        return "engines fetch what requests name"
    if proxy is not None and (proxy.asks_others or proxy.redis_env is not None):
        return "the proxy asks other machines"
    return None


def _is_open(site: Site) -> bool:
    """Clients of other machines are taken: by --listen, else by the stack file."""
    if site.proxy is None or site.listen != UNSAID:
        return site.is_open
    return site.proxy.is_open


def _in_homes(site: Site) -> list[str]:
    """What lies where the service's user may not look."""
    paths = [site.command, *(each.model for each in site.engines)]
    return [
        each
        for each in dict.fromkeys(paths)
        if each.startswith("/") and each.split("/")[1] in HOMES
    ]


def _moved(path: str) -> str:
    return (
        f"`{path}` lies in a home, where the service's user may not look: move it, e.g., to /opt, or name your own user"
        " as the unit says"
    )
