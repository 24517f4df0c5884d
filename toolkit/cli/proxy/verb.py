"""`toolkit proxy`: a response cache, queues and routing in front of one or several vLLM servers."""

from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.options import DURATION, SIZE

EXAMPLES = """
Stand between clients and vLLM: answer what was asked before from memory, ask once what many ask
at the same time, share slots and queues fairly between teams, choose the least loaded server,
and tell what came of each request. By default every complete answer is stored and given again to
whoever asks the same, sampled ones included; --policy declared stores only what was asked with
temperature 0 or a seed.

\b
  toolkit proxy --upstream http://127.0.0.1:8001 --port 8000
  toolkit proxy --upstream http://gpu1:8000 --upstream http://gpu2:8000 \\
      --concurrency 64
  toolkit proxy --config proxy.toml        teams, keys, limits: see the README
  toolkit proxy --upstream http://127.0.0.1:8001 --policy declared --ttl 10m \\
      --log requests.jsonl
  toolkit proxy --config proxy.toml --check
      read the settings, say what they mean, and end
  toolkit workload --from requests.jsonl   what follows from its log
  curl http://127.0.0.1:8002/metrics
      what it counts, on the next free port
"""

POLICIES = ("all", "declared", "off")


class Replay(click.ParamType[object]):
    """`instant`, or tokens a second."""

    name = "instant|N"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Read `40` as 40 tokens a second."""
        if isinstance(value, float) or value == "instant":
            return value
        try:
            speed = float(str(value))
        except ValueError:
            speed = 0.0
        if not 0 < speed < float("inf"):
            self.fail(
                f"`{value}` is no pace; write `instant` or tokens a second, e.g., `40`", param, ctx
            )
        return speed


@click.command(
    "proxy", help=EXAMPLES, short_help="Answer repeats from a cache; queue and route the rest."
)
@click.option(
    "--config",
    metavar="FILE",
    shell_complete=suggestions.file,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings in TOML; flags go over it.",
)
@click.option(
    "--upstream",
    metavar="[NAME=]URL",
    multiple=True,
    help="A server that answers what is not stored; may be repeated.",
)
@click.option("--port", type=click.IntRange(0, 65535), help="For clients.  [default: 8000]")
@click.option("--host", metavar="ADDRESS", help="Where clients are taken.  [default: 127.0.0.1]")
@click.option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    help="For /metrics, /state, /purge, /explain, /drain, on 127.0.0.1.  [default: the next one]",
)
@click.option("--policy", type=click.Choice(POLICIES), help="What is stored.  [default: all]")
@click.option("--ttl", type=DURATION, help="How long an answer is given again.  [default: 1h]")
@click.option("--memory", type=SIZE, help="For answers in memory.  [default: 256MiB]")
@click.option(
    "--cache-file",
    metavar="FILE",
    shell_complete=suggestions.file,
    help="Answers that survive a restart.  [default: data/proxy-cache.db]",
)
@click.option("--no-cache-file", is_flag=True, help="Keep answers in memory only.")
@click.option(
    "--replay",
    type=Replay(),
    help="How fast a stored stream is sent: at once, or N tokens/s.  [default: instant]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    help="Requests upstream at a time.  [default: no limit]",
)
@click.option("--queue", type=click.IntRange(0), help="Most that wait.  [default: 1024]")
@click.option("--wait", type=DURATION, help="Longest wait for a slot.  [default: 30s]")
@click.option(
    "--log",
    metavar="FILE",
    shell_complete=suggestions.file,
    help="A JSON line for each request; `-`: standard output.",
)
@click.option(
    "--db",
    "database",
    metavar="FILE",
    shell_complete=suggestions.file,
    envvar="TOOLKIT_PROXY_DB",
    show_envvar=True,
    help="Store each request in this database, too, as `toolkit capture` does.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    help="Processes that answer hits; one of them makes all calls upstream.  [default: 1]",
)
@click.option("--check", is_flag=True, help="Read the settings, say what they mean, and end.")
def command(config: Path | None, *, check: bool, **options: Any) -> None:
    """Run a proxy (the help text is EXAMPLES)."""
    if options["cache_file"] and options["no_cache_file"]:
        raise click.UsageError("--cache-file names what --no-cache-file does without")
    from toolkit.cli.proxy.run import run_proxy, settings_of

    settings = settings_of(config, options)
    run_proxy(settings, only_check=check)
