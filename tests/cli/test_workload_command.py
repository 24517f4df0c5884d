"""`toolkit workload` as a user meets it, over the committed capture and over files."""

import gc
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.screens import on_a_terminal

from toolkit.cli import main
from toolkit.profiles import read_profile
from toolkit.records import Asked, Host, Run, Seen, Sighting
from toolkit.store import Store

SAMPLE = Path(__file__).parents[2] / "data" / "sample.pcap"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLKIT_DB", "t.db")


def toolkit(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, [*words], input=stdin, catch_exceptions=False)


def report(*words: str, stdin: str | None = None) -> dict:
    result = toolkit("workload", "--json", *words, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    [line] = result.stdout.splitlines()
    return json.loads(line)


def captured(*words: str) -> None:
    assert toolkit("capture", str(SAMPLE), *words).exit_code == 0


def written(name: str, *rows: object) -> str:
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return name


def bodies(*texts: str, **settings: object) -> list[dict]:
    return [{"messages": [{"role": "user", "content": text}], **settings} for text in texts]


# --- The committed capture ------------------------------------------------------------------------------


def test_the_sample_says_what_the_winner_saw() -> None:
    captured()
    found = report("--max-model-len", "8192")
    # tshark: 239 POST and 6 GET; each prompt streamed and not makes 2 bodies of it
    assert (found["requests"], found["other"], found["damaged"]) == (239, 6, 0)
    assert (found["unique_exact"], found["unique_canonical"], found["unique_prompts"]) == (4, 2, 2)
    assert found["top_share"] == {"1": 120 / 239, "2": 1.0, "10": 1.0, "100": 1.0}
    # the longer prompt has 55 characters, 14 tokens at 4 each; 1.15 (14 + 256) = 310.5
    assert found["recommended_max_model_len"] == 512
    assert found["headline"] == (
        "response cache, then single-flight; max_model_len 512 instead of 8192"
    )
    # two first requests are not repeats
    assert found["hit_curve"][0]["hit_ratio"] == pytest.approx(237 / 239)


def test_the_report_stands_whole_in_a_pipe_and_ends_no_line_with_blanks() -> None:
    captured()
    result = toolkit("workload")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[2] == "response cache, then single-flight; max_model_len 512"
    assert "requests               239   6 that ask no model" in lines
    assert "What a response cache and single-flight answer together" in lines
    assert [line for line in lines if line != line.rstrip()] == []
    assert "\x1b" not in result.stdout
    # 239 requests for two prompts: 237 repeats, of which some come within the 2 s of the first answers
    waited = toolkit("workload", "--latency", "2s").stdout.splitlines()
    at = waited.index("What a response cache answers: from memory + by joining one under way")
    assert any(line.startswith("all ") and " % + " in line for line in waited[at:])


def test_the_newest_capture_is_read_unless_another_or_a_time_is_named() -> None:
    captured()
    with Store.open(Path("t.db")) as store:
        [first] = store.runs(verb="capture")
        times = [one.ts for one in store.seen(first.id) if one.asked]
        middle = datetime.fromtimestamp(times[100] - 1e-4, UTC).isoformat()
        assert report("--since", middle)["requests"] == 139
        assert report("--until", middle)["requests"] == 100
        store.add_run(Run(id="later", verb="capture", started_at=first.started_at + 60))
        asked = Asked(exact_key="0" * 32, prompt_key="1" * 32, body_bytes=2)
        store.add_seen("later", [Seen(ts=1.0, asked=asked)])
    assert report()["requests"] == 1
    assert report("--run", first.id)["requests"] == 239


def test_what_scout_saw_most_servers_run_with_is_what_they_run_with_now() -> None:
    captured()
    hosts = [Host(name=name, url=f"http://{name}:8000") for name in "abc"]
    seen = [
        Sighting(name=host.name, url=host.url, at=1.0, status="ok", config_hash="x", max_model_len=most)
        for host, most in zip(hosts, (4096, 8192, 8192), strict=True)
    ]  # fmt: skip
    with Store.open(Path("t.db")) as store:
        store.add_sightings(seen, hosts)
    assert report()["headline"].endswith("max_model_len 512 instead of 8192")
    assert report("--max-model-len", "2048")["headline"].endswith("512 instead of 2048")


# --- Files ----------------------------------------------------------------------------------------------


def test_bodies_come_from_files_and_from_standard_input() -> None:
    written("bodies.jsonl", *bodies("Hi", "Hi", "Ho", max_tokens=10))
    stdin = "".join(f"{json.dumps(one)}\n" for one in bodies("Ho", "Ha"))
    found = report("--from", "bodies.jsonl", "--from", "-", stdin=stdin)
    assert (found["requests"], found["unique_prompts"]) == (5, 3)
    assert found["source_kind"] == "bodies"
    assert found["source"] == "bodies.jsonl (bodies), standard input (bodies)"


def test_what_capture_printed_is_read_back_with_its_losses() -> None:
    Path("seen.jsonl").write_text(toolkit("capture", str(SAMPLE), "--no-store", "--json").stdout)
    found = report("--from", "seen.jsonl")
    assert (found["requests"], found["unique_prompts"], found["other"]) == (239, 2, 6)
    assert found["losses"]["gaps"] == 0


def test_an_export_is_read_back_with_the_same_lengths() -> None:
    written("bodies.jsonl", *bodies("x" * 400, "y" * 800, max_tokens=7))
    printed = toolkit("workload", "--from", "bodies.jsonl", "--export", "mooncake")
    assert "Note: When requests came is not known: one a second" in printed.stderr
    Path("trace.jsonl").write_text(printed.stdout)
    found = report("--from", "trace.jsonl")
    # 400 and 800 characters at 4 a token
    assert (found["source_kind"], found["requests"]) == ("mooncake", 2)
    assert found["lengths"]["prompt_tokens"]["max"] == pytest.approx(200, abs=5)
    assert found["lengths"]["output_tokens"]["max"] == 7


def test_a_traces_own_clock_beside_a_calendar_is_noted() -> None:
    trace = {"timestamp": 5, "input_length": 9, "output_length": 9, "hash_ids": [1]}
    written("trace.jsonl", trace)
    written("log.jsonl", {"ts": 1e9, "body": {"prompt": "Hi"}})
    both = report("--from", "trace.jsonl", "--from", "log.jsonl")
    assert both["source_kind"] == "mixed"
    assert "a trace's own start" in " ".join(both["notes"])
    for alone in ("trace.jsonl", "log.jsonl"):
        assert report("--from", alone)["notes"] == []


def test_no_number_of_a_log_is_too_absurd_to_report() -> None:
    rows = [
        {"ts": ts, "latency_ms": wait, "output_tokens": made, "status": 99999, "body": body}
        for ts, wait, made, body in (
            (1e9, 1e308, 10**15, {"prompt": "a", "max_tokens": 10**18}),
            (1e9 + 1, -5, -3, {"prompt": "a", "n": 10**9}),
            (1e10, 1e300, 2**63 - 1, {"prompt": "b", "max_tokens": -1, "temperature": 1e300}),
        )
    ]
    written("log.jsonl", *rows)
    found = report("--from", "log.jsonl")
    assert (found["requests"], found["answers"]["latency_ms"]) == (3, None)
    for words in ((), ("--html", "r.html"), ("--profile", "p.toml"), ("--export", "burstgpt")):
        assert toolkit("workload", "--from", "log.jsonl", *words).exit_code == 0


def test_clients_are_hashes_unless_asked_for_and_what_a_log_hides_is_not_judged() -> None:
    row = {"ts": 1e9, "client": "10.0.0.9", "body": {"prompt": "Hi"}}
    words = ("--from", written("log.jsonl", row))
    assert report(*words, "--show-clients")["clients"]["top"][0]["client"] == "10.0.0.9"
    assert re.fullmatch("[0-9a-f]{12}", report(*words)["clients"]["top"][0]["client"])
    row = {"ts": 1e9, "request_id": "1", "team": "a", "prompt_key": "p", "request_key": "r"}
    found = report("--from", written("log.jsonl", row, row))
    [lever] = [one for one in found["levers"] if one["code"] == "prefix_cache"]
    assert (found["prefix_share"], lever["number"], lever["saved_share"]) == (None, None, None)


def test_no_line_is_longer_than_a_screen_of_80_and_none_begins_amid_a_lever() -> None:
    written("bodies.jsonl", *bodies("Hi", "Hi", "Ho", max_tokens=10))
    code = "from toolkit.cli import main; main(['workload', '--from', 'bodies.jsonl'])"
    command = [sys.executable, "-c", code]
    printed = on_a_terminal(command, columns=80, TERM="dumb", NO_COLOR="1")
    plain = re.sub(r"\x1b\[[0-9;]*[mK]", "", printed).replace("\r\n", "\n")
    lines = [line.rsplit("\r", 1)[-1] for line in plain.split("\n")]
    assert max(map(len, lines)) <= 80
    [at] = [place for place, line in enumerate(lines) if line.startswith("6. quantization")]
    # its number goes on in the column where it began
    assert lines[at + 1].startswith(" " * 23)


# --- What it writes -------------------------------------------------------------------------------------


def test_a_profile_repeats_itself_as_the_requests_do_with_texts_only_where_they_were_kept() -> None:
    captured()
    result = toolkit("workload", "--profile", "out/mine.toml")
    assert (result.exit_code, "Profile: out/mine.toml" in result.stderr) == (0, True)
    made = read_profile(Path("out/mine.toml").read_text(), "mine", "toml")
    assert sorted(prompt.weight for prompt in made.prompts) == [119.0, 120.0]
    assert {prompt.max_tokens for prompt in made.prompts} == {256}
    assert made.stream_share == pytest.approx(120 / 239, abs=0.001)
    assert "words that only have the same lengths" in made.summary
    assert "Singapore" not in Path("out/mine.toml").read_text()
    captured("--store-prompts")
    assert toolkit("workload", "--profile", "mine.toml").exit_code == 0
    assert "What is the capital of Singapore?" in Path("mine.toml").read_text()


# --- Nothing to read or to write ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        ((), 1, ("asks a model for anything", "Met were 1 of other kinds, e.g., GET /metrics, 1 damaged")),
        (("--run", "nope"), 1, ("has no run `nope`", "The newest: r.")),
        (("--db", "empty.db"), 1, ("Error: `empty.db` holds no capture yet", "toolkit capture data/sample.pcap")),
        (("--from", "none"), 1, ("cannot be read: no such file",)),
        (("--from", "poem.txt"), 1, ("poem.txt", "Known are")),
        (("--from", "bodies.jsonl", "--since", "14:32"), 1, ("`bodies.jsonl` does not say when its requests came",)),
        (("--from", "bodies.jsonl", "--html", "poem.txt/r.html"), 1, ("`poem.txt/r.html` cannot be written",)),
        (("--from", "x", "--run", "y"), 2, ("--from and --run are two sources",)),
        (("--export", "mooncake", "--json"), 2, ("--export prints a trace",)),
        (("--export", "csv"), 2, ("'csv' is not one of",)),
        (("--latency", "2"), 2, ("no duration",)),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_clear_error(
    words: tuple[str, ...], code: int, parts: tuple[str, ...]
) -> None:
    with Store.open(Path("t.db")) as store:
        store.add_run(Run(id="r", verb="capture", started_at=1.0))
        page = Seen(ts=2.0, method="GET", path="/metrics")
        store.add_seen("r", [page, Seen(ts=3.0, damaged=True)])
    with Store.open(Path("empty.db")):
        pass
    written("bodies.jsonl", *bodies("Hi"))
    Path("poem.txt").write_text("Roses are red\n")
    result = toolkit("workload", *words)
    assert result.exit_code == code
    for part in parts:
        assert part in result.stderr


def test_a_capture_leaves_the_interpreters_collector_as_it_was() -> None:
    before = gc.get_threshold()
    captured("--no-store")
    assert gc.get_threshold() == before
