"""What the command line of `toolkit board` said."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.board.standings import RankBy

if TYPE_CHECKING:
    from toolkit.board.feed import Feed
    from toolkit.board.standings import Board


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardOptions:
    """The command line of one board, fields named as its options."""

    watch: bool
    count: int | None
    at: float | None
    window: float
    rank_by: RankBy
    honest: bool
    skip_limited: bool
    run: str | None
    everything: bool
    as_json: bool
    as_csv: bool
    serve: bool
    port: int | None
    host: str | None
    database: Path

    @property
    def at_s(self) -> int | None:
        """The last second that had ended then; None: now."""
        return None if self.at is None else math.ceil(self.at) - 1

    def board(self, feed: "Feed") -> "Board":
        """The board that is asked for."""
        return feed.board(
            window_s=max(1, round(self.window)),
            at_s=self.at_s,
            rank_by=self.rank_by,
            honest=self.honest,
            skip_limited=self.skip_limited,
        )
