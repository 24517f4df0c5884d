"""`toolkit sweep` as a user meets it: what it refuses, what it would do, and one real sweep of the simulator."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from toolkit.cli import main
from toolkit.cli.places import PACKAGE
from toolkit.records import Run
from toolkit.store import Store
from toolkit.tuning.sweep import Sweep

PROGRAM = [sys.executable, "-c", "from toolkit.cli import main; main()", "sweep"]
SMALL = """
look_at = ["output_tokens_per_s", "invalid_json_ratio"]
blocks = 1
stage = "quantization"
[load]
users = 4
duration = "3s"
settle = "500ms"
mix = 100
max_tokens = 16
[base]
settings = { time_scale = 0.05 }
asked = "schema"
[asking]
requests = 4
prompts = ["Sort this letter."]
schema = "{}"
[[configurations]]
name = "fp8"
sim = "fp8"
[[configurations]]
name = "broken"
sim = "nobody"
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TOOLKIT_DB", "TOOLKIT_HOSTS", "LOCUST_HOST"):
        monkeypatch.delenv(name, raising=False)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["sweep", *words])


def refused(*words: str, code: int = 1) -> str:
    result = run(*words)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    return result.stderr


# --- what it refuses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name a sweep"),
        (["a.toml", "--resume"], "choose one"),
        (["--show", "abc", "--list"], "choose one"),
        (["--resume", "abc", "--users", "3"], "are for a new sweep"),
        (["--show", "abc", "--sim"], "are for a new sweep"),
        (["--list", "--dry-run"], "--dry-run is for a new sweep"),
        (["a.toml", "--chart", "a.gif"], "--chart writes a PNG or an SVG"),
        (["a.toml", "--duration", "5"], "no duration"),
    ],
)
def test_what_cannot_be_meant_is_a_wrong_command_line(words: list[str], told: str) -> None:
    # `--resume` takes a word if one follows
    words = [*words, "--json"] if words[-1:] == ["--resume"] else words
    assert told in refused(*words, code=2)


def test_an_unknown_sweep_names_the_recipes() -> None:
    told = refused("nothing")
    assert told.startswith("Error: `nothing` cannot be read: no such file")
    assert "quantizations" in told


@pytest.mark.parametrize(
    ("text", "words", "cause"),
    [
        (SMALL.replace("invalid_json_ratio", "speed"), [], "`look_at` names no figure: `speed`"),
        ('configurations = [{name = "a", flags = {x = 1}}]', [], "names neither `model`, `url` nor"),
        ('configurations = [{name = "a", model = "m"}]', ["--sim"], "`a` names no simulated stand-in"),
        # a profile that brings its own load
        (SMALL, ["--profile", "ramp"], "the phases of `ramp` say how many users"),
        (SMALL, ["--profile", "nope"], "no profile is called `nope`"),
    ],
)  # fmt: skip
def test_what_nobody_could_run_is_refused_before_anything_starts(
    text: str, words: list[str], cause: str
) -> None:
    Path("a.toml").write_text(text)
    assert cause in refused("a.toml", *words)
    assert not Path("data").exists()


def test_a_closed_terminal_ends_it_once_lets_it_clear_away_and_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shell sends one SIGHUP and the kernel another."""
    ended: list[str] = []

    def hung_up(_: Sweep) -> None:
        try:
            signal.raise_signal(signal.SIGHUP)
        finally:
            signal.raise_signal(signal.SIGHUP)
            ended.append("cleared away")

    monkeypatch.setattr(Sweep, "run", hung_up)
    Path("a.toml").write_text(SMALL)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        result = run("a.toml", "--sim", "--db", "other.db")
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (ended, result.exit_code) == (["cleared away"], 130)
    with Store.open_readonly("other.db") as store:
        (kept,) = store.runs(verb="sweep")
    assert result.stderr.endswith(
        f"\nStopped; go on with `toolkit sweep --resume {kept.id} --db other.db`, see what there is with "
        f"`toolkit sweep --show {kept.id} --db other.db`\n"
    )


def test_there_must_be_a_sweep_to_go_on_with() -> None:
    with Store.open("data/toolkit.db") as store:
        store.add_run(Run(id="b" * 12, verb="blast", started_at=1.8e9))
        store.add_run(Run(id="c" * 12, verb="sweep", started_at=1.8e9, ended_at=1.9e9))
        assert "has no sweep that was cut off" in refused("--resume")
        # however many came after it
        for place in range(30):
            begun = 1.9e9 - place
            ended_at = None if place == 29 else begun + 1
            store.add_run(Run(id=f"{place:012}", verb="sweep", started_at=begun, ended_at=ended_at))
    assert "the settings of sweep `000000000029` are not" in refused("--resume")
    assert "The newest: 000000000000, " in refused("--resume", "b" * 12)
    assert "has no run `nope`" in refused("--show", "nope")


# --- what it would do -------------------------------------------------------------------------------------


def test_the_recipes_are_listed() -> None:
    names = [json.loads(line)["name"] for line in run("--list", "--json").stdout.splitlines()]
    assert names == sorted(names)
    assert {"quantizations", "prefix-caching", "structured-output"} <= set(names)
    assert all(name in run("--list").stdout for name in names)


def test_a_dry_run_names_each_configuration_and_the_time_and_starts_nothing() -> None:
    result = run("quantizations", "--sim", "--dry-run", "--blocks", "2", "--duration", "20s")
    assert result.exit_code == 0, result.output
    for word in (
        "toolkit sim serve --personality awq",
        "Each in 2 interleaved blocks: ",
        "loaded by 64 users for 20 s with the prompts of `contest`; ",
        "the first 4 s do not count",
        # 2 blocks x 3 x (1 s start + 20 s load + 4 s around it)
        "That takes about 2 min 30 s",
    ):
        assert word in result.stdout
    assert not Path("data").exists()


def test_a_dry_run_says_what_the_planner_shows_impossible() -> None:
    text = """
[plan]
gpu = "24GiB"
[base]
model = "Qwen2.5-7B-Instruct"
[[configurations]]
name = "one"
flags = { max-model-len = 4096 }
[[configurations]]
name = "half a million"
flags = { max-model-len = 524288 }
[[configurations]]
name = "unknown"
model = "somebody/something"
"""
    Path("a.toml").write_text(text)
    result = run("a.toml", "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    skipped = {
        (one := json.loads(line))["name"]: one["skipped"] for line in result.stdout.splitlines()
    }
    assert (skipped["one"], skipped["unknown"]) == (None, None)
    # 524,288 tokens of 57,344 bytes are 28 GiB
    assert "too little for max-model-len 524,288" in skipped["half a million"]


def test_a_real_model_s_dry_run_shows_the_flags_as_serve_takes_them() -> None:
    result = run("prefix-caching", "--dry-run")
    assert "--set enable-prefix-caching=false" in result.stdout
    assert "starts of unknown length" in result.stdout


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (PACKAGE / "catalog" / "sweeps").glob("*.toml"))
)
@pytest.mark.parametrize("how", [(), ("--sim",)])
def test_each_command_of_a_dry_run_is_taken_by_the_verb_that_it_names(
    name: str, how: tuple[str, ...]
) -> None:
    shown = run(name, *how, "--dry-run")
    if shown.exit_code:  # a recipe without a stand-in, or without a model
        assert "names neither" in shown.stderr or "names no simulated" in shown.stderr
        return
    told = [
        json.loads(line)["command"]
        for line in run(name, *how, "--dry-run", "--json").stdout.splitlines()
    ]
    printed = [line[2:] for line in shown.stdout.splitlines() if line.startswith("  ")]
    assert printed == told
    for command in told:
        program, *words = shlex.split(command)
        assert program == "toolkit"
        more = ["--for", "1ms", "--port", "0"] if words[0] == "sim" else ["--check", "--port", "0"]
        taken = CliRunner().invoke(main, [*words, *more])
        assert taken.exit_code == 0, f"{command}: {taken.output}"


def test_a_command_is_quoted_and_has_the_engines_variables_before_it() -> None:
    text = """
[base]
model = "my model"
env = { VLLM_LOGGING_LEVEL = "a b" }
served_name = "x"
gpus = "0,1"
[[configurations]]
name = "one"
flags = { compilation-config = { mode = 3 }, enforce-eager = true }
[[configurations]]
name = "theirs"
url = "http://127.0.0.1:9"
"""
    Path("a.toml").write_text(text)
    shown = run("a.toml", "--dry-run").stdout
    assert (
        "  VLLM_LOGGING_LEVEL='a b' toolkit serve 'my model' --served-model-name x --gpus 0,1 "
        "--set 'compilation-config={\"mode\": 3}' --set enforce-eager=true\n"
    ) in shown
    assert "  served at http://127.0.0.1:9\n" in shown


def test_a_dry_run_shows_no_secret_of_an_engines_environment() -> None:
    text = """
[[configurations]]
name = "one"
model = "m"
env = { HF_TOKEN = "hf_geheim", TOKENIZERS_PARALLELISM = false, aws_secret_access_key = "geheim", HTTPS_PROXY = "http://me:geheim@proxy:1" }
"""
    Path("a.toml").write_text(text)
    assert (
        '  HF_TOKEN="$HF_TOKEN" TOKENIZERS_PARALLELISM=false '
        'aws_secret_access_key="$aws_secret_access_key" HTTPS_PROXY="$HTTPS_PROXY" toolkit serve m\n'
    ) in run("a.toml", "--dry-run").stdout
    told = run("a.toml", "--dry-run", "--json").stdout
    assert json.loads(told)["serving"]["env"][0] == ["HF_TOKEN", "$HF_TOKEN"]
    assert "geheim" not in told


# --- a real one ---------------------------------------------------------------------------------------------


def swept(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*PROGRAM, *words],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.slow
def test_a_sweep_of_the_simulator_ends_with_a_table_a_chart_and_a_page() -> None:
    Path("a.toml").write_text(SMALL)
    done = swept("a.toml", "--json", "--chart", "a.svg", "--html", "a.html")
    assert done.returncode == 0, done.stderr
    fp8, broken, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert (fp8["status"], fp8["blocks"]) == ("measured", 1)
    figures: dict[str, Any] = fp8["figures"]
    assert figures["output_tokens_per_s"] > 0
    assert figures["cold_ttft_ms"] > 0  # it was warmed
    # the simulator knows no JSON: four answers, none of them valid
    assert (figures["json_answered"], figures["invalid_json_ratio"]) == (4, 1)
    assert (broken["status"], "no personality" in broken["cause"]) == ("failed", True)
    assert last["summary"]["metric"] == "output_tokens_per_s"
    assert Path("a.svg").read_text().count("<svg") == 1
    assert "nobody" in Path("a.html").read_text()
    run_id = json.loads(CliRunner().invoke(main, ["runs", "--verb", "sweep", "--json"]).stdout)[
        "run"
    ]
    again = run("--show", run_id, "--json")
    assert again.stdout == done.stdout
    table = run("--show", run_id)
    assert "failed: `nobody` is no personality" in " ".join(table.stdout.split())
    assert "nothing is left to do" in run("--resume", run_id).stderr
