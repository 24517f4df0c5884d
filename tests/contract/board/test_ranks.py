"""Ranks of `toolkit board`: equal hosts share one though their counts wander, and all of it follows from the window alone."""

import csv
import io
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from contract.harness.blasts import Blast, begin, by_requests, recount
from contract.harness.programs import rows, run

BEGAN = 1_790_000_000
LENGTH_S = 600
EQUAL = ["anna", "bert", "cleo", "dirk", "ella"]


@pytest.fixture(scope="module")
def blast(tmp_path_factory: pytest.TempPathFactory) -> Blast:
    """Five equal hosts of 20 answers a second by a fair die each, one that is a fifth faster, one that is a third slower."""
    dice = random.Random(15)
    blast = begin(
        tmp_path_factory.mktemp("ranks") / "blast.db", ["fast", *EQUAL, "slow", "dead"], BEGAN
    )
    means = {"fast": 24.0, **dict.fromkeys(EQUAL, 20.0), "slow": 13.0}
    blast.write(
        {
            second: {
                name: {
                    # 40 chances of mean / 40: binomial, nearly Poisson
                    "ok": sum(dice.random() < mean / 200 for _ in range(200)),
                    "errors": int(dice.random() < 0.02),
                    "e2e_ms": 400.0 if name == "fast" else 500.0 + dice.randrange(3),
                }
                for name, mean in means.items()
            }
            | {"dead": {"errors": 1}}
            for second in range(BEGAN, BEGAN + LENGTH_S)
        }
    )
    blast.end(BEGAN + LENGTH_S)
    return blast


def board(blast: Blast, *words: object) -> list[dict[str, Any]]:
    done = run("board", "--json", "--db", blast.file, *words, cwd=blast.file.parent)
    assert done.returncode == 0, done.stderr
    return rows(done.stdout)


@pytest.mark.parametrize("moment", [300, 420, 600])
def test_equal_hosts_share_a_rank_at_every_moment_and_a_recount_says_the_same(
    blast: Blast, moment: int
) -> None:
    at_s = BEGAN + moment - 1
    told = board(
        blast, "--at", datetime.fromtimestamp(at_s + 1, UTC).isoformat(), "--window", "240s"
    )
    counted = recount(blast.file, "aaaabbbbcccc", at_s - 239, at_s)
    # they do wander
    assert len({counted[name].ok for name in EQUAL}) > 2
    assert [(one["name"], one["rank"], one["tied"]) for one in told] == [
        ("fast", 1, False),
        *((name, 2, True) for name in EQUAL),
        ("slow", 7, False),
        ("dead", 8, False),
    ]
    assert {one["name"]: (one["rank"], one["tied"]) for one in told} == by_requests(counted)
    for one in told:
        figures = counted[one["name"]].figures(240)
        for key, figure in figures.items():
            assert one[key] == (None if figure is None else pytest.approx(figure, rel=1e-9)), key
        assert (one["at"], one["window_s"], one["counted_s"]) == (at_s, 240, 240)


@pytest.mark.parametrize(
    ("rank_by", "first"), [("output_tokens_per_s", "fast"), ("error_rate", None), ("score", "fast")]
)
def test_tokens_error_rates_and_scores_of_equal_hosts_are_tied_too(
    blast: Blast, rank_by: str, first: str | None
) -> None:
    told = {one["name"]: one for one in board(blast, "--rank-by", rank_by)}
    assert len({told[name]["rank"] for name in EQUAL}) == 1
    assert all(told[name]["tied"] for name in EQUAL)
    if first:
        assert told[first]["rank"] == 1
        assert not told[first]["tied"]
    assert told["dead"]["rank"] == 8


def test_the_csv_and_the_table_say_what_the_json_says(blast: Blast) -> None:
    told = board(blast)
    done = run("board", "--csv", "--db", blast.file, cwd=blast.file.parent)
    written = list(csv.DictReader(io.StringIO(done.stdout)))
    keys = ["rank", "name", "url", "rps", "p95_ms", "ttft_p50_ms", "error_rate", "ok", "at"]
    for one, line in zip(told, written, strict=True):
        for key in keys:
            found = (
                float(line[key]) if line[key] and isinstance(one[key], int | float) else line[key]
            )
            assert found == ("" if one[key] is None else one[key]), key
        assert line["tied"] == str(one["tied"])
    shown = run("board", "--db", blast.file, cwd=blast.file.parent).stdout
    first_words = [line.split() for line in shown.splitlines()]
    marks = {words[1]: words[0] for words in first_words if len(words) > 5}
    for one in told:
        assert marks[one["name"]] == f"{'=' * one['tied']}{one['rank']}"
