"""What is asked of a large file again and again finds its rows in an index and sorts none, by SQLite's own plan."""

import re

import pytest

from toolkit.store import Store, captures, runs, snapshots, tallies

SEEN = "SEARCH seen USING PRIMARY KEY (run_number=? AND (ts,number)>(?,?) AND ts<?)"
OF_RUN = "SEARCH {0} USING INDEX idx_{0}_run_number_host_id{1} (run_number=? AND host_id=?)"
SIGHTINGS = "SEARCH sightings USING INDEX idx_sightings_host_id_at"
PLANS = [
    (captures._SEEN_OF_RUN, SEEN),
    (runs._SHOTS_OF_RUN, OF_RUN.format("shots", "_slot")),
    (runs._LEDGERS_OF_RUN, OF_RUN.format("ledgers", "")),
    (runs._VERDICTS_OF_RUN, OF_RUN.format("verdicts", "")),
    # ids alone, from the index alone: no row of another second is read, and integers are sorted
    (
        runs._SHOTS_BETWEEN,
        (
            "SEARCH shots USING COVERING INDEX idx_shots_run_number_sent_at_host_id"
            " (run_number=? AND sent_at>? AND sent_at<?)"
        ),
    ),
    (
        tallies._WINDOW,
        (
            "SEARCH tallies USING COVERING INDEX idx_tallies_run_number_at_s_kind"
            " (run_number=? AND at_s>? AND at_s<?)"
        ),
    ),
    (snapshots._LAST_UP, SIGHTINGS),
    (snapshots._BETWEEN, SIGHTINGS),
    (
        tallies._FOLLOWING,
        "SEARCH tallies USING INDEX idx_tallies_ranked (run_number=? AND rowid>?)",
    ),
    (
        tallies._LOADER_SECONDS_OF_RUN,
        "SEARCH loader_seconds USING INDEX idx_loader_seconds_run_number (run_number=? AND rowid>?)",
    ),
    (tallies._LAST_ROW, "SEARCH tallies USING INDEX idx_tallies_ranked (run_number=?)"),
    (tallies._LAST_SECOND, "SEARCH tallies USING COVERING INDEX idx_tallies_run_number_at_s_kind"),
]


@pytest.mark.parametrize(("question", "step"), PLANS)
def test_a_question_finds_its_rows_in_an_index(store: Store, question: str, step: str) -> None:
    # numbered and plain ones take a row of values, named ones a table
    names = re.findall(r":(\w+)", question)
    values = dict.fromkeys(names, 1) if names else (1,) * question.count("?")
    plan = [str(row[3]) for row in store._rows(f"EXPLAIN QUERY PLAN {question}", values)]
    assert [each for each in plan if each.startswith(step)], plan
    large = ("seen", "shots", "ledgers", "verdicts", "tallies", "loader_seconds", "sightings")
    assert not [each for each in plan if each.startswith("SCAN") and each.split()[1] in large], plan
    assert "COVERING" in step or not [each for each in plan if "TEMP B-TREE" in each], plan
