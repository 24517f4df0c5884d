"""The manual as Sphinx makes it, in a real browser: no warning, every option on its verb's page, nothing fetched from elsewhere."""

import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import click
import pytest
from contract.harness.browser import chromium
from support.browser import overflow, tab_of
from support.command_lines import every_command
from support.manual import MANUAL, ROOT

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manual")
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(folder / "read")]
    done = subprocess.run(
        [*words, str(ROOT / "docs"), str(folder / "site")],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_every_page_is_made(site: Path) -> None:
    missing = [page for page in MANUAL if not _made(site, page).exists()]
    assert missing == []


def test_no_page_asks_anybody_else_or_needs_to_be_scrolled_sideways(site: Path) -> None:
    with chromium() as browser, tab_of(browser) as tab:
        wide = {}
        for page in MANUAL:
            tab.page.goto(_made(site, page).as_uri())
            for width in (390, 1280):
                tab.page.set_viewport_size({"width": width, "height": 844})
                wide[page, width] = overflow(tab.page)
        assert {url for url in tab.requests if not url.startswith(("file:", "data:"))} == set()
        assert tab.complaints == []
        assert {place: what for place, what in wide.items() if what} == {}


def _visible() -> Iterator[tuple[str, click.Command]]:
    """Commands, by the name under which a reader looks for them."""
    for name, command in every_command():
        if name != "toolkit":
            yield name.removesuffix(" run"), command


@pytest.mark.parametrize(("name", "command"), list(_visible()))
def test_every_option_of_every_command_is_on_its_page(
    name: str, command: click.Command, site: Path
) -> None:
    text = _made(site, f"docs/reference/verbs/{name.split()[1]}.md").read_text()
    # a command's options have ids that begin with its name
    heads = re.findall(
        rf'<dt[^>]* id="cmdoption-{name.replace(" ", "-")}-[^>]*>(.*?)</dt>', text, re.DOTALL
    )
    # without the pilcrow that links to each
    told = unescape(re.sub(r'<a class="headerlink".*?</a>|<[^>]+>', "", " ".join(heads)))
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    options = [each for each in shown if isinstance(each, click.Option)]
    words = {word for each in options for word in (*each.opts, *each.secondary_opts)}
    assert {word for word in words if word not in told.replace(",", " ").split()} == set()


def _made(site: Path, page: str) -> Path:
    return site / Path(page).relative_to("docs").with_suffix(".html")
