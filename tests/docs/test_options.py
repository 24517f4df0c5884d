"""README's tables of options are those that click knows; every verb and every name of the catalog is told of."""

import re
import tomllib

import click
import pytest
from support.command_lines import every_command
from support.option_tables import with_tables
from support.readme import README, ROOT, blocks, prose, section

from toolkit.bench.verdicts.judgement import RULES
from toolkit.cli import GROUPS, VERBS
from toolkit.sim.presets import PRESETS

CATALOG = ROOT / "toolkit" / "catalog"
TEXT = README.read_text()
CODE = " ".join(re.findall(r"`[^`\n]+`", prose()))


def test_the_tables_are_as_click_has_them() -> None:
    assert with_tables(TEXT) == TEXT, "run `python tests/docs/write_options.py`"


@pytest.mark.parametrize(("name", "command"), list(every_command()))
def test_every_option_of_every_command_is_told(name: str, command: click.Command) -> None:
    # by another way than the tables were made: the words that click's parser takes
    table = TEXT.split(f"<code>{name}</code>", 1)[-1].split("</details>", 1)[0]
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    words = [word for param in shown for word in (*param.opts, *param.secondary_opts)]
    flags = [word for word in words if word.startswith("-") and word != "--version"]
    assert [flag for flag in flags if f"{flag}" not in table] == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_on_the_map_and_shown_at_work(verb: str) -> None:
    assert f"`toolkit {verb}" in section("## The verbs"), "no row in the table of verbs"
    assert any(
        re.search(rf"\btoolkit {verb}\b", command) for each in blocks() for command in each.commands
    ), "no block calls it"


def test_the_map_has_the_rooms_and_their_verbs_in_the_order_of_help() -> None:
    # `    ROOM   verb  verb   what it is`; a row without a name goes on with the one above
    rows = re.findall(r"^ {4}([A-Z]+| ) *(.*?)   ", section("## The verbs"), re.MULTILINE)
    told: dict[str, list[str]] = {}
    for room, verbs in rows:
        told.setdefault(room.strip() or list(told)[-1], []).extend(verbs.split())
    assert told == {group.upper(): list(verbs) for group, verbs in GROUPS.items()}


def test_every_simulated_server_is_named() -> None:
    missing = [name for name in PRESETS if f"`{name}`" not in CODE]
    assert missing == []


@pytest.mark.parametrize("folder", ["profiles", "sweeps"])
def test_every_profile_and_recipe_of_the_catalog_is_named(folder: str) -> None:
    names = [path.stem for path in (CATALOG / folder).glob("*.toml")]
    assert names
    assert [name for name in names if f"`{name}`" not in CODE] == []


def test_every_preset_is_named() -> None:
    names = tomllib.loads((CATALOG / "presets.toml").read_text())
    assert [name for name in names if f"`{name}`" not in CODE] == []


def test_every_bottleneck_that_diagnose_knows_is_told() -> None:
    rows = tomllib.loads((CATALOG / "bottlenecks.toml").read_text())["bottlenecks"]
    assert {row["code"] for row in rows if f"`{row['code']}`" not in CODE} == set()


@pytest.mark.parametrize("folder", ["scout", "bench", "board"])
def test_every_code_of_a_finding_or_a_verdict_is_told(folder: str) -> None:
    sources = (ROOT / "toolkit" / folder).rglob("*.py")
    sign = r'yield "([a-z_]+)", ' if folder == "scout" else r'code="([a-z_]+)"'
    codes = {code for file in sources for code in re.findall(sign, file.read_text())}
    assert codes or folder == "board"
    untold = {code for code in codes if f"`{code}`" not in CODE}
    assert not untold, f"README's tables need a row for each of {untold}"


def test_every_verdict_of_a_rule_has_a_row() -> None:
    missing = [code for code in RULES if f"\n| `{code}` | " not in TEXT]
    assert not missing, f"README's table of verdicts needs a row for each of {missing}"


@pytest.mark.parametrize(("letter", "lessons"), [("G", 15), ("P", 8), ("L", 5)])
def test_every_lesson_of_the_three_articles_is_on_the_checklist_with_a_command(
    letter: str, lessons: int
) -> None:
    rows = section("## The lessons as a checklist").splitlines()
    cells = [[cell.strip() for cell in row.split("|")] for row in rows if row.startswith("| ")]
    named = {word for row in cells if "`" in row[4] for word in row[3].split()}
    assert {f"{letter}{number}" for number in range(1, lessons + 1)} - named == set()


def test_every_number_that_is_ranked_is_defined() -> None:
    defined = section("## How every number is defined")
    for word in ("TTFT", "E2E", "TPOT", "ITL", "RPS", "ok", "error rate", "hit ratio", "goodput"):
        assert f"\n| {word} |" in defined, word
