"""How `toolkit preflight` looks, mends and shows: a table and commands to paste, or JSON."""

from dataclasses import asdict

import click

from toolkit.cli.output import print_json
from toolkit.cli.preflight.needs import needs_of
from toolkit.cli.preflight.options import Options
from toolkit.cli.waiting import waiting_for
from toolkit.serving.fit.checks import Check, checks
from toolkit.serving.fit.fixes import Repair, repairs
from toolkit.serving.fit.machine import look
from toolkit.serving.fit.needs import Needs

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
UNKNOWN_START = "unknown: "


def show(options: Options) -> tuple[Check, ...]:
    """Look, mend if asked, and print what was found."""
    needs = needs_of(options)
    with waiting_for("Looking"):
        facts = look(needs)
    found = checks(facts, needs)
    done: tuple[Repair, ...] = ()
    if options.fix:
        with waiting_for("Fixing"):
            done = repairs(found, facts, needs)
            again = checks(look(needs), needs)
        # the shell's limit of open files stays as it is, whatever this process lifts for itself
        found = (found[0], *again[1:])
    if options.as_json:
        _print_json(found, done)
    else:
        _print_table(found, needs)
    for each in done:
        click.echo(f"{'Fixed' if each.done else 'Not fixed'}: {each.check}: {each.text}", err=True)
    return found


def _print_json(found: tuple[Check, ...], done: tuple[Repair, ...]) -> None:
    mended = {each.check: each for each in done}
    for check in found:
        repair = mended.get(check.check)
        told = {} if repair is None else {"fixed": repair.done, "repair": repair.text}
        print_json(asdict(check) | told)


def _print_table(found: tuple[Check, ...], needs: Needs) -> None:
    from rich.text import Text

    from toolkit.cli.tables import Column, fit_table, screen

    columns = (
        Column(title=""),
        Column(title="check"),
        Column(title="what was found, and why it matters"),
    )
    rows = [
        (Text(check.status, style=COLOURS[check.status]), check.check, check.why) for check in found
    ]
    console = screen()
    console.print(fit_table(columns, rows, console))
    console.print()
    _print_fixes(found)
    click.echo(conclusion(found, needs))


def _print_fixes(found: tuple[Check, ...]) -> None:
    """Commands stand alone on their lines, whole, so that they can be pasted."""
    broken = [check for check in found if check.status != "ok" and check.fix]
    if broken:
        click.echo("To fix it, paste:\n")
    for check in broken:
        click.echo(f"  # {check.check}\n  {check.fix}")
    if broken:
        click.echo()


def conclusion(found: tuple[Check, ...], needs: Needs) -> str:
    """One sentence at the end."""
    counts = {state: sum(check.status == state for check in found) for state in COLOURS}
    told = f"{counts['ok']} ok, {counts['warn']} doubtful, {counts['fail']} failed"
    what = needs.model or "a model"
    if counts["fail"]:
        return f"{told}: not fit to serve {what}."
    return f"{told}: fit to serve {what} to {needs.users:,} users."
