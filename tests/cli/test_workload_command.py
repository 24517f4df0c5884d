"""`toolkit workload` as a user meets it, over the committed capture and over files."""

import gc
import json
import re
import subprocess
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
KEYS = (
    "requests unique_exact unique_canonical unique_prompts top_share entropy_bits stream_share hit_curve"
    " prefix_share recommended_max_model_len levers"
).split()


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


def bodies(*texts: str, **settings: object) -> str:
    """Request bodies, one a line."""
    return "".join(
        json.dumps({"messages": [{"role": "user", "content": text}], **settings}) + "\n"
        for text in texts
    )


# --- the committed capture --------------------------------------------------------------------------


def test_the_sample_says_what_the_winner_saw() -> None:
    captured()
    told = report("--max-model-len", "8192")
    assert set(KEYS) <= set(told)
    # tshark: 239 POST and 6 GET; each prompt streamed and not makes 2 bodies of it
    assert (told["requests"], told["other"], told["damaged"]) == (239, 6, 0)
    assert (told["unique_exact"], told["unique_canonical"], told["unique_prompts"]) == (4, 2, 2)
    assert told["top_share"] == {"1": 120 / 239, "2": 1.0, "10": 1.0, "100": 1.0}
    # the longer prompt has 55 characters, 14 tokens at 4 each; 1.15 (14 + 256) = 310.5
    assert told["recommended_max_model_len"] == 512
    assert told["headline"] == (
        "response cache, then single-flight; max_model_len 512 instead of 8192"
    )
    assert [one["code"] for one in told["levers"]][:2] == ["response_cache", "single_flight"]
    # two first requests are not repeats
    assert told["hit_curve"][0]["hit_ratio"] == pytest.approx(237 / 239)
    assert all("caveat" in one for one in told["levers"])


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


def test_the_newest_capture_is_read_unless_another_is_named() -> None:
    captured()
    with Store.open(Path("t.db")) as store:
        [first] = store.runs(verb="capture")
        store.add_run(Run(id="later", verb="capture", started_at=first.started_at + 60))
        store.add_seen(
            "later",
            [Seen(ts=1.0, asked=Asked(exact_key="0" * 32, prompt_key="1" * 32, body_bytes=2))],
        )
    assert report()["requests"] == 1
    assert report("--run", first.id)["requests"] == 239


def test_only_requests_between_two_moments_are_counted() -> None:
    captured()
    with Store.open_readonly(Path("t.db")) as store:
        [run] = store.runs(verb="capture")
        times = [one.ts for one in store.seen(run.id) if one.asked]
    middle = datetime.fromtimestamp(times[100] - 1e-4, UTC).isoformat()
    assert report("--since", middle)["requests"] == 139
    assert report("--until", middle)["requests"] == 100


def test_what_scout_saw_the_servers_run_with_is_what_they_run_with_now() -> None:
    captured()
    hosts = [Host(name=name, url=f"http://{name}:8000") for name in "abc"]
    lengths = dict(zip("abc", (4096, 8192, 8192), strict=True))
    with Store.open(Path("t.db")) as store:
        store.add_sightings(
            [
                Sighting(
                    name=host.name,
                    url=host.url,
                    at=1.0,
                    status="ok",
                    config_hash="x",
                    max_model_len=lengths[host.name],
                )
                for host in hosts
            ],
            hosts,
        )
    assert report()["headline"].endswith("max_model_len 512 instead of 8192")
    assert report("--max-model-len", "2048")["headline"].endswith("512 instead of 2048")


# --- files ------------------------------------------------------------------------------------------


def test_bodies_come_from_files_and_from_standard_input() -> None:
    Path("bodies.jsonl").write_text(bodies("Hi", "Hi", "Ho", max_tokens=10))
    told = report("--from", "bodies.jsonl", "--from", "-", stdin=bodies("Ho", "Ha"))
    assert (told["requests"], told["unique_prompts"]) == (5, 3)
    assert told["source_kind"] == "bodies"
    assert told["source"] == "bodies.jsonl (bodies), standard input (bodies)"


def test_what_capture_printed_is_read_back_with_its_losses() -> None:
    printed = toolkit("capture", str(SAMPLE), "--no-store", "--json").stdout
    Path("seen.jsonl").write_text(printed)
    told = report("--from", "seen.jsonl")
    assert (told["requests"], told["unique_prompts"], told["other"]) == (239, 2, 6)
    assert told["losses"]["gaps"] == 0


def test_an_export_is_read_back_with_the_same_lengths() -> None:
    Path("bodies.jsonl").write_text(bodies("x" * 400, "y" * 800, max_tokens=7))
    printed = toolkit("workload", "--from", "bodies.jsonl", "--export", "mooncake")
    assert printed.exit_code == 0
    Path("trace.jsonl").write_text(printed.stdout)
    told = report("--from", "trace.jsonl")
    # 400 and 800 characters at 4 a token
    assert (told["source_kind"], told["requests"]) == ("mooncake", 2)
    assert told["lengths"]["prompt_tokens"]["max"] == pytest.approx(200, abs=5)
    assert told["lengths"]["output_tokens"]["max"] == 7


def test_requests_without_times_are_not_chosen_by_time() -> None:
    Path("bodies.jsonl").write_text(bodies("Hi"))
    result = toolkit("workload", "--from", "bodies.jsonl", "--since", "14:32")
    assert result.exit_code == 1
    assert "`bodies.jsonl` does not say when its requests came" in result.stderr


def test_a_traces_own_clock_beside_a_calendar_is_told() -> None:
    trace = {"timestamp": 5, "input_length": 9, "output_length": 9, "hash_ids": [1]}
    Path("trace.jsonl").write_text(f"{json.dumps(trace)}\n")
    timed = {"ts": 1e9, "body": {"prompt": "Hi"}}
    Path("log.jsonl").write_text(f"{json.dumps(timed)}\n")
    both = report("--from", "trace.jsonl", "--from", "log.jsonl")
    assert "a trace's own start" in " ".join(both["notes"])
    for alone in ("trace.jsonl", "log.jsonl"):
        assert report("--from", alone)["notes"] == []


def test_no_number_of_a_log_is_too_absurd_to_report() -> None:
    lines = [
        {"ts": ts, "latency_ms": wait, "output_tokens": made, "status": 99999, "body": body}
        for ts, wait, made, body in (
            (1e9, 1e308, 10**15, {"prompt": "a", "max_tokens": 10**18}),
            (1e9 + 1, -5, -3, {"prompt": "a", "n": 10**9}),
            (1e10, 1e300, 2**63 - 1, {"prompt": "b", "max_tokens": -1, "temperature": 1e300}),
        )
    ]
    Path("log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    told = report("--from", "log.jsonl")
    assert told["requests"] == 3
    assert told["answers"]["latency_ms"] is None
    for words in ((), ("--html", "r.html"), ("--profile", "p.toml"), ("--export", "burstgpt")):
        assert toolkit("workload", "--from", "log.jsonl", *words).exit_code == 0


def test_a_prefix_cache_is_not_judged_by_a_source_that_hides_how_prompts_begin() -> None:
    line = {"ts": 1e9, "request_id": "1", "team": "a", "prompt_key": "p", "request_key": "r"}
    Path("log.jsonl").write_text(f"{json.dumps(line)}\n" * 3)
    told = report("--from", "log.jsonl")
    [lever] = [one for one in told["levers"] if one["code"] == "prefix_cache"]
    assert (told["prefix_share"], lever["number"], lever["saved_share"]) == (None, None, None)


def test_no_line_is_longer_than_a_screen_of_80_and_none_begins_amid_a_lever() -> None:
    Path("bodies.jsonl").write_text(bodies("Hi", "Hi", "Ho", max_tokens=10))
    code = "from toolkit.cli import main; main(['workload', '--from', 'bodies.jsonl'])"
    command = [sys.executable, "-c", code]
    printed = on_a_terminal(command, columns=80, TERM="dumb", NO_COLOR="1")
    plain = re.sub(r"\x1b\[[0-9;]*[mK]", "", printed).replace("\r\n", "\n")
    lines = [line.rsplit("\r", 1)[-1] for line in plain.split("\n")]
    assert max(map(len, lines)) <= 80
    [at] = [place for place, line in enumerate(lines) if line.startswith("6. quantization")]
    # its number goes on in the column where it began
    assert lines[at + 1].startswith(" " * 23)


# --- what it writes ---------------------------------------------------------------------------------


def test_a_profile_without_texts_repeats_itself_as_the_requests_do_and_says_so() -> None:
    captured()
    result = toolkit("workload", "--profile", "out/mine.toml")
    assert result.exit_code == 0
    assert "Profile: out/mine.toml" in result.stderr
    made = read_profile(Path("out/mine.toml").read_text(), "mine", "toml")
    assert sorted(prompt.weight for prompt in made.prompts) == [119.0, 120.0]
    assert {prompt.max_tokens for prompt in made.prompts} == {256}
    assert made.stream_share == pytest.approx(120 / 239, abs=0.001)
    assert "words that only have the same lengths" in made.summary
    assert "Singapore" not in Path("out/mine.toml").read_text()


def test_a_profile_has_the_texts_where_they_were_kept() -> None:
    captured("--store-prompts")
    assert toolkit("workload", "--profile", "mine.toml").exit_code == 0
    assert "What is the capital of Singapore?" in Path("mine.toml").read_text()


def test_the_page_is_one_file_that_fetches_nothing_and_believes_no_name() -> None:
    evil = "<script src=http://example.org/x.js></script>"
    Path("bodies.jsonl").write_text(bodies("Hi", "Hi", model=evil))
    assert toolkit("workload", "--from", "bodies.jsonl", "--html", "r.html").exit_code == 0
    html = Path("r.html").read_text()
    assert "<script" not in html
    assert "&lt;script" in html
    assert 'src="' not in html
    assert 'href="' not in html
    assert html.count("<svg") >= 3


def test_a_file_that_cannot_be_written_is_one_clear_error() -> None:
    Path("bodies.jsonl").write_text(bodies("Hi"))
    Path("folder").mkdir()
    result = toolkit("workload", "--from", "bodies.jsonl", "--html", "bodies.jsonl/r.html")
    assert result.exit_code == 1
    assert "`bodies.jsonl/r.html` cannot be written" in result.stderr


# --- nothing to read --------------------------------------------------------------------------------


def test_a_database_without_a_capture_tells_how_to_make_one() -> None:
    with Store.open(Path("t.db")):
        pass
    result = toolkit("workload")
    assert result.exit_code == 1
    assert "Error: `t.db` holds no capture yet" in result.stderr
    assert "toolkit capture data/sample.pcap" in result.stderr


def test_an_unknown_capture_is_answered_with_those_there_are() -> None:
    captured()
    result = toolkit("workload", "--run", "nope")
    assert result.exit_code == 1
    assert "has no capture `nope`" in result.stderr
    assert "Its newest captures: `" in result.stderr


def test_requests_that_ask_no_model_are_told_and_no_report_is_made_of_them() -> None:
    with Store.open(Path("t.db")) as store:
        store.add_run(Run(id="r", verb="capture", started_at=1.0))
        store.add_seen(
            "r", [Seen(ts=2.0, method="GET", path="/metrics"), Seen(ts=3.0, damaged=True)]
        )
    result = toolkit("workload")
    assert result.exit_code == 1
    assert "asks a model for anything" in result.stderr
    assert "Met were 1 of other kinds, e.g., GET /metrics, 1 damaged" in result.stderr


def test_a_file_that_is_not_there_or_no_log_is_one_clear_error() -> None:
    assert "cannot be read: no such file" in toolkit("workload", "--from", "none").stderr
    Path("poem.txt").write_text("Roses are red\n")
    result = toolkit("workload", "--from", "poem.txt")
    assert (result.exit_code, "poem.txt" in result.stderr) == (1, True)
    assert "Known are" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from", "x", "--run", "y"), "--from and --run are two sources"),
        (("--export", "mooncake", "--json"), "--export prints a trace"),
        (("--export", "csv"), "'csv' is not one of"),
        (("--latency", "2"), "no duration"),
    ],
)
def test_a_wrong_command_line_ends_with_2(words: tuple[str, ...], said: str) -> None:
    result = toolkit("workload", *words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_help_loads_no_numpy() -> None:
    code = (
        "import sys\nfrom toolkit.cli import main\n"
        "try:\n    main(['workload', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert 'numpy' not in sys.modules and 'sqlite3' not in sys.modules, 'heavy'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "toolkit workload --from requests.jsonl" in done.stdout


def test_a_capture_leaves_the_interpreters_collector_as_it_was() -> None:
    before = gc.get_threshold()
    captured("--no-store")
    assert gc.get_threshold() == before
