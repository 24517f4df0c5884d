"""Every verb has a page that Sphinx fills from click, and every name of the catalog stands in the manual."""

import importlib
import re
import tomllib

import click
import pytest
from support.manual import MANUAL, PAGES, ROOT, blocks, prose, section

from toolkit.bench.verdicts.judgement import RULES
from toolkit.cli import GROUPS, VERBS, main
from toolkit.cli.exit_codes import FAILED, INTERRUPTED, WORKED
from toolkit.hosts import KEYS
from toolkit.sim.presets import PRESETS

CATALOG = ROOT / "toolkit" / "catalog"
CODE = " ".join(word for page in MANUAL for word in re.findall(r"`[^`\n]+`", prose(ROOT / page)))
PAGE = "docs/reference/verbs/{}.md"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_page_made_of_its_own_command(verb: str) -> None:
    text = (ROOT / PAGE.format(verb)).read_text()
    found = re.search(
        r"^\.\. click:: ([\w.]+):(\w+)\n   :prog: (.+)\n   :nested: full$", text, re.MULTILINE
    )
    assert found, "no directive of sphinx-click"
    command = getattr(importlib.import_module(found[1]), found[2])
    assert command is main.get_command(click.Context(main), verb)
    assert found[3] == f"toolkit {verb}"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_in_readme_and_shown_at_work(verb: str) -> None:
    assert f"`toolkit {verb}" in section("README.md", "## The verbs"), (
        "no row in the table of verbs"
    )
    assert any(
        re.search(rf"\btoolkit {verb}\b", command)
        for page in PAGES
        for each in blocks(page)
        for command in each.commands
    ), "no block calls it"


def test_readmes_table_has_the_groups_and_their_verbs_in_the_order_of_help() -> None:
    rows = re.findall(
        r"^\| (?:\*\*(\w+)\*\*|`toolkit (\w+))", section("README.md", "## The verbs"), re.MULTILINE
    )
    told: dict[str, list[str]] = {}
    for group, verb in rows:
        if group:
            told[group] = []
        else:
            told[list(told)[-1]].append(verb)
    assert told == {group: list(verbs) for group, verbs in GROUPS.items()}


def test_the_manual_turns_the_verbs_pages_in_the_order_of_help() -> None:
    pages = [PAGE.format(verb) for verb in VERBS]
    assert [page for page in MANUAL if page in pages] == pages


def test_every_option_of_the_hosts_file_and_every_exit_code_has_a_row() -> None:
    hosts = (ROOT / "docs/reference/hosts-file.md").read_text()
    codes = (ROOT / "docs/reference/exit-codes.md").read_text()
    assert re.findall(r"^\| `(\w+)=` \|", hosts, re.MULTILINE) == list(KEYS)
    wrong_command_line = click.UsageError.exit_code
    expected = [WORKED, FAILED, wrong_command_line, INTERRUPTED]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", codes, re.MULTILINE)] == expected


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
    assert not untold, f"the manual's tables need a row for each of {untold}"


def test_every_verdict_of_a_rule_has_a_row() -> None:
    table = (ROOT / "docs/concepts/verdicts.md").read_text()
    missing = [code for code in RULES if f"\n| `{code}` | " not in table]
    assert not missing, f"docs/concepts/verdicts.md needs a row for each of {missing}"


@pytest.mark.parametrize(("letter", "lessons"), [("G", 15), ("P", 8), ("L", 5)])
def test_every_lesson_of_the_three_articles_is_on_the_checklist_with_a_command(
    letter: str, lessons: int
) -> None:
    rows = (ROOT / "docs/guides/checklist.md").read_text().splitlines()
    cells = [[cell.strip() for cell in row.split("|")] for row in rows if row.startswith("| ")]
    named = {word for row in cells if "`" in row[4] for word in row[3].split()}
    assert {f"{letter}{number}" for number in range(1, lessons + 1)} - named == set()


def test_every_number_that_is_ranked_is_defined() -> None:
    defined = (ROOT / "docs/concepts/metrics.md").read_text()
    for word in ("TTFT", "E2E", "TPOT", "ITL", "RPS", "ok", "error rate", "hit ratio", "goodput"):
        assert f"\n| {word} |" in defined, word
