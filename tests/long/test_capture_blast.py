"""The organizers' profile blasts a simulated host while somebody looks: is what was sent what was seen, and what is the advice?

Once over loopback and once between two network namespaces, with real commands: `toolkit sim serve`, `scout`, `capture`,
`blast`, `workload`.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.capture_verb import capturing
from support.locusts import Started, counted_everywhere, environment
from support.net_namespaces import inside, needs_capture, needs_namespaces, pair

from toolkit.store import Store

pytestmark = [pytest.mark.timeout(180), needs_capture, needs_namespaces]

SECONDS = 10
HEADLINE = "response cache, then single-flight; max_model_len 512 instead of 8192"


@contextmanager
def started(folder: Path, words: Sequence[str], *, namespace: str | None) -> Iterator[Started]:
    """A verb of the toolkit as a process, in a network namespace if one is named; its stderr goes into a file."""
    enter = ["ip", "netns", "exec", namespace] if namespace else []
    with (folder / f"{words[0]}.err").open("w") as stderr:
        process = Started(
            [*enter, str(Path(sys.executable).with_name("toolkit")), *words],
            cwd=folder,
            env=environment(PYTHONUNBUFFERED="1", TOOLKIT_DB=str(folder / "toolkit.db")),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        with process:
            yield process


def finished(folder: Path, words: Sequence[str], *, namespace: str | None = None) -> str:
    with started(folder, words, namespace=namespace) as process:
        said, _ = process.communicate(timeout=90)
    assert process.returncode == 0, (folder / f"{words[0]}.err").read_text()
    return said


def _served(process: Started) -> str:
    """The URL that `toolkit sim serve` prints once it listens."""
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found
    return found[0]


@pytest.mark.parametrize("network", ["loopback", "veth"])
def test_what_was_sent_is_what_was_seen_and_the_advice_is_the_winners(
    tmp_path: Path, network: str
) -> None:
    with ExitStack() as stack:
        near, far = stack.enter_context(pair()) if network == "veth" else (None, None)
        address, iface = ("10.9.0.2", "server0") if network == "veth" else ("127.0.0.1", "lo")
        serve = ["sim", "serve", "--port", "0", "--host", address, "--personality", "fp8"]
        serve += ["--time-scale", "0.1", "--set", "max_model_len=8192"]
        url = _served(stack.enter_context(started(tmp_path, serve, namespace=far)))
        (tmp_path / "hosts.txt").write_text(f"alice {url}\n")
        words = ("--iface", iface, "--port", url.rpartition(":")[2])
        listening = stack.enter_context(capturing(tmp_path, *words, namespace=far))
        finished(tmp_path, ["scout", "hosts.txt"], namespace=near)
        blast = ["blast", "hosts.txt", "--profile", "contest", "--duration", f"{SECONDS}s"]
        blast += ["--users", "8", "--canaries", "0", "--no-scout"]
        blast += ["--non-neutral"] if network == "loopback" else []
        finished(tmp_path, blast, namespace=near)
        if far:
            stack.enter_context(inside(near or ""))
        [truth] = counted_everywhere({"alice": url}).values()
        requests, summary = listening.stop()
    asked = [one for one in requests if one["method"] == "POST"]
    with Store.open_readonly(tmp_path / "toolkit.db") as store:
        [run] = store.runs(verb="blast")
        [sums] = store.tally_sums(run.id).values()

    assert len(asked) == truth.requests == sums.ok
    assert sums.errors == 0
    assert len(asked) > 10 * SECONDS
    assert summary["requests"] == len(requests)
    lost = ("kernel_drops", "app_drops", "gaps", "truncated", "encrypted", "unparsed", "damaged")
    assert [summary[name] for name in lost] == [0] * len(lost)
    assert summary["unique"] == 2
    firsts = [one["ts"] for one in asked if one["new"]]
    assert len(firsts) == 2
    assert (
        firsts[1] - firsts[0] < 1.0
    )  # by the packets' own times, not by the speed of this machine
    assert {one["max_tokens"] for one in asked} == {256}
    assert {one["prompt_preview"] for one in asked} == {None}

    _check_advice(tmp_path, len(asked))


def _check_advice(folder: Path, requests: int) -> None:
    [report] = [json.loads(line) for line in finished(folder, ["workload", "--json"]).splitlines()]
    assert report["requests"] == requests
    assert (report["unique_prompts"], report["unique_canonical"]) == (2, 2)
    assert report["recommended_max_model_len"] == 512
    assert report["headline"] == HEADLINE
    shown = finished(folder, ["workload"])
    assert HEADLINE in shown
    print(f"{requests:,} requests sent and seen\n{shown}")
