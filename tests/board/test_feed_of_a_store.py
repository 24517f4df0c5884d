"""The feed on the real store, while a blast is written: every board is that of a reader who has just come."""

from pathlib import Path

import pytest
from support.blasted import blasted, feed

from toolkit.board.feed import Feed
from toolkit.store import Store


@pytest.mark.slow
def test_a_feed_that_follows_a_growing_file_tells_what_a_fresh_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "toolkit.db"
    run = blasted(path, hosts=7, seconds=90, ended=False)
    with Store.open(path) as writer, Store.open_readonly(path) as reader:
        followed = Feed(reader, run)
        followed.board(window_s=40)
        followed.ranks(window_s=40)
        for second in range(90, 110):
            feed(writer, run, second)
            assert followed.refresh()
            fresh = Feed(reader, run)
            for rank_by in ("rps", "score"):
                told = followed.board(window_s=40, rank_by=rank_by)
                assert told.at_s == followed.start_s + second
                assert told == fresh.board(window_s=40, rank_by=rank_by)
            assert followed.ranks(window_s=40) == fresh.ranks(window_s=40)
            assert followed.events() == fresh.events()
