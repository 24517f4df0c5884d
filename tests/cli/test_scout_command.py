"""`toolkit scout` as a user meets it: what it prints, what it keeps, how it ends."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.raw_server import RawServer, http, recorded, serving, vllm_pages

from toolkit.cli import main

KEYS = (
    "name url status error latency_ms engine dialect version model models max_model_len"
    " gpu_memory_utilization cache_dtype block_size num_gpu_blocks swap_space_gib kv_cache_tokens"
    " prefix_caching running waiting kv_cache_usage prefix_hit_ratio preemptions_total"
    " prompt_tokens_total generation_tokens_total requests_total ttft_p50_ms ttft_p95_ms"
    " queue_mean_ms config_hash started_at findings requests_per_s output_tokens_per_s"
).split()
"""The keys that were promised."""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)
    monkeypatch.delenv("TOOLKIT_HOSTS", raising=False)


@pytest.fixture
def vllm() -> Iterator[RawServer]:
    with serving(vllm_pages()) as server:
        yield server


def scout(*words: str, **more: str) -> Result:
    return CliRunner().invoke(main, ["scout", *words], catch_exceptions=False, **more)


def objects(result: Result) -> list[dict]:
    return [json.loads(line) for line in result.stdout.splitlines()]


DEAD = "127.0.0.1:1"


def test_each_host_is_one_object_with_the_promised_keys(vllm: RawServer) -> None:
    Path("hosts.txt").write_text(f"bob {DEAD}\nalice {vllm.url}\n")
    result = scout("hosts.txt", "--json")
    assert result.exit_code == 0
    bob, alice = objects(result)  # in the order of the file, though the dead one is done first
    assert (bob["name"], alice["name"]) == ("bob", "alice")
    assert set(KEYS) <= set(alice)
    assert list(alice) == list(bob)
    assert alice["requests_total"] == 1022
    assert alice["findings"] == [
        {
            "code": "metrics_open",
            "text": "`/metrics` answers anyone: configuration and load are public",
        }
    ]
    assert bob["status"] == "down"
    assert bob["error"].startswith("connection refused")
    unknown = {key: bob[key] for key in KEYS if key not in ("name", "url", "status", "error")}
    assert {key for key, value in unknown.items() if value is not None} == {"models", "findings"}


def test_the_table_names_every_host_and_every_reason(vllm: RawServer) -> None:
    Path("hosts.txt").write_text(f"alice {vllm.url}\nbob {DEAD}\n")
    result = scout()  # hosts.txt is the default
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert (
        lines[0].split()
        == (
            "host status engine model length KV tokens KV run wait prefix hits TTFT p50 p95 queue"
            " requests latency"
        ).split()
    )
    alice = next(line for line in lines if line.startswith("alice"))
    for cell in (
        "ok",
        "vllm 0.32.0",
        "tiny",
        "512",
        "2,097,152",
        "0%",
        "6%",
        "380 ms",
        "2,370 ms",
        "567 ms",
        "1,022",
    ):
        assert cell in alice
    assert "down  bob: connection refused: nothing listens there, or vLLM is still loading" in lines
    assert "\x1b" not in result.stdout


def test_all_hosts_down_is_exit_one_with_the_rows(vllm: RawServer) -> None:
    assert scout(DEAD, "--json").exit_code == 1
    assert scout(DEAD, vllm.url, "--json").exit_code == 0


def test_a_web_server_is_no_dead_host() -> None:
    with serving({"/": http(b"hello")}) as server:
        result = scout(server.url, "--json")
    assert result.exit_code == 0
    assert objects(result)[0]["status"] == "not_an_engine"


def test_hosts_come_from_standard_input_and_from_the_environment(
    vllm: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert objects(scout("-", "--json", input=f"alice {vllm.url}\n"))[0]["name"] == "alice"
    Path("cast.txt").write_text(f"carol {vllm.url}\n")
    monkeypatch.setenv("TOOLKIT_HOSTS", "cast.txt")
    assert objects(scout("--json"))[0]["name"] == "carol"


def test_sightings_and_raw_numbers_are_stored_where_design_says(vllm: RawServer) -> None:
    scout(vllm.url)
    with closing(sqlite3.connect("data/toolkit.db")) as db:
        assert db.execute("SELECT status, requests_total FROM sightings").fetchall() == [
            ("ok", 1022.0)
        ]
        stored = dict(db.execute(
            "SELECT series.name, sum(value) FROM readings JOIN series ON series.id = series_id GROUP BY 1"
        ))  # fmt: skip
    assert stored["vllm:prompt_tokens_total"] == 98917.0
    assert stored["vllm:request_success_total"] == 1022.0
    assert stored["vllm:iteration_tokens_total_sum"] == 201779.0


def test_nothing_is_stored_when_nothing_shall_be(vllm: RawServer) -> None:
    scout(vllm.url, "--no-store")
    assert list(Path().iterdir()) == []


def test_a_restart_and_a_change_are_told_at_the_next_look(vllm: RawServer) -> None:
    scout(vllm.url)
    page = recorded("metrics_after_load.txt").replace(b'cache_dtype="auto"', b'cache_dtype="fp8"')
    vllm.pages["/metrics"] = http(page.replace(b"1.79520096311e+09", b"1.7952009999e+09"))
    told = {
        finding["code"]: finding["text"]
        for finding in objects(scout(vllm.url, "--json"))[0]["findings"]
    }
    assert told["restarted"] == "restarted at 2026-11-20 18:56:39 UTC: its counters began anew"
    assert told["config_changed"] == "cache_dtype auto -> fp8"


def test_a_look_that_was_cut_short_hides_no_restart_from_the_next_command(vllm: RawServer) -> None:
    scout(vllm.url)
    whole = vllm.pages["/metrics"]
    vllm.pages["/metrics"] = http(status="503 Service Unavailable")
    assert scout(vllm.url).exit_code == 0
    vllm.pages["/metrics"] = whole.replace(b"1.79520096311e+09", b"1.79520099999e+09")
    findings = objects(scout(vllm.url, "--json"))[0]["findings"]
    assert [finding["code"] for finding in findings] == ["restarted", "metrics_open"]


def test_history_tells_chapters_and_contacts_nobody(vllm: RawServer) -> None:
    Path("hosts.txt").write_text(f"alice {vllm.url}\n")
    scout()
    scout()
    vllm.pages["/version"] = http(b'{"version":"0.33.0"}')
    scout()
    asked = len(vllm.requests)
    result = scout("--history", "alice")
    assert len(vllm.requests) == asked
    first, second = result.stdout.splitlines()[2:]
    assert ("first seen" in first, "version 0.32.0 -> 0.33.0" in second) == (True, True)
    assert [line["version"] for line in objects(scout("--history", "alice", "--json"))] == [
        "0.32.0", "0.32.0", "0.33.0",
    ]  # fmt: skip


def test_an_unknown_name_in_the_history_gets_the_known_ones(vllm: RawServer) -> None:
    Path("hosts.txt").write_text(f"alice {vllm.url}\n")
    scout()
    result = scout("--history", "alicia")
    assert (result.exit_code, result.stderr) == (
        1, "Error: `data/toolkit.db` has no sighting of `alicia`\n\nHint: Known hosts: alice\n",
    )  # fmt: skip


def test_two_looks_show_true_rates(vllm: RawServer) -> None:
    (line,) = objects(scout(vllm.url, "--interval", "100ms", "--json"))
    assert line["requests_per_s"] == 0
    assert line["interval_s"] == pytest.approx(0.1, rel=1)
    assert "req/s" in scout(vllm.url, "--interval", "100ms").stdout


def test_watch_prints_each_look_and_keeps_each(vllm: RawServer) -> None:
    result = scout(vllm.url, "--watch", "--interval", "50ms", "--count", "3", "--json")
    assert len(objects(result)) == 3
    with closing(sqlite3.connect("data/toolkit.db")) as db:
        assert db.execute("SELECT count(*) FROM sightings").fetchone() == (3,)


def test_the_key_opens_what_is_closed_and_appears_nowhere(
    vllm: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALICE_KEY", "s3cret-k3y")
    vllm.pages["/v1/models"] = http(b'{"error":"Unauthorized"}', "401 Unauthorized")
    Path("hosts.txt").write_text(f"alice {vllm.url} api_key_env=ALICE_KEY\n")
    result = scout("--json", "-v")
    sent = [
        headers.get("authorization") for _, path, headers in vllm.requests if path == "/v1/models"
    ]
    assert sent == [None, "Bearer s3cret-k3y"]
    assert "s3cret" not in result.output
    assert b"s3cret" not in Path("data/toolkit.db").read_bytes()
    assert "ALICE_KEY" not in Path("data/toolkit.db").read_bytes().decode("latin-1")


BAD_INPUT = [
    (
        ["nowhere.txt"], "", {},
        ("Error: `nowhere.txt` cannot be read: no such file or directory\n\n"
        "Hint: Put one host per line, e.g., `alice http://10.0.0.4:8000 team=red`\n"),
    ),
    (
        ["-"], "", {},
        ("Error: `standard input` names no host\n\n"
        "Hint: Put one host per line, e.g., `alice http://10.0.0.4:8000 team=red`\n"),
    ),
    (
        ["-"], "alice http://h:1 api_key_env=NO_SUCH_VARIABLE", {},
        ("Error: `NO_SUCH_VARIABLE` is not set, which holds the key of host `alice`\n\n"
        "Hint: Set it, e.g., `export NO_SUCH_VARIABLE=...`, or take `api_key_env=` out of the line\n"),
    ),
    (
        ["-"], "alice http://h:1 api_key_env=ODD", {"ODD": "a b\nc"},
        "Error: `ODD` holds characters that no HTTP header may carry\n\nHint: Was it pasted whole?\n",
    ),
    (
        ["http://h:1", "http://h:1/v1"], "", {},
        "Error: the name `h:1` stands twice\n\nHint: Keep one of the two lines\n",
    ),
    (
        ["http://h:1", "--ca", "no.pem"], "", {},
        ("Error: `no.pem` cannot be used: no such file or directory\n\n"
        "Hint: Give a file of PEM certificates, e.g., `--ca company-ca.pem`\n"),
    ),
    (
        ["--history", "alice"], "", {},
        "Error: `data/toolkit.db` does not exist\n\nHint: `toolkit scout`, `bench`, `blast` and `capture` make it; `--db` names another\n",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("words", "stdin", "env", "message"), BAD_INPUT, ids=range(len(BAD_INPUT)))
def test_bad_input_gets_one_clear_error_and_a_hint(
    words: list[str], stdin: str, env: dict[str, str], message: str
) -> None:
    result = scout(*words, input=stdin, env=env)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", message)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["h:1", "--timeout", "5"], "`5` is no duration; write e.g. `500ms`, `90s`, `15m` or `2h`"),
        (["h:1", "--count", "3"], "--count goes with --watch"),
        (["h:1", "--what"], "No such option"),
    ],
)
def test_a_wrong_command_line_is_exit_two(words: list[str], said: str) -> None:
    result = scout(*words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_help_answers_without_loading_what_a_command_needs() -> None:
    heavy = "httpx pandas numpy sqlite3 sqlite_utils prometheus_client scapy aiohttp starlette rich asyncio"
    program = (
        "import sys, contextlib\n"
        "sys.argv = ['toolkit', '--help']\n"
        "from toolkit.cli import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        f"print(sorted(set(sys.modules) & set({heavy!r}.split())))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "scout" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_watch_ends_well_and_has_kept_everything_it_printed(
    vllm: RawServer, stop: signal.Signals
) -> None:
    words = ["scout", vllm.url, "--watch", "--interval", "50ms", "--json", "--db", "w.db"]
    program = "from toolkit.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        printed = [running.stdout.readline() for _ in range(3)]
        os.kill(running.pid, stop)
        rest, errors = running.communicate(timeout=20)
    assert (running.returncode, errors) == (0, "")
    seen = [json.loads(line)["at"] for line in [*printed, *rest.splitlines()]]
    with closing(sqlite3.connect("w.db")) as db:
        assert [at for (at,) in db.execute("SELECT at FROM sightings ORDER BY at")] == seen


def test_a_reader_that_goes_away_ends_the_watch_without_a_traceback(vllm: RawServer) -> None:
    words = ["scout", vllm.url, "--watch", "--interval", "50ms", "--json", "--no-store"]
    program = "from toolkit.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert json.loads(running.stdout.readline())["status"] == "ok"
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait(timeout=20) == 1
