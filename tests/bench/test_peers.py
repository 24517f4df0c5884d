"""Other tools on the stamped server: how they are run and read. Stand-ins play them, so that none must be installed."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.bench import peers
from toolkit.bench.peers import (
    Claim,
    CpuMark,
    Job,
    Peer,
    compared,
    cpu_between,
    offline,
    ourselves,
    peer,
    peer_level,
    session_cpu_s,
    write_tokenizer,
)
from toolkit.bench.selftest import StampedServer, stamped_server
from toolkit.bench.stamps import TokenPace, Truth
from toolkit.errors import ToolkitError

PACE = TokenPace(ttft_ms=2.0, interval_ms=1.0, tokens=3)

STAND_IN = """#!{python}
import http.client, json, os, pathlib, re, sys, urllib.parse
words = " ".join(sys.argv[1:])
url = urllib.parse.urlsplit(re.search(r"http://127[.0-9:]+", words)[0])
requests = int(re.search(r"(?:count=|request-count |num-prompts )([0-9]+)", words)[1])
tokens = int(re.search(r"(?:output_tokens=|osl |output-len )([0-9]+)", words)[1])
ttft = {{"mean": 70.0, "p50": 60.0, "p99": 90.0}}

def ask(stream=True):
    line = http.client.HTTPConnection(url.hostname, url.port)
    line.request("POST", "/v1/chat/completions", json.dumps({{"stream": stream, "max_tokens": tokens}}))
    line.getresponse().read()

ask(stream=False)  # as a tool that tries the server first
for number in range(requests):
    ask()
    if number == 0:
        {between}
if "guidellm" in sys.argv[0]:
    path = re.search(r"path=(\\S+)", words)[1]
    report = {{"benchmarks": [{{"metrics": {{"time_to_first_token_ms": {{"successful": {{
        "count": requests, "mean": ttft["mean"], "percentiles": ttft}}}}}}}}]}}
elif "aiperf" in sys.argv[0]:
    path = re.search(r"artifact-dir (\\S+)", words)[1] + "/profile_export_aiperf.json"
    report = {{"request_count": {{"avg": float(requests)}}, "time_to_first_token": ttft | {{"avg": 70.0}}}}
else:
    path = "/".join(re.search(r"result-dir (\\S+) --result-filename (\\S+)", words).groups())
    report = {{"completed": requests}} | {{f"{{name}}_ttft_ms": value for name, value in ttft.items()}}
pathlib.Path(path).parent.mkdir(exist_ok=True)
pathlib.Path(path).write_text(json.dumps(report))
"""

BURN = (
    "import subprocess; subprocess.run([sys.executable, '-c',"
    " 'import time\\nwhile time.process_time() < 0.5: pass'], check=True)"
)
"""Half a second of CPU in a process of the tool's own."""


@pytest.fixture(scope="module")
def server() -> Iterator[StampedServer]:
    with stamped_server(PACE) as server:
        yield server


def installed(folder: Path, name: str, script: str) -> Peer:
    path = folder / name
    path.write_text(script)
    path.chmod(0o755)
    return peer(f"{name}={path}")


def stand_in(folder: Path, name: str, between: str = "pass") -> Peer:
    return installed(folder, name, STAND_IN.format(python=sys.executable, between=between))


@pytest.mark.parametrize("name", ["guidellm", "aiperf", "vllm"])
def test_a_tools_claim_is_held_against_the_servers_truth(
    server: StampedServer, tmp_path: Path, name: str
) -> None:
    began_ns = time.monotonic_ns()
    told = compared(stand_in(tmp_path, name), server, 2, tokens=4)
    # three rounds of 2 streams; the whole answer that tried the server counts nowhere
    assert (told.tool, told.streams, told.requests, told.tokens) == (name, 2, 6, 24)
    assert (told.ttft_p50_ms, told.ttft_p99_ms, told.ttft_mean_ms) == (60.0, 90.0, 70.0)
    waits = sorted(
        (each.first_sent_ns - each.received_ns) / 1e6
        for each in server.truths()
        if each.received_ns >= began_ns and each.stream and each.first_sent_ns
    )
    assert told.ttft_delay_p50_ms == pytest.approx(60.0 - waits[2])  # nearest rank: 3rd of 6
    assert told.ttft_delay_mean_ms == pytest.approx(70.0 - sum(waits) / 6)
    assert told.ttft_delay_p99_ms is None  # of 6 answers the server's p99 is not told


def test_the_cpu_of_a_tool_counts_all_its_processes_while_it_loads(
    server: StampedServer, tmp_path: Path
) -> None:
    told = compared(stand_in(tmp_path, "vllm", between=BURN), server, 2, tokens=4)
    assert told.cpu_us_per_event is not None
    # half a second over 24 tokens is 20,833 us; marks lie 100 ms apart at most where the load began
    assert told.cpu_us_per_event > 0.3e6 / 24


def test_our_own_client_is_held_to_the_same_yardstick(server: StampedServer) -> None:
    told = ourselves(server, 2, tokens=4)
    assert (told.tool, told.requests, told.tokens) == ("toolkit", 6, 24)
    assert told.ttft_p50_ms is not None
    assert told.ttft_delay_p50_ms is not None
    assert told.ttft_p50_ms > told.ttft_delay_p50_ms > 0
    assert told.cpu_us_per_event


def truth(received_ms: int, first_ms: int, tokens: int = 10) -> Truth:
    first_ns = first_ms * 1_000_000
    return Truth(
        id="a",
        stream=True,
        received_ns=received_ms * 1_000_000,
        first_sent_ns=first_ns,
        last_sent_ns=first_ns + 1,
        tokens=tokens,
        complete=True,
    )


def test_a_delay_is_the_claim_less_what_the_server_took() -> None:
    claim = Claim(requests=3, ttft_mean_ms=80.0, ttft_p50_ms=75.0, ttft_p99_ms=99.0)
    truths = [truth(0, 50), truth(10, 62), truth(20, 74)]  # 50, 52 and 54 ms
    told = peer_level("vllm", 3, claim, truths, cpu_s=0.0006)
    assert told.ttft_delay_mean_ms == pytest.approx(28.0)  # 80 - 52
    assert told.ttft_delay_p50_ms == pytest.approx(23.0)  # 75 - 52
    assert told.ttft_delay_p99_ms is None
    assert told.cpu_us_per_event == pytest.approx(20.0)  # 600 us / 30 tokens


def test_without_answers_or_cpu_nothing_is_made_up() -> None:
    claim = Claim(requests=0, ttft_mean_ms=None, ttft_p50_ms=None, ttft_p99_ms=None)
    told = peer_level("vllm", 3, claim, [], cpu_s=0.5)
    assert (told.ttft_delay_mean_ms, told.cpu_us_per_event) == (None, None)
    assert peer_level("vllm", 3, claim, [truth(0, 50)], cpu_s=None).cpu_us_per_event is None


def test_cpu_between_marks_lies_on_straight_lines() -> None:
    marks = [CpuMark(at_ns=at, cpu_s=cpu) for at, cpu in ((0, 0.0), (100, 1.0), (200, 1.5))]
    assert cpu_between(marks, 50, 150) == pytest.approx(0.75)  # 0.5 of the first second to 1.25
    assert cpu_between(marks, 0, 200) == pytest.approx(1.5)
    assert cpu_between(marks, 50, 250) is None
    assert cpu_between([], 0, 1) is None


def test_the_cpu_of_a_session_is_at_least_this_process() -> None:
    own_s = time.process_time()
    seen_s = session_cpu_s(os.getsid(0))
    assert seen_s is not None
    assert seen_s >= own_s - 0.05  # the kernel counts hundredths, of two kinds
    assert session_cpu_s(2**22 + 1) is None  # past Linux's largest process id


def test_a_tool_finds_its_tokenizer_offline_and_no_way_out(tmp_path: Path) -> None:
    told = offline({"PATH": "/bin", "HTTPS_PROXY": "http://proxy:3128"}, tmp_path)
    assert told["PATH"] == "/bin"
    assert told["HF_HUB_OFFLINE"] == told["DO_NOT_TRACK"] == told["VLLM_NO_USAGE_STATS"] == "1"
    assert told["HTTPS_PROXY"] == told["http_proxy"] == "http://127.0.0.1:9"
    assert told["NO_PROXY"] == "127.0.0.1"
    assert told["HF_HOME"] == str(tmp_path / "hf")


def test_the_tokenizer_lies_where_the_offline_cache_looks(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "hf")
    home = tmp_path / "hf" / "hub" / "models--toolkit--words"
    assert folder == home / "snapshots" / (home / "refs" / "main").read_text()
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(1002))  # 1,000 words, unknown and end


def test_every_tool_is_told_the_same_job(tmp_path: Path) -> None:
    job = Job(
        url="http://127.0.0.1:1234",
        streams=77,
        requests=231,
        tokens=55,
        tokenizer=tmp_path / "words",
        folder=tmp_path,
    )
    for tool in peers.TOOLS:
        words = " ".join(tool.words(job))
        assert all(each in words for each in ("http://127.0.0.1:1234", "77", "231", "55")), words


def test_an_unknown_tool_is_told_with_the_known_ones() -> None:
    with pytest.raises(ToolkitError, match="`wrk` is no tool") as told:
        peer("wrk")
    assert told.value.hint == "Known are guidellm, aiperf, vllm"


def test_a_tool_that_is_not_there_is_told_with_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="is not installed here, or cannot be run") as told:
        peer(f"guidellm={tmp_path / 'guidellm'}")
    assert "pip install guidellm" in told.value.hint
    assert "--against guidellm=" in told.value.hint


def test_a_tool_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "aiperf")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert peer("aiperf").path == str(tmp_path / "aiperf")


def test_a_tool_that_fails_is_told_in_its_own_words(server: StampedServer, tmp_path: Path) -> None:
    broken = installed(tmp_path, "vllm", "#!/bin/sh\necho no such option: --qps >&2\nexit 3\n")
    with pytest.raises(ToolkitError, match="`vllm` failed with exit status 3") as told:
        compared(broken, server, 2, tokens=4)
    assert "no such option: --qps" in told.value.hint


@pytest.mark.parametrize("said", ["", "{}", "[]", "no json", '{"completed": "many"}'])
def test_a_report_that_cannot_be_read_is_told(
    server: StampedServer, tmp_path: Path, said: str
) -> None:
    script = f"#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\nprintf %s '{said}' > vllm.json\n"
    with pytest.raises(ToolkitError, match="wrote no report that can be read") as told:
        compared(installed(tmp_path, "vllm", script), server, 2, tokens=4)
    assert "vLLM 0.32" in told.value.hint


def is_gone(process_id: int) -> bool:
    """It ended; whoever inherited it may not have taken note yet."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_tool_that_does_not_end_is_stopped_with_all_its_processes(
    server: StampedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "TIMEOUT_S", 0.3)
    note = tmp_path / "child"
    script = f"#!/bin/sh\nsleep 60 &\necho $! > {note}\nwait\n"
    with pytest.raises(ToolkitError, match=r"did not end within 0\.3 s"):
        compared(installed(tmp_path, "guidellm", script), server, 2, tokens=4)
    end_s = time.monotonic() + 10
    while not is_gone(int(note.read_text())) and time.monotonic() < end_s:
        time.sleep(0.01)
    assert is_gone(int(note.read_text()))
