"""Epochs over restarts of the upstream, of the proxy, of both, and with several proxies on one file."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
from support.quiet_cache import QuietCache

from toolkit.proxy.settings import CacheSetting, Settings, UpstreamSetting
from toolkit.proxy.stored.shared_cache import SharedCache
from toolkit.proxy.upstreams.epoch_keeper import EpochKeeper
from toolkit.proxy.upstreams.generations import Generations
from toolkit.proxy.upstreams.identity import Identity, Model

TINY = Model(id="tiny", root="/models/tiny", max_model_len=512)
FIRST = Identity(version="0.32.0", models=(TINY,), settings="ab", started_at=1.7e9)
AGAIN = Identity(version="0.32.0", models=(TINY,), settings="ab", started_at=1.7e9 + 60)
A, B = "http://a:1", "http://b:1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@pytest.fixture
def book(path: Path) -> Iterator[QuietCache]:
    with closing(QuietCache(path, 2**20)) as opened:
        yield opened


class Proxy:
    """A keeper, and what it said."""

    def __init__(
        self,
        book: SharedCache | None,
        kind: Literal["restart", "change"] = "restart",
        urls: tuple[str, ...] = (A, B),
    ) -> None:
        upstreams = tuple(UpstreamSetting(name=url[7], url=url) for url in urls)
        settings = Settings(upstreams=upstreams, cache=CacheSetting(epoch=kind))
        self.generations = Generations()
        self.changed: list[str] = []
        self.why: list[object] = []
        self.keeper = EpochKeeper(
            settings,
            book,
            self.generations,
            changed=self.changed.extend,
            event=lambda _, told: self.why.append(told["why"]),
        )

    def sees(self, seen: Identity, name: str = "a", now: float = 0.0) -> dict[str, int]:
        asyncio.run(self.keeper.saw(name, seen, now))
        return self.generations.numbers


@pytest.mark.parametrize("has_book", [True, False])
def test_the_first_sight_raises_nothing_and_a_restart_raises_once(
    book: QuietCache, has_book: bool
) -> None:
    proxy = Proxy(book if has_book else None)
    assert proxy.sees(FIRST) == {}
    assert proxy.sees(FIRST) == {}
    assert proxy.sees(AGAIN) == {"tiny": 1, "*": 1}
    assert proxy.sees(AGAIN) == {"tiny": 1, "*": 1}
    assert proxy.why == ["restart"]
    assert sorted(proxy.changed) == ["*", "tiny"]


def test_a_restart_of_the_proxy_alone_raises_nothing(book: QuietCache) -> None:
    Proxy(book).sees(FIRST)
    assert Proxy(book).sees(FIRST) == {}


def test_an_upstream_that_restarted_while_the_proxy_was_down_is_found_out(
    book: QuietCache,
) -> None:
    Proxy(book).sees(FIRST)
    proxy = Proxy(book)
    assert proxy.sees(AGAIN) == {"tiny": 1, "*": 1}
    assert book.epochs() == {"tiny": 1, "*": 1}
    assert Proxy(book).generations.numbers == {"tiny": 1, "*": 1}


def test_only_a_change_counts_where_only_changes_shall(book: QuietCache) -> None:
    proxy = Proxy(book, "change")
    proxy.sees(FIRST)
    assert proxy.sees(AGAIN) == {}
    other = Model(id="tiny", root="/models/other", max_model_len=512)
    assert proxy.sees(Identity(models=(other,))) == {"tiny": 1, "*": 1}
    assert proxy.why == ["models"]


def test_two_proxies_on_one_file_raise_one_restart_once(path: Path) -> None:
    with closing(SharedCache(path, 2**20)) as one, closing(SharedCache(path, 2**20)) as two:
        first, second = Proxy(one), Proxy(two)
        first.sees(FIRST)
        second.sees(FIRST)
        assert first.sees(AGAIN) == {"tiny": 1, "*": 1}
        # it sees the restart, and that the other has seen it
        assert second.sees(AGAIN) == {"tiny": 1, "*": 1}
        assert one.epochs() == {"tiny": 1, "*": 1}
        assert (first.why, second.why) == (["restart"], [])
        assert sorted(second.changed) == ["*", "tiny"]
        third = Identity(version="0.33.0", started_at=1.7e9 + 120)
        assert second.sees(third) == {"tiny": 2, "*": 2}
        first.keeper.refresh()
        assert first.generations.numbers == {"tiny": 2, "*": 2}
        assert first.sees(third) == {"tiny": 2, "*": 2}


def test_what_another_process_raised_is_taken_over_and_told(path: Path) -> None:
    with closing(SharedCache(path, 2**20)) as one, closing(SharedCache(path, 2**20)) as two:
        proxy = Proxy(one)
        two.bump("tiny")
        proxy.keeper.refresh()
        assert proxy.generations.numbers == {"tiny": 1}
        assert proxy.changed == ["tiny"]
        proxy.keeper.refresh()
        assert proxy.changed == ["tiny"], "once"


def test_a_name_is_nothing_and_the_address_all(book: QuietCache) -> None:
    Proxy(book, urls=(A,)).sees(FIRST)
    # the same name stands before another server now
    settings = Settings(upstreams=(UpstreamSetting(name="a", url=B),))
    keeper = EpochKeeper(
        settings, book, Generations(), changed=lambda _: None, event=lambda *_: None
    )
    assert keeper._epochs.identity("a") is None


def test_a_file_that_cannot_be_written_keeps_no_epoch_from_being_raised(book: QuietCache) -> None:
    proxy = Proxy(book)
    proxy.sees(FIRST)
    assert book._file is not None
    book._file.close()
    assert proxy.sees(AGAIN) == {"tiny": 1, "*": 1}
    assert book.flush() or book.problem
    book.mend()
    assert book.epochs() == {"tiny": 1, "*": 1}, "made up for, once the file can be written"
    assert Proxy(book).generations.numbers == {"tiny": 1, "*": 1}


def test_a_proxy_that_ends_while_it_raises_an_epoch_has_it_in_the_file(
    book: QuietCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(book)
    proxy.sees(FIRST)
    may_write, bump = threading.Event(), book.bump

    def late(model: str) -> int:
        assert may_write.wait(60)
        return bump(model)

    monkeypatch.setattr(book, "bump", late)

    async def end() -> None:
        look = asyncio.create_task(proxy.keeper.saw("a", AGAIN, 1.0))
        while not proxy.why:  # noqa: ASYNC110 (until it waits for the file)
            await asyncio.sleep(0)
        look.cancel()
        asyncio.get_running_loop().call_soon(may_write.set)
        with pytest.raises(asyncio.CancelledError):
            await look
        assert book.epochs() == {"tiny": 1, "*": 1}

    asyncio.run(end())


def test_coming_back_is_a_restart_only_where_no_start_time_tells_better(book: QuietCache) -> None:
    proxy = Proxy(book)
    proxy.sees(FIRST)
    asyncio.run(proxy.keeper.came_back("a"))
    assert proxy.generations.numbers == {}
    proxy.sees(Identity(models=(Model(id="other"),)), "b")
    asyncio.run(proxy.keeper.came_back("b"))
    assert proxy.generations.numbers == {"other": 1, "*": 1}
    asyncio.run(proxy.keeper.came_back("a"))
    never = Proxy(None, "change")
    never.sees(Identity(models=(TINY,)))
    asyncio.run(never.keeper.came_back("a"))
    assert never.generations.numbers == {}


def test_counters_are_written_now_and_then_and_only_where_they_are_needed(
    book: QuietCache,
) -> None:
    proxy = Proxy(book)
    proxy.sees(Identity(models=(TINY,), tokens_total=100.0), now=0.0)
    first = book.identity(A)
    proxy.sees(Identity(models=(TINY,), tokens_total=200.0), now=29.0)
    assert book.identity(A) == first
    proxy.sees(Identity(models=(TINY,), tokens_total=300.0), now=30.0)
    assert book.identity(A) != first
    # fewer tokens than the file knows of: it began anew while the proxy was down
    assert Proxy(book).sees(Identity(models=(TINY,), tokens_total=299.0)) == {"tiny": 1, "*": 1}


# --- what several machines agree in --------------------------------------------------------------------------


def test_the_fingerprint_is_equal_for_equal_servers_wherever_they_are() -> None:
    here, there = Proxy(None, "change", urls=(A,)), Proxy(None, "change", urls=(A, B))
    here.sees(FIRST)
    there.sees(AGAIN, "a")
    there.sees(AGAIN, "b")
    assert here.keeper.fingerprint("tiny") == there.keeper.fingerprint("tiny")


def test_the_fingerprint_differs_with_anything_that_makes_answers_stale() -> None:
    base = Proxy(None, "change", urls=(A,))
    base.sees(FIRST)
    prints = {base.keeper.fingerprint("tiny")}
    others = [
        Identity(version="0.33.0"),
        Identity(settings="cd"),
        Identity(models=(Model(id="tiny", root="/models/other", max_model_len=512),)),
        Identity(models=(Model(id="tiny", root="/models/tiny", max_model_len=1024),)),
    ]
    for other in others:
        proxy = Proxy(None, "change", urls=(A,))
        proxy.sees(FIRST)
        proxy.sees(other)
        prints.add(proxy.keeper.fingerprint("tiny"))
    assert len(prints) == 5
    restarts = Proxy(None, urls=(A,))
    restarts.sees(FIRST)
    before = restarts.keeper.fingerprint("tiny")
    restarts.sees(AGAIN)
    assert restarts.keeper.fingerprint("tiny") != before


def test_another_model_beside_it_does_not_change_a_model_s_fingerprint() -> None:
    proxy = Proxy(None, urls=(A, B))
    proxy.sees(FIRST)
    proxy.sees(Identity(version="8", models=(Model(id="big"),)), "b")
    before = proxy.keeper.fingerprint("tiny")
    proxy.sees(Identity(models=(TINY, Model(id="lora")), started_at=1.7e9))
    proxy.sees(Identity(version="9", models=(Model(id="big"),)), "b")
    assert proxy.keeper.fingerprint("tiny") == before
    # nobody is known to serve it: anybody may
    unknown = proxy.keeper.fingerprint("unknown")
    proxy.sees(Identity(version="10"), "b")
    assert proxy.keeper.fingerprint("unknown") != unknown


def test_a_restart_that_only_this_proxy_knows_of_changes_the_fingerprint() -> None:
    proxy = Proxy(None, urls=(A,))
    proxy.sees(Identity(models=(TINY,), tokens_total=100.0))
    before = proxy.keeper.fingerprint("tiny")
    proxy.sees(Identity(models=(TINY,), tokens_total=200.0))
    assert proxy.keeper.fingerprint("tiny") == before
    proxy.sees(Identity(models=(TINY,), tokens_total=50.0))
    fallen = proxy.keeper.fingerprint("tiny")
    assert fallen != before
    asyncio.run(proxy.keeper.came_back("a"))
    assert proxy.keeper.fingerprint("tiny") not in (before, fallen)


def test_what_another_process_raised_changes_the_fingerprint_where_no_start_time_is_known(
    path: Path,
) -> None:
    with closing(SharedCache(path, 2**20)) as one, closing(SharedCache(path, 2**20)) as two:
        proxy = Proxy(one, urls=(A,))
        proxy.sees(Identity(models=(TINY,)))
        before = proxy.keeper.fingerprint("tiny")
        two.bump("tiny")
        proxy.keeper.refresh()
        assert proxy.keeper.fingerprint("tiny") != before


def test_unknown_servers_are_told_apart_by_their_addresses() -> None:
    assert Proxy(None, urls=(A,)).keeper.fingerprint("tiny") != Proxy(
        None, urls=(B,)
    ).keeper.fingerprint("tiny")


def test_models_that_clients_make_up_are_not_remembered_for_ever() -> None:
    proxy = Proxy(None)
    proxy.sees(FIRST)
    prints = {proxy.keeper.fingerprint(f"model-{number}") for number in range(3_000)}
    assert len(prints) == 3_000, "a name is part of its own"
    assert len(proxy.keeper._prints) <= 1_024


def test_a_restart_that_counters_tell_is_not_taken_for_one_that_another_saw(
    book: QuietCache,
) -> None:
    # the file has 100 tokens, this proxy saw 1,000; after the restart it is 150: more than in the file
    proxy = Proxy(book)
    proxy.sees(Identity(models=(TINY,), tokens_total=100.0), now=0.0)
    proxy.sees(Identity(models=(TINY,), tokens_total=1000.0), now=10.0)
    assert proxy.sees(Identity(models=(TINY,), tokens_total=150.0), now=11.0) == {"tiny": 1, "*": 1}


def test_the_first_look_makes_another_fingerprint_than_none() -> None:
    proxy = Proxy(None, urls=(A,))
    before = proxy.keeper.fingerprint("tiny")
    proxy.sees(FIRST)
    assert proxy.keeper.fingerprint("tiny") != before


def test_where_only_changes_count_one_machine_s_history_is_not_in_the_fingerprint() -> None:
    here, there = Proxy(None, "change", urls=(A,)), Proxy(None, "change", urls=(A,))
    here.sees(Identity(version="1", models=(TINY,)))
    here.sees(Identity(version="2", models=(TINY,)))
    there.sees(Identity(version="2", models=(TINY,)))
    assert (here.generations.numbers, there.generations.numbers) == ({"tiny": 1, "*": 1}, {})
    assert here.keeper.fingerprint("tiny") == there.keeper.fingerprint("tiny")
