"""Links, anchors and pictures of the pages lead somewhere; what lies in the web is not contacted."""

import re

import pytest
from support.readme import PAGES, README, ROOT, anchors, blocks, links, section

PICTURE_BYTES = 300_000


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_or_a_heading(page: str) -> None:
    here = ROOT / page
    broken = []
    for target in links(here):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        there = ROOT / name if name else here
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


def test_pictures_are_small_and_described() -> None:
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", README.read_text())
    assert len(pictures) >= 3
    for words, target in pictures:
        assert len(words) > 20, target
        assert (ROOT / target).stat().st_size < PICTURE_BYTES, target


def test_a_picture_stands_in_the_first_screen() -> None:
    assert any("![" in line for line in README.read_text().splitlines()[:20])


def test_the_contents_name_every_chapter_in_its_order() -> None:
    titles = re.findall(r"^## (.+)$", README.read_text(), re.MULTILINE)
    named = re.findall(r"\[([^\]]+)\]\(#", section("## Contents"))
    assert named == [title for title in titles if title != "Contents"]


def test_no_heading_stands_twice() -> None:
    found = re.findall(
        r"^#+ .+$", re.sub(r"(?ms)^```.*?^```$", "", README.read_text()), re.MULTILINE
    )
    assert sorted(set(found)) == sorted(found)


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_prose_fit_a_screen(page: str) -> None:
    # tables and links cannot be broken
    prose = re.sub(r"(?ms)^```.*?^```$", "", (ROOT / page).read_text()).splitlines()
    long = [line for line in prose if len(line) > 140 and not line.startswith(("|", "<!--", "!["))]
    assert long == []


def test_the_tests_of_blocks_are_not_empty() -> None:
    assert len([each for each in blocks() if each.is_shell]) > 20
