"""Prometheus for a site: what it scrapes, what it records beforehand, when it alerts. Pure text; nothing is asked or started.

The rules are files of templates/prometheus/, as Prometheus reads them but for a few marks. Engines are scraped in both of their
places, the proxy on its admin's port. Labels: `host` is an engine's name, `slot` its place (vLLM's own `engine` is the rank of data
parallelism); alerts and dashboard go by them and by the jobs' names.
"""

from collections import defaultdict

from toolkit.deploy.flags import USUAL_MAX_NUM_SEQS, number
from toolkit.deploy.render import Kit, Plain, Rendered, address, render, shell
from toolkit.deploy.site import Site

PORT = 9090
"""Prometheus' own."""


def kit(site: Site) -> Kit:
    """Configuration and rules."""
    # Engines without a key first: a key's file is named once for a job, and a job's name can't stand twice
    jobs: dict[str | None, list[dict[str, str | None]]] = {}
    for engine in sorted(site.engines, key=lambda each: each.key_env or ""):
        places: list[tuple[int, str | None]] = [(engine.port, None)]
        if engine.spare_port:
            # as the proxy calls the places of one engine
            places = [(engine.port, "a"), (engine.spare_port, "b")]
        jobs.setdefault(engine.key_env, []).extend(
            {
                "at": address(engine.host, port),
                "host": engine.name,
                "slot": slot,
                "team": engine.team,
            }
            for port, slot in places
        )
    configuration = render(
        "prometheus/prometheus.yml.j2",
        "yaml",
        site=site,
        jobs=jobs,
        proxy=site.proxy and address(site.proxy.admin_host, site.proxy.admin_port),
    )
    alerts = render("prometheus/alerts.yml", "promql", site=site, batches=_batches(site))
    recording = render("prometheus/recording.yml", "promql", site=site)
    steps = [
        f"Put the key into keys/{key}, beside prometheus.yml, readable for Prometheus alone:"
        f" `mkdir -p keys/ && (umask 077; printenv {shell(key)} > {shell(f'keys/{key}')})`."
        " vLLM itself asks none for /metrics: where nothing stands before it, take `authorization` out."
        for key in jobs
        if key is not None
    ]
    listen = address(site.listen, PORT)
    return Kit(
        files=(
            Rendered(path="prometheus.yml", text=configuration),
            Rendered(path="rules/recording.yml", text=recording),
            Rendered(path="rules/alerts.yml", text=alerts),
        ),
        next_steps=(
            *steps,
            "Check it: `promtool check config prometheus.yml`",
            f"Start it: `prometheus --config.file=prometheus.yml --web.listen-address={listen}`",
            "Tell it where alerts go (`alerting`), and put the dashboard beside it: `toolkit deploy grafana`",
        ),
    )


def _batches(site: Site) -> list[tuple[Plain, int]]:
    """Engines, as a PromQL selector, and their batch: each that the stack names, and the usual one for all others, whoever adds them."""
    alike: dict[int, list[str]] = defaultdict(list)
    for engine in site.engines:
        if size := number(engine.arguments, "--max-num-seqs"):
            alike[size].append(engine.name)
    # names of engines are DNS labels, and so hold nothing that a regular expression would read
    pairs = [(Plain(f'{{host=~"{"|".join(alike[size])}"}}'), size) for size in sorted(alike)]
    named = [
        each.name for each in site.engines if any(each.name in names for names in alike.values())
    ]
    others = Plain(f'{{host!~"{"|".join(named)}"}}' if named else "")
    return [*pairs, (others, USUAL_MAX_NUM_SEQS)]
