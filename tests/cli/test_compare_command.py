"""`toolkit compare` as a user meets it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support import shots
from support.blasted import STARTED_AT, blasted

from toolkit.cli import main
from toolkit.records import Run
from toolkit.store import Store

KEYS = "metric a b difference low high verdict".split()
METRICS = (
    "rps output_tokens_per_s ttft_p50_ms ttft_p95_ms e2e_p50_ms e2e_p95_ms tpot_p50_ms error_rate"
).split()


def compare(*words: str, database: Path) -> Result:
    return CliRunner().invoke(
        main, ["compare", *words, "--db", str(database)], catch_exceptions=False
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Two blasts of eight hosts, of 120 and of 150 seconds."""
    path = tmp_path_factory.mktemp("compared") / "t.db"
    runs = [
        blasted(path, hosts=8, seconds=seconds, seed=seed)
        for seed, seconds in enumerate((120, 150))
    ]
    return path, runs[0].id, runs[1].id


def test_json_has_the_promised_keys_first_for_every_metric(stored: tuple[Path, str, str]) -> None:
    path, a, _ = stored
    result = compare(f"{a}:plain-05", f"{a}:memory", "--json", database=path)
    assert (result.exit_code, result.stderr) == (0, "")
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["metric"] for each in told] == METRICS
    assert all(list(each)[: len(KEYS)] == KEYS for each in told)
    rps = told[0]
    # the fixture's `memory` answers six times what `plain-05` does, and four of five from memory in 3 ms
    assert rps["b"] / rps["a"] == pytest.approx(6, rel=0.1)
    assert (rps["difference"], rps["verdict"]) == (pytest.approx(rps["b"] - rps["a"]), "better")
    assert rps["low"] < rps["difference"] < rps["high"]
    assert {each["metric"]: each["verdict"] for each in told}["e2e_p50_ms"] == "better"
    assert (rps["comparable"], rps["paired"], rps["host_b"]) == (True, True, "memory")


def test_the_table_names_both_sides_and_ends_with_a_sentence(stored: tuple[Path, str, str]) -> None:
    path, a, b = stored
    result = compare(f"{a}:plain-05", f"{b}:dead", database=path)
    lines = result.stdout.splitlines()
    assert lines[:2] == [f"A: plain-05 in run {a} (blast)", f"B: dead in run {b} (blast)"]
    # of 121 seconds the fixture's loader leaves 120; its first and last are cut, and three were limited
    assert "Note: compared are the 115 seconds that both have; A has 115, B 145" in lines
    assert lines[-1].startswith("B is worse in RPS, output tokens/s, error rate; 95 % sure each")
    [rate] = [line for line in lines if line.startswith("error rate")]
    assert "100 %" in rate
    assert "points" in rate
    assert "\x1b" not in result.stdout


def test_hosts_of_the_same_name_are_compared_where_none_is_named(
    stored: tuple[Path, str, str],
) -> None:
    path, a, b = stored
    told = [json.loads(line) for line in compare(a, b, "--json", database=path).stdout.splitlines()]
    assert len(told) == 8 * len(METRICS)
    assert all(each["host_a"] == each["host_b"] for each in told)
    assert {each["host_a"] for each in told} >= {"memory", "plain-07"}
    plain = [each for each in told if each["host_a"].startswith("plain")]
    # equal hosts in two runs: what the fixture draws anew differs by chance alone
    verdicts = [each["verdict"] for each in plain]
    assert verdicts.count("no difference shown") >= len(verdicts) - 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("A", "A"), "which hosts of"),
        (("A:plain-05", "A:plain-05"), "are the same"),
        (("A:nobody", "B"), "`nobody` is no host of run"),
        (("ffffffffffff", "B"), "has no run `ffffffffffff`"),
        (("A:plain-05", "B"), "which hosts of"),
    ],
)
def test_what_cannot_be_compared_is_told_with_a_hint(
    stored: tuple[Path, str, str], words: tuple[str, str], said: str
) -> None:
    path, a, b = stored
    result = compare(*(word.replace("A", a).replace("B", b) for word in words), database=path)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Hint: " in result.stderr


def bench(path: Path, run: str, *, pace: float = 1.0, **settings: object) -> None:
    """128 requests at concurrency 8; `pace` stretches every time."""
    plan = {
        "profile": "bench",
        "requests": 128,
        "concurrency": 8,
        "rate": None,
        "seed": 0,
    } | settings
    with Store.open(path) as store:
        store.add_run(Run(id=run, verb="bench", started_at=STARTED_AT, settings=json.dumps(plan)))
        store.add_shots(
            [
                shots.shot(
                    slot,
                    run=run,
                    tokens=90 + slot * 7 % 20,
                    first_ms=100.0 * pace,
                    token_ms=20.0 * pace,
                    planned_at=STARTED_AT + slot // 8 * 2.5 * pace,
                )
                for slot in range(128)
            ]
        )


def test_two_benches_are_compared_wave_by_wave(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    bench(path, "a" * 12)
    bench(path, "b" * 12, pace=1.5)
    result = compare("a" * 12, "b" * 12, "--json", database=path)
    told = {each["metric"]: each for each in map(json.loads, result.stdout.splitlines())}
    assert told["rps"]["verdict"] == told["e2e_p50_ms"]["verdict"] == "worse"
    assert told["tpot_p50_ms"]["a"] == pytest.approx(20, rel=0.01)
    assert told["tpot_p50_ms"]["b"] == pytest.approx(30, rel=0.01)
    # half as long again: the rate is two thirds
    assert told["rps"]["change"] == pytest.approx(-1 / 3, abs=0.01)
    assert told["rps"]["paired"] is True


def test_benches_with_other_plans_are_named_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    bench(path, "a" * 12)
    bench(path, "b" * 12, max_tokens=64, profile="contest")
    result = compare("a" * 12, "b" * 12, database=path)
    assert "Not comparable: `profile` is bench in A and contest in B" in result.stdout
    assert "Not comparable: `max_tokens` is not set in A and 64 in B" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("but the two are not comparable")
    assert result.exit_code == 0


def test_a_capture_measured_no_servers(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    bench(path, "a" * 12)
    with Store.open(path) as store:
        store.add_run(Run(id="c" * 12, verb="capture", started_at=STARTED_AT))
        store.add_run(Run(id="d" * 12, verb="bench", started_at=STARTED_AT))
    assert "is a run of `capture`" in compare("a" * 12, "c" * 12, database=path).stderr
    assert "has measured nothing" in compare("d" * 12, "a" * 12, database=path).stderr
