"""`toolkit compare`: before and after, with how sure the difference is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.options import database_option

EXAMPLES = """
Compare two runs of the database, or two hosts of one: is B better than A, worse, or is no
difference shown? A and B are ids as `toolkit runs` lists them, of benches or blasts. Of a run with
several hosts add the host; without, hosts of the same name are compared.

\b
  toolkit compare 3f9c2a7b1d04 8a10b2c3d4e5   before and after
  toolkit compare 3f9c2a7b1d04:alice 3f9c2a7b1d04:bob
      two hosts under the same load
  toolkit compare 3f9c2a7b1d04 8a10b2c3d4e5 --json

Each interval holds the true difference in 95 of 100 cases. It comes from blocks of seconds or of
waves, paired where both runs had the same plan. What is smaller than its width a run cannot show:
load for longer. A bench needs six waves, e.g., 48 requests at concurrency 8, and for a p95 240
answers. Runs with other plans are shown, and named as not comparable. What changes from run to run,
e.g., a clock or a neighbour, no interval knows: repeat a close call.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """The command line of one comparison, fields named as its options."""

    a: str
    b: str
    least: float
    as_json: bool
    database: Path


@click.command("compare", help=EXAMPLES, short_help="Before and after, with confidence intervals.")
@click.argument("a", metavar="A", shell_complete=suggestions.run("bench", "blast"))
@click.argument("b", metavar="B", shell_complete=suggestions.run("bench", "blast"))
@click.option(
    "--least",
    type=click.FloatRange(min=0, max=100),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="A smaller difference is called none.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a metric.")
@database_option
def command(**options: Any) -> None:
    """Compare two runs (the help text is EXAMPLES)."""
    from toolkit.cli.compare.read import pairs_of
    from toolkit.cli.compare.show import show
    from toolkit.cli.waiting import waiting_for
    from toolkit.store import Store
    from toolkit.tuning.compare import compare

    chosen = CompareOptions(**options)
    with waiting_for("Comparing"):
        with Store.open_readonly(chosen.database) as store:
            pairs = pairs_of(store, chosen.a, chosen.b, chosen.database)
        found = [compare(a, b, least_share=chosen.least / 100) for a, b in pairs]
    show(found, as_json=chosen.as_json)
