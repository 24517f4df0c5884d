"""A systemd service for what `toolkit serve` runs: started after boot, ended in order, restarted when it hangs. Pure text."""

from pathlib import PurePosixPath

from toolkit.deploy.containers import fetches_media, fetches_weights
from toolkit.deploy.render import Kit, Rendered, render
from toolkit.deploy.site import Site
from toolkit.errors import ToolkitError

CONFIGURATION = "/etc/toolkit"
DRAIN_S = 30.0
"""As `serve` waits where no proxy says how long."""
MORE_S = 60.0
"""For what follows: a GPU's memory to become free (30 s at most), what is to be written, and killing what does not end."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNSAID = "127.0.0.1"
"""Where clients are taken if --listen says nothing."""


def kit(site: Site) -> Kit:
    """What systemd needs of a site. Raises ToolkitError."""
    if strange := sorted(set(site.command) & set("\"'\\$")):
        raise ToolkitError(
            f"`{site.command}` has a {strange[0]} in its path, and systemd starts no such command",
            "Install the toolkit elsewhere, e.g., below /opt",
        )
    proxy = site.proxy
    # by --listen, else by the stack file
    is_open = site.is_open if proxy is None or site.listen != UNSAID else proxy.is_open
    drain_s = DRAIN_S if proxy is None else proxy.drain_s
    unit, example = f"toolkit-{site.name}.service", f"{site.name}.env.example"
    place = f"{CONFIGURATION}/{site.name}"
    words = {
        "site": site,
        "unit": unit,
        "folder": f"toolkit-{site.name}",
        # not said: as the stack file has it
        "host": site.listen if proxy and site.listen != UNSAID else None,
        "stack_file": f"{place}.toml",
        "env_file": f"{place}.env",
        "variables": site.variables,
        "path": f"{site.command.rpartition('/')[0]}:{SYSTEM_PATH}",
        # from the wish to end until everything that is left is killed
        "stop_s": round(drain_s + site.stop_s + MORE_S),
        "stop_why": f"{drain_s:g} s in which answers under way are finished, {site.stop_s:g} s for engines to end,"
        f" and {MORE_S:g} s for their memory",
        "writes": site.writes,
        "way_out": _way_out(site, is_open=is_open),
        "example": example,
    }
    files = (
        Rendered(path=unit, text=render("systemd.service.j2", "systemd", **words)),
        Rendered(path=f"{site.name}.toml", text=site.stack_text),
        # an example: filled in it is a secret, and nobody's second `deploy` is to write over it
        Rendered(path=example, text=render("systemd.env.j2", "systemd", **words), mode=0o600),
    )
    steps = [f"sudo install -D -m 0644 {site.name}.toml {place}.toml"]
    if site.variables:
        # filled in it is not to be emptied by the next `deploy`
        steps.append(
            f"sudo test -e {place}.env || sudo install -m 0600 {example} {place}.env   # and fill it in"
        )
    steps += [
        f"sudo cp {unit} /etc/systemd/system/ && sudo systemctl daemon-reload",
        f"sudo systemctl enable {unit} && sudo systemctl restart {unit}   # back once clients are let in",
        f"systemctl status {unit}; journalctl -fu {unit}",
        f"Relative paths in {site.name}.toml are looked for below /var/lib/toolkit-{site.name}",
    ]
    if proxy is None and site.listen != UNSAID:
        steps.append(
            f"Engines are asked without a proxy: for {site.listen} set each engine's `host`"
        )
    if is_open:
        steps += site.keyless
    # `ProtectHome=yes` hides the users' and the administrator's homes from a service (systemd.exec(5))
    steps += [
        f"`{each}` lies in a home, where the service's user may not look: move it, e.g., to /opt, or name your own user"
        " as the unit says"
        for each in dict.fromkeys([site.command, *(engine.model for engine in site.engines)])
        if PurePosixPath(each).parts[:2] in (("/", "home"), ("/", "root"))
    ]
    steps += [
        f"`{each}` is written to: it must belong to the service's user, so name one (`systemctl edit {unit}`)"
        for each in site.writes
    ]
    return Kit(files=files, next_steps=tuple(steps))


def _way_out(site: Site, *, is_open: bool) -> str | None:
    """Why it must reach other machines, or be reached; None: it need not."""
    proxy = site.proxy
    if is_open:
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
