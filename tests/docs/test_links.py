"""Links, anchors and pictures of the pages lead somewhere; what lies in the web is not contacted."""

import re

import pytest
from support.manual import MANUAL, PAGES, README, ROOT, anchors, blocks, links

PICTURE_BYTES = 300_000
RECORDING_BYTES = 2_000_000
LONGEST_README = 220
INCLUDE = re.compile(r"^```\{include\} (\S+)$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_or_a_heading(page: str) -> None:
    here = ROOT / page
    broken = []
    for target in links(here):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        there = here.parent / name if name else here
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_pictures_are_small_and_described(page: str) -> None:
    for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", (ROOT / page).read_text()):
        most = RECORDING_BYTES if target.endswith(".gif") else PICTURE_BYTES
        assert len(words) > 20, target
        assert ((ROOT / page).parent / target).stat().st_size < most, target


def test_readme_is_short_and_begins_with_a_picture() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= LONGEST_README, "what is more belongs into docs/"
    assert any("![" in line for line in lines[:20])


def test_the_manual_names_every_page_once() -> None:
    written = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(MANUAL) == written


def test_what_a_page_includes_is_there() -> None:
    missing = [
        (page, name)
        for page in MANUAL
        for name in INCLUDE.findall((ROOT / page).read_text())
        if not ((ROOT / page).parent / name).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_no_heading_stands_twice(page: str) -> None:
    text = re.sub(r"(?ms)^```.*?^```$", "", (ROOT / page).read_text())
    found = re.findall(r"^#+ .+$", text, re.MULTILINE)
    assert sorted(set(found)) == sorted(found)


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_prose_fit_a_screen(page: str) -> None:
    # tables and links cannot be broken
    prose = re.sub(r"(?ms)^```.*?^```$", "", (ROOT / page).read_text()).splitlines()
    long = [line for line in prose if len(line) > 140 and not line.startswith(("|", "<!--", "!["))]
    assert long == []


def test_the_tests_of_blocks_are_not_empty() -> None:
    assert len([each for page in PAGES for each in blocks(page) if each.is_shell]) > 40
