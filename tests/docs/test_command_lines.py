"""Every `toolkit ...` that a page shows is one that click takes, whether or not it can be run here."""

import re

import pytest
from support.command_lines import complaint
from support.manual import PAGES, ROOT, blocks, calls, inline_commands

NEEDS = (
    "systemctl",
    "kubectl",
    "docker",
    "ssh",
    "sudo",
    "vllm",
    "nvidia-smi",
    "curl",
    "nginx -",
    "promtool",
    "git ",
    "tcpdump",
    "a quiet machine",
)
"""Programs and rights that a test has not; a block that is not run names one of them, or a machine of the reader's."""

LINES = sorted({line for page in PAGES for each in blocks(page) for line in each.commands})
INLINE = sorted({words for page in PAGES for words in inline_commands(ROOT / page)})


CATALOG = sorted(
    {
        words
        for file in (ROOT / "toolkit" / "catalog").rglob("*.toml")
        for words in re.findall(r"`(toolkit [^`]+)`", file.read_text())
    }
)


@pytest.mark.parametrize("words", CATALOG)
def test_a_command_that_the_catalog_advises_exists(words: str) -> None:
    found = list(calls(words))
    assert found
    assert [complaint(call, whole=False) for call in found if complaint(call, whole=False)] == []


@pytest.mark.parametrize("line", [line for line in LINES if list(calls(line))])
def test_a_line_to_paste_is_taken(line: str) -> None:
    assert [complaint(call) for call in calls(line) if complaint(call)] == []


@pytest.mark.parametrize("words", INLINE)
def test_a_command_in_the_prose_has_options_that_exist(words: str) -> None:
    found = list(calls(words))
    assert found
    assert [complaint(call, whole=False) for call in found if complaint(call, whole=False)] == []


def test_a_block_that_is_not_run_says_why_and_needs_what_no_test_has() -> None:
    for each in (each for page in PAGES for each in blocks(page)):
        reason = each.notes.get("not-run")
        if reason is not None:
            assert each.is_shell, each.name
            assert any(word in f"{each.script} {reason}" for word in NEEDS), each.name


def test_blocks_are_of_kinds_that_are_known() -> None:
    kinds = {each.info for page in PAGES for each in blocks(page)}
    assert kinds <= {"sh", "console", "text", "toml", "python", "json", "promql", "nginx"}


def test_no_command_hides_in_a_block_that_is_only_shown() -> None:
    for page in PAGES:
        for each in blocks(page):
            hidden = [
                line for line in each.text.splitlines() if line.startswith(("$ ", "toolkit "))
            ]
            assert each.is_shell or hidden == [], f"{page}:{each.line}"
