"""How `toolkit bench` shows results as JSON lines, and draws a sweep's picture; `table` shows the same as tables."""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from toolkit.bench.health import Fitness
from toolkit.bench.result import Result
from toolkit.cli.output import print_json
from toolkit.errors import ToolkitError


class ResultShow(ABC):
    """Shows the results of one run on standard output."""

    @abstractmethod
    def results(self, told: Sequence[Result], fitness: Fitness) -> None:
        """Show every host."""

    def chart(self, told: Sequence[Result], path: Path) -> None:
        """Draw a sweep's picture and say where it is."""
        # matplotlib tells of a home that it cannot write to and of odd lines in a matplotlibrc, and it fails
        # to load where MPLBACKEND names none that it knows: nothing of that changes the picture
        logging.getLogger("matplotlib").setLevel(logging.CRITICAL)
        os.environ.pop("MPLBACKEND", None)
        try:
            from toolkit.bench.chart import draw

            path.parent.mkdir(parents=True, exist_ok=True)
            draw(told, path)
        except OSError as error:
            raise unwritable(path, error) from error
        click.echo(f"Picture: {path}", err=True)


class JsonResults(ResultShow):
    """Prints one object a host; a sweep adds its levels."""

    def results(self, told: Sequence[Result], fitness: Fitness) -> None:
        """Print them in the order of the hosts file."""
        for each in told:
            record = asdict(each.summary)
            if each.rungs:
                record |= {
                    "levels": [asdict(rung) for rung in each.rungs],
                    "best_concurrency": each.best_concurrency,
                    "knee_concurrency": each.knee_concurrency,
                }
            print_json(record)
        if not fitness.ok:
            click.echo(client_warning(fitness), err=True)


def unwritable(path: Path, error: OSError) -> ToolkitError:
    """Why there is no picture."""
    reason = (error.strerror or str(error) or "no reason given").lower()
    return ToolkitError(
        f"the picture `{path}` cannot be written: {reason}", "Give another file: `--chart`"
    )


def client_warning(fitness: Fitness) -> str:
    """Say that the figures are this machine's."""
    return (
        f"Warning: this machine was the limit: {fitness.why}. The figures describe it as much as "
        "the hosts; use fewer hosts or requests at once, or a quieter machine"
    )
