"""`toolkit plan` as a user calls it."""

import json
from typing import Any

from click.testing import CliRunner, Result

from toolkit.cli import main


def toolkit(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, [*words], input=stdin, catch_exceptions=False)


def said(*words: str, stdin: str | None = None) -> str:
    """What a plan that goes well prints, as one line: where lines end depends on the screen."""
    result = toolkit("plan", *words, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def objects(*words: str, stdin: str | None = None) -> list[dict[str, Any]]:
    result = toolkit("plan", "--json", *words, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def refused(*words: str, stdin: str | None = None) -> tuple[int, str]:
    """Exit code and message of one that does not go well."""
    result = toolkit("plan", *words, stdin=stdin)
    assert result.exit_code != 0
    assert result.stdout == ""
    return result.exit_code, result.stderr
