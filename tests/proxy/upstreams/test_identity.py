"""Identities and epochs: what of an upstream's pages makes stored answers unreachable, and what must not."""

from dataclasses import replace

import pytest

from toolkit.dialects import EngineNumbers
from toolkit.proxy.upstreams.identity import (
    ANY,
    Epochs,
    Identity,
    Model,
    as_text,
    from_text,
    identity,
)

MODELS = b"""{"object":"list","data":[
  {"id":"tiny","object":"model","created":1,"owned_by":"vllm","root":"/models/tiny","parent":null,"max_model_len":512},
  {"id":"lora","object":"model","created":2,"owned_by":"vllm","root":"/loras/a","parent":"tiny"}]}"""
NUMBERS = EngineNumbers(
    engine="vllm",
    dialect="v1",
    models=("tiny",),
    settings=(("block_size", "16"), ("cache_dtype", "auto")),
    started_at=1000.0,
    prompt_tokens_total=10.0,
    generation_tokens_total=20.0,
)
SERVER = Identity(
    version="0.32.0",
    models=(
        Model(id="lora", root="/loras/a"),
        Model(id="tiny", root="/models/tiny", max_model_len=512),
    ),
    settings="f00",
    started_at=1000.0,
    tokens_total=30.0,
)
KINDS = ("restart", "change")
BOTH = frozenset({"tiny", "lora", ANY})


def seen(kind: str, *identities: Identity, known: Identity | None = SERVER) -> list[frozenset[str]]:
    epochs = Epochs(kind, {} if known is None else {"x": known})  # type: ignore[arg-type]
    return [epochs.see("x", each) for each in identities]


def test_an_identity_is_read_from_the_three_pages() -> None:
    read = identity("0.32.0", MODELS, NUMBERS)
    assert replace(read, settings=None) == replace(SERVER, settings=None)
    assert read.settings is not None


def test_settings_are_the_same_in_another_order_and_others_are_others() -> None:
    turned = replace(NUMBERS, settings=tuple(reversed(NUMBERS.settings)))
    other = replace(NUMBERS, settings=(("block_size", "32"), ("cache_dtype", "auto")))
    sglang = replace(NUMBERS, engine="sglang")
    one, same, *others = (
        identity(None, None, each).settings for each in (NUMBERS, turned, other, sglang)
    )
    assert one == same
    assert len({one, *others}) == 3


@pytest.mark.parametrize(
    "page",
    [b"", b"<html>", b"[]", b"{}", b'{"data":{}}', b"\xff", b"[" * 100_000],
    ids=["empty", "html", "list", "object", "no list", "no text", "deep"],
)
def test_a_page_that_is_none_tells_no_models_and_the_metrics_labels_do(page: bytes) -> None:
    assert identity(None, page, None).models is None
    assert identity(None, page, NUMBERS).models == (Model(id="tiny"),)


def test_cards_that_are_none_are_left_out() -> None:
    page = b'{"data":[1,null,{"id":3},{"id":"a","root":5,"max_model_len":"x"},{"id":"b","max_model_len":true}]}'
    assert identity(None, page, None).models == (Model(id="a"), Model(id="b"))


def test_nothing_told_is_an_identity_of_nothing() -> None:
    assert identity(None, None, None) == Identity()
    assert identity("", None, EngineNumbers(engine="tgi", dialect="tgi")) == Identity()


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_sight_of_an_upstream_without_a_past_raises_nothing(kind: str) -> None:
    assert seen(kind, SERVER, known=None) == [frozenset()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_server_raises_nothing_however_often_it_is_seen(kind: str) -> None:
    grown = replace(SERVER, tokens_total=31.0)
    assert seen(kind, SERVER, grown, grown) == [frozenset()] * 3


def test_a_restart_raises_all_its_models_where_restarts_count() -> None:
    later = replace(SERVER, started_at=1060.0, tokens_total=0.0)
    assert seen("restart", later, later) == [BOTH, frozenset()]
    assert seen("change", later, later) == [frozenset()] * 2


def test_a_restart_is_known_after_the_proxys_own_restart_by_what_was_stored() -> None:
    stored = from_text(as_text(SERVER))
    assert stored == SERVER
    assert seen("restart", replace(SERVER, started_at=1060.0), known=stored) == [BOTH]


@pytest.mark.parametrize("moved_s", [-1.0, -0.4, 0.4, 1.0])
def test_a_start_time_that_moves_by_a_second_at_most_is_a_clocks_correction(moved_s: float) -> None:
    assert seen("restart", replace(SERVER, started_at=1000.0 + moved_s)) == [frozenset()]


@pytest.mark.parametrize("moved_s", [-1.5, 1.5])
def test_a_start_time_that_moves_further_is_a_restart(moved_s: float) -> None:
    assert seen("restart", replace(SERVER, started_at=1000.0 + moved_s)) == [BOTH]


def test_without_a_start_time_a_counter_that_fell_is_a_restart() -> None:
    before = replace(SERVER, started_at=None)
    less, more = replace(before, tokens_total=29.0), replace(before, tokens_total=31.0)
    assert seen("restart", less, known=before) == [BOTH]
    assert seen("restart", more, known=before) == [frozenset()]
    assert seen("change", less, known=before) == [frozenset()]


def test_a_counter_that_fell_says_nothing_where_the_start_time_is_the_same() -> None:
    assert seen("restart", replace(SERVER, tokens_total=1.0)) == [frozenset()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changed", [{"version": "0.33.0"}, {"settings": "bar"}])
def test_another_version_or_other_settings_raise_all_its_models(
    kind: str, changed: dict[str, str]
) -> None:
    other = replace(SERVER, **changed)  # type: ignore[arg-type]
    assert seen(kind, other, other) == [BOTH, frozenset()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("card", [{"root": "/models/other"}, {"max_model_len": 1024}])
def test_another_root_or_length_raises_that_model_alone(kind: str, card: dict[str, object]) -> None:
    lora, tiny = SERVER.models or ()
    other = replace(SERVER, models=(lora, replace(tiny, **card)))  # type: ignore[arg-type]
    assert seen(kind, other, other) == [frozenset({"tiny", ANY}), frozenset()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_comes_or_goes_raises_nothing_but_one_that_comes_back_as_another_does(
    kind: str,
) -> None:
    lora, tiny = SERVER.models or ()
    without = replace(SERVER, models=(tiny,))
    again = replace(SERVER, models=(replace(lora, root="/loras/b"), tiny))
    found = seen(kind, without, SERVER, without, again)
    assert found == [frozenset(), frozenset(), frozenset(), frozenset({"lora", ANY})]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "part", ["version", "models", "settings", "started_at", "tokens_total", "all"]
)
def test_what_is_not_told_raises_nothing_and_is_compared_when_it_is_told_again(
    kind: str, part: str
) -> None:
    silent = Identity() if part == "all" else replace(SERVER, **{part: None})  # type: ignore[arg-type]
    assert seen(kind, silent, SERVER, silent) == [frozenset()] * 3
    changed = replace(SERVER, version="0.33.0")
    assert seen(kind, silent, changed) == [frozenset(), BOTH]


def test_a_server_that_is_down_keeps_its_last_identity() -> None:
    epochs = Epochs("restart", {"x": SERVER})
    epochs.see("x", Identity())
    assert epochs.identity("x") == SERVER
    assert epochs.identity("y") is None


def test_a_card_that_tells_less_this_time_is_no_other_model() -> None:
    # the metrics' labels name the model only
    less = replace(SERVER, models=(Model(id="tiny"),))
    other = replace(SERVER, models=(Model(id="tiny", root="/models/other", max_model_len=512),))
    assert seen("change", less, SERVER) == [frozenset()] * 2
    assert seen("change", less, other) == [frozenset(), frozenset({"tiny", ANY})]


def test_an_upstream_that_names_no_model_raises_every_model_known_of_any() -> None:
    nameless = replace(SERVER, models=None)
    epochs = Epochs("restart", {"x": SERVER, "y": nameless})
    assert epochs.see("y", replace(nameless, started_at=5000.0)) == BOTH
    alone = Epochs("restart", {"y": nameless})
    assert alone.see("y", replace(nameless, started_at=5000.0)) == {ANY}


def test_upstreams_are_compared_with_themselves_and_not_with_one_another() -> None:
    epochs = Epochs("restart")
    other = replace(SERVER, started_at=2000.0, settings="bar")
    for _ in range(3):
        assert epochs.see("x", SERVER) == frozenset()
        assert epochs.see("y", other) == frozenset()


def test_adapters_without_end_are_not_remembered_without_end() -> None:
    epochs = Epochs("change")
    for number in range(30):
        models = tuple(Model(id=f"{number}-{each}") for each in range(1000))
        epochs.see("x", Identity(models=models))
    known = epochs.identity("x")
    assert known is not None
    assert len(known.models or ()) == 4096
    assert {each.id for each in known.models or ()} >= {f"29-{each}" for each in range(1000)}


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"version":1}', as_text(SERVER)[:-1], as_text(SERVER) + "x"]
)
def test_a_stored_identity_that_is_damaged_is_none(text: str) -> None:
    assert from_text(text) is None


def test_identities_of_nothing_are_kept_as_such() -> None:
    assert from_text(as_text(Identity())) == Identity()
