"""The real vLLM servers that the tests beside this file share, and who asks which of them first.

install_vllm.sh puts vLLM where these fixtures look. Where it is missing, the tests skip with the command that
brings it; in CI (the variable `CI`) they fail instead. A start costs 36 s of a core, nearly all of it imports: a test takes a
server that others use, too, wherever nothing but its start is in the way.
"""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from support.real_vllm import START_LIMIT_S, Server, a_server
from xdist.scheduler import LoadFileScheduling

INSTALL = "tests/real/install_vllm.sh"
SHARED = ("locked_server", "unasked_server", "roomy_server")
"""Servers for the whole session."""
DOOMED = {"doomed_locked_server", "doomed_roomy_server"}


class ByServer(LoadFileScheduling):  # type: ignore[misc]
    """File by file to whichever process is free; but all files that use a shared server are one file to it."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "a shared server's" if shares_a_server(self.config.rootpath / file) else file


@functools.cache
def shares_a_server(file: Path) -> bool:
    return file.parent == Path(__file__).parent and any(one in file.read_text() for one in SHARED)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServer | None:
    """For `--dist loadfile`: a process that had a file of its own would start servers of its own."""
    if config.getoption("dist") != "loadfile":
        return None
    # xdist's own order, the file with most tests first, has those that are one long test end last, alone
    config.option.loadscopereorder = False
    return ByServer(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A server's start counts towards the first test that asks for it."""
    item.add_marker(pytest.mark.timeout(2 * START_LIMIT_S))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that may take longest come first; of those who share a server, who wants it as it started, and last who kills it."""
    longest: dict[Path, float] = {}
    for item in items:
        limit = item.get_closest_marker("timeout")
        longest[item.path] = max(longest.get(item.path, 0), limit.args[0] if limit else 0)

    def rank(item: pytest.Item) -> tuple[int, float]:
        fixtures = getattr(item, "fixturenames", ())
        turn = 2 if DOOMED & {*fixtures} else "unasked_server" not in fixtures
        return turn, -longest[item.path]

    items.sort(key=rank)


@pytest.fixture(scope="session")
def vllm_home() -> Path:
    """Where install_vllm.sh put vLLM; the same rule stands there."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = Path(os.environ.get("TOOLKIT_VLLM_HOME") or Path(cache) / "toolkit" / "vllm-0.32.0")
    if not (home / "finished").is_file():
        pytest.skip(f"no real vLLM at {home}; run {INSTALL}")
    return home


@pytest.fixture(scope="session")
def locked_server(vllm_home: Path) -> Iterator[Server]:
    """A server behind a key, with the fast model; nothing depends on what its counters say."""
    # a random model that may write blanks between JSON's signs writes nothing else
    compact = '{"backend": "xgrammar", "disable_any_whitespace": true}'
    words = ("--structured-outputs-config", compact)
    with a_server(vllm_home, "tiny", *words, key="secret", dies=True) as server:
        yield server


@pytest.fixture(scope="session")
def unasked_server(locked_server: Server) -> Server:
    """The server behind a key before anybody else asked it anything: what its page lists is what its tests asked for."""
    with locked_server.client() as client:
        page = client.get("/metrics").text
    assert "http_requests_total{" not in page, "somebody asked it before"
    return locked_server


@pytest.fixture(scope="session")
def roomy_server(vllm_home: Path) -> Iterator[Server]:
    """A server with the model that takes 25 ms a token, with tools, and with blocks enough that a prompt which was read
    stays in its prefix cache; nothing depends on where its counters begin.
    """
    blocks = ("--enable-prompt-tokens-details", "--num-gpu-blocks-override", "512")
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    with a_server(vllm_home, "tiny-slow", *blocks, *tools, dies=True) as server:
        yield server


@pytest.fixture(scope="session")
def doomed_locked_server(locked_server: Server) -> Server:
    """The server behind a key after everybody else: a test may kill it. A file that asks for it has no test for others."""
    return locked_server


@pytest.fixture(scope="session")
def doomed_roomy_server(roomy_server: Server) -> Server:
    """The roomy server after everybody else, as the other one."""
    return roomy_server


@pytest.fixture(scope="session")
def serving() -> Callable[..., AbstractContextManager[Server]]:
    """For a test that needs a server of its own: `serving(vllm_home, model, *flags)`."""
    return a_server
