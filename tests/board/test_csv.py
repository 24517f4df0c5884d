import csv
import io

from support.standings import board, standing, verdict

from toolkit.board.standings import csv_of

KEYS = ("rank", "name", "rps", "score", "p95_ms", "verdicts")


def lines(told: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(told)))


def test_a_line_a_host_in_the_boards_order_and_who_is_left_out_last() -> None:
    out = standing("trick", None, left_out=True)
    shown = board(standing("b", 1), standing("a", 2), left_out=(out,), honest=True)
    assert [(line["rank"], line["name"]) for line in lines(csv_of(shown, KEYS))] == [
        ("1", "b"),
        ("2", "a"),
        ("", "trick"),
    ]


def test_figures_are_whole_numbers_for_programs_and_unknown_is_empty() -> None:
    (line,) = lines(csv_of(board(standing("a", rps=12.345678, score=None, p95_ms=1234.5)), KEYS))
    assert (line["rps"], line["score"], line["p95_ms"]) == ("12.345678", "", "1234.5")


def test_verdicts_are_their_codes() -> None:
    found = (verdict("restarted"), verdict("config_drift"))
    (line,) = lines(csv_of(board(standing("a", verdicts=found)), KEYS))
    assert line["verdicts"] == "restarted config_drift"


def test_a_name_with_commas_quotes_and_line_ends_stays_one_field() -> None:
    odd = 'a,"b"\nc'
    (line,) = lines(csv_of(board(standing(odd)), KEYS))
    assert line["name"] == odd
    assert tuple(line) == KEYS
