"""`toolkit compare`: before and after, with how sure the difference is."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli.help_page import Command
from toolkit.cli.named_run import chosen_run, measured_hosts
from toolkit.cli.options import database_option, run_word
from toolkit.cli.output import print_json, say
from toolkit.cli.places import command_on
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.records import Run
    from toolkit.store import Store
    from toolkit.tuning.compare import ComparedMetric, Comparison


@click.command("compare", cls=Command, short_help="Before and after, with confidence intervals.")
@click.argument("a", metavar="A", type=run_word("bench", "blast"))
@click.argument("b", metavar="B", type=run_word("bench", "blast"))
@click.option(
    "--least",
    type=click.FloatRange(min=0, max=100),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="Differences below this count as none.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per metric.")
@database_option
def command(a: str, b: str, least: float, as_json: bool, database: Path) -> None:
    """Compare two runs of the database, or two hosts of one: is B better than A, worse, or is no difference shown? A and
    B are ids as `toolkit runs` lists them, of benches or blasts. Of a run with several hosts add the host; without, hosts
    of the same name are compared.

    \b
      toolkit compare 3f9c2a7b1d04 8a10b2c3d4e5   before and after
      toolkit compare 3f9c2a7b1d04:alice 3f9c2a7b1d04:bob
          two hosts under the same load
      toolkit compare 3f9c2a7b1d04 8a10b2c3d4e5 --json

    \f
    Each interval holds the true difference in 95 of 100 cases. It comes from blocks of seconds or of waves, paired where
    both runs had the same plan. A run cannot show what is smaller than its width: load for longer. A bench needs six
    waves, e.g., 48 requests at concurrency 8, and for a p95 240 answers. Runs with other plans are shown, and named as
    not comparable. No interval covers what changes from run to run, e.g., a GPU's clock: repeat a close result.
    """
    from toolkit.store import Store
    from toolkit.tuning.compare import compare, side_of

    with waiting_for("Comparing"):
        with Store.open_readonly(database) as store:
            before, after = _named(store, a, database), _named(store, b, database)
            by_name = {name: (run, name) for run, name in after}
            pairs = [(one, by_name[one[1]]) for one in before if one[1] in by_name]
            if len(before) == len(after) == 1:
                if before == after:
                    raise ToolkitError(
                        f"`{a}` and `{b}` are the same", "Name two runs, or two hosts of one"
                    )
                pairs = [(before[0], after[0])]
            elif not pairs or 1 in (len(before), len(after)) or before == after:
                several = before if len(before) > 1 else after
                words = [f"{run.id}:{name}" for run, name in several[:5]]
                hint = f"Name one: {', '.join(f'`{word}`' for word in words)}"
                if before == after:
                    hint = f"Name two of its hosts: `{command_on(database, 'compare', *words[:2])}`"
                raise ToolkitError(f"which hosts of `{a}` and `{b}` to compare is not clear", hint)
            sides = [(side_of(store, *one), side_of(store, *other)) for one, other in pairs]
        found = [compare(one, other, least_share=least / 100) for one, other in sides]

    for index, each in enumerate(found):
        if as_json:
            about = {
                "run_a": each.a.run.id,
                "host_a": each.a.name,
                "run_b": each.b.run.id,
                "host_b": each.b.name,
                "comparable": each.comparable,
                "not_comparable": list(each.not_comparable),
                "paired": each.paired,
                "notes": list(each.notes),
            }
            for row in each.rows:
                print_json(asdict(row) | about)
        else:
            if index:
                click.echo()
            _print_table(each)


def _named(store: "Store", word: str, database: Path) -> "list[tuple[Run, str]]":
    """The hosts of RUN, or the one of RUN:HOST, each with its run."""
    from toolkit.tuning.compare import PLAN

    run_id, _, name = word.partition(":")
    run = chosen_run(store, run_id, database)
    if run.verb not in PLAN:
        raise ToolkitError(
            f"`{run.id}` is a run of `{run.verb}`, and measured no servers",
            "Compare runs of `bench` or `blast`; `toolkit runs` lists them",
        )
    known = measured_hosts(store, run)
    if not known:
        raise ToolkitError(f"run `{run.id}` has measured nothing", "`toolkit runs` lists all")
    if name and name not in known:
        raise ToolkitError(
            f"`{name}` is no host of run `{run.id}`", f"Its hosts: {', '.join(known)}"
        )
    return [(run, each) for each in ([name] if name else known)]


def _print_table(found: "Comparison") -> None:
    """Both sides, a row for each metric, and a sentence of what to take home."""
    from toolkit.report.tables import Column, screen
    from toolkit.tuning.figures import figure, metric

    def change(row: "ComparedMetric", difference: float | None) -> str:
        """A difference in per cent of A's figure; of an error rate in points, and where A's is 0 in its own unit."""
        if difference is None:
            return "-"
        if metric(row.metric).is_share:
            return f"{100 * difference:+.2f} points"
        if not row.a:
            return ("-" if difference < 0 else "+") + figure(row.metric, abs(difference))
        return f"{difference / row.a:+.1%}"

    for letter, side in (("A", found.a), ("B", found.b)):
        click.echo(f"{letter}: {side.name} in run {side.run.id} ({side.run.verb})")
    for reason in found.not_comparable:
        say(f"Not comparable: {reason}")
    for note in found.notes:
        say(f"Note: {note}")
    click.echo()
    columns = [
        Column("metric", narrowest=8),
        *(Column(title, right=True) for title in ("A", "B", "change")),
        Column("95 % interval", right=True, spare=1, narrowest=16),
        Column("B is", widest=60, narrowest=20),
    ]
    rows = [
        [
            metric(row.metric).title,
            figure(row.metric, row.a),
            figure(row.metric, row.b),
            change(row, row.difference),
            "-" if row.low is None else f"{change(row, row.low)} to {change(row, row.high)}",
            row.why or row.verdict,
        ]
        for row in found.rows
    ]
    screen().table(columns, rows)

    parts = []
    for verdict in ("better", "worse"):
        names = [metric(row.metric).title for row in found.rows if row.verdict == verdict]
        if names:
            parts.append(f"{verdict} in {', '.join(names)}")
    summary = "B is " + "; ".join(parts) if parts else "No difference shown"
    blocks = max((row.blocks or 0 for row in found.rows), default=0)
    if not found.comparable:
        say(f"{summary}; but the two are not comparable")
    elif blocks:
        how = "paired blocks" if found.paired else "blocks, each side on its own"
        say(f"{summary}; 95 % sure each, from up to {blocks} {how}")
    else:
        say(f"{summary}: too little data")
