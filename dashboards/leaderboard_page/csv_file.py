"""The standings as a spreadsheet reads them: the keys of `toolkit board --json`, a line a host."""

import csv
import io

from toolkit.board.standings import Board
from toolkit.safe_text import spreadsheet_cell

KEYS = tuple(
    "rank name url score rps output_tokens_per_s ttft_p50_ms ttft_p95_ms p50_ms p95_ms error_rate ok errors"
    " hit_share tied rank_change verdicts window_s at".split()
)


def csv_of(board: Board) -> bytes:
    """Ranked hosts first, then those left out of an honest board; unknown is empty."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(KEYS)
    for one in (*board.standings, *board.left_out):
        told = [getattr(one, key) for key in KEYS if key != "verdicts"]
        told.insert(KEYS.index("verdicts"), " ".join(verdict.code for verdict in one.verdicts))
        lines.writerow(["" if value is None else spreadsheet_cell(value) for value in told])
    return written.getvalue().encode("utf-8", "replace")
