"""What is loaded before a verb does anything: the reason why `--help` answers at once. Modules are counted, never seconds."""

import subprocess
import sys

import pytest

from toolkit.cli import VERBS

HEAVY = (
    "aiohttp asyncio brotli click.shell_completion gevent httptools httpx importlib.resources jinja2 locust matplotlib"
    " multiprocessing numpy openai orjson pandas prometheus_client pydantic redis rich scapy sqlite3 sqlite_utils streamlit"
    " subprocess tokenizers tomllib uvloop zmq zstandard"
).split()
OURS = "toolkit.store toolkit.store.migrations toolkit.store.database toolkit.sim.engine toolkit.proxy.processes.server".split()
"""Of our own what costs most."""


def loaded(code: str) -> set[str]:
    """The heavy ones among the modules that a fresh interpreter has after this; a caller's site is not ours."""
    words = f"import sys; before = set(sys.modules); {code}; print(*(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=60
    )
    return set(HEAVY + OURS) & set(done.stdout.rsplit("\n", 2)[-2].split())


def test_the_help_of_all_verbs_loads_nothing_heavy() -> None:
    """`toolkit --help` loads each verb's file; so does each verb's own help, of which this is the sum."""
    assert loaded("from toolkit.cli import main; main(['--help'], standalone_mode=False)") == set()


def test_the_version_loads_no_verb() -> None:
    names = " ".join(f"toolkit.cli.{verb}" for verb in VERBS)
    code = (
        "from toolkit.cli import main; main(['--version'], standalone_mode=False);"
        f" assert not set({names!r}.split()) & set(sys.modules)"
    )
    assert loaded(code) <= {"importlib.resources"}


@pytest.mark.parametrize(
    "words", [("serve", "swap"), ("runs", "export"), ("board", "freeze"), ("sim", "fleet")]
)
def test_neither_does_that_of_a_verb_below_a_verb(words: tuple[str, ...]) -> None:
    line = [*words, "--help"]
    assert loaded(f"from toolkit.cli import main; main({line!r}, standalone_mode=False)") == set()


def test_one_that_is_loaded_would_be_found() -> None:
    assert loaded("import sqlite3") == {"sqlite3"}
