"""How `toolkit board` shows standings to a program: JSON lines and CSV; `board_table` shows them to a person."""

import csv
import io
from dataclasses import asdict

import click

from toolkit.board.standings import Board
from toolkit.cli.output import print_json
from toolkit.safe_text import spreadsheet_cell


def print_json_board(board: Board) -> None:
    """Print one object a host; those left out come last, without rank."""
    about = {
        "run": board.run,
        "rank_by": board.rank_by,
        "honest": board.honest,
        "elapsed_s": board.elapsed_s,
        "counted_s": board.counted_s,
        "limited_s": board.limited_s,
        "frozen_at_s": board.frozen_at_s,
        "ended": board.ended,
    }
    for standing in (*board.standings, *board.left_out):
        print_json(asdict(standing) | about)


COLUMNS = (
    "rank name url score rps output_tokens_per_s ttft_p50_ms ttft_p95_ms p50_ms p95_ms error_rate ok errors"
    " hit_share hit_share_inferred tied rank_change rank_change_5m tainted_s left_out window_s at"
).split()


def print_csv_board(board: Board) -> None:
    """Print a header and one line a host; unknown is empty, verdicts are codes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, "verdicts"])
    for standing in (*board.standings, *board.left_out):
        codes = " ".join(verdict.code for verdict in standing.verdicts)
        values = (*(getattr(standing, name) for name in COLUMNS), codes)
        writer.writerow([spreadsheet_cell(value) for value in values])
    click.echo(text.getvalue(), nl=False)
