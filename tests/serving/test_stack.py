"""A stack from TOML: what is understood, what is filled in, and what is refused with the place and the way out."""

from typing import Any

import pytest

from toolkit.errors import ToolkitError
from toolkit.serving.stack import (
    EngineSetting,
    Kind,
    Stack,
    changed,
    drafted,
    placed,
    read,
    turns,
    upstreams,
)

PRESETS = {"wide": {"max-num-seqs": "256", "enable-prefix-caching": True}}
ONE = '[[engine]]\nmodel = "org/Some-Model"\n'


def preset(name: str) -> Any:
    if name not in PRESETS:
        raise ToolkitError(f"no preset is called `{name}`")
    return PRESETS[name]


def stack(text: str, busy: tuple[int, ...] = (), **over: Any) -> Stack:
    return placed(
        read(text, "s.toml", preset, over, {"database": "usual.db"}),
        "`s.toml`",
        lambda _, port: port not in busy,
    )


def engine(text: str) -> EngineSetting:
    return stack(text).engines[0]


def refused(text: str, **over: Any) -> ToolkitError:
    with pytest.raises(ToolkitError) as told:
        stack(text, **over)
    return told.value


# --- what is understood -------------------------------------------------------------------------------


def test_one_line_is_a_stack_with_a_proxy_in_front_and_a_place_for_a_successor() -> None:
    got = stack(ONE)
    (only,) = got.engines
    # the proxy's default port is 8000; engines take what is free above it, all first places before all second ones
    assert (only.name, only.port, only.spare_port, only.kind) == ("Some-Model", 8001, 8002, "vllm")
    assert got.proxy is not None
    assert [(each.name, each.url) for each in got.proxy.upstreams] == [
        ("Some-Model.a", "http://127.0.0.1:8001"),
        ("Some-Model.b", "http://127.0.0.1:8002"),
    ]


def test_the_proxys_table_is_the_proxys_own_file() -> None:
    got = stack(
        ONE + '[proxy]\nport = 7000\nadmin_port = 7100\n[proxy.cache]\nttl = "10m"\nfile = "c.db"\n'
        '[[proxy.team]]\nname = "red"\nkey_env = "RED_KEY"\n'
        '[[proxy.upstream]]\nname = "far"\nurl = "http://far:8000"\nfallback = true\n'
    )
    assert got.proxy is not None
    assert (got.proxy.port, got.proxy.admin_port) == (7000, 7100)
    assert (got.proxy.cache.ttl_s, got.proxy.cache.file) == (600.0, "c.db")
    assert [team.name for team in got.proxy.teams] == ["red"]
    assert [each.name for each in got.proxy.upstreams] == ["Some-Model.a", "Some-Model.b", "far"]
    assert got.engines[0].port == 7001


def test_ports_that_somebody_holds_are_passed_by() -> None:
    got = stack(ONE, busy=(8001, 8003))
    assert (got.engines[0].port, got.engines[0].spare_port) == (8002, 8004)


def test_above_the_highest_port_there_is_none() -> None:
    def is_free(_: str, port: int) -> bool:
        if port > 65535:
            raise OverflowError("bind(): port must be 0-65535.")  # Python's own word
        return True

    draft = read(ONE, "s.toml", preset, {"proxy": {"port": 65535}})
    with pytest.raises(ToolkitError, match="no port above 65535 is free"):
        placed(draft, "`s.toml`", is_free)


def test_the_admin_gets_the_next_port_that_is_free_unless_it_is_named() -> None:
    def admin(text: str) -> int | None:
        proxy = stack(ONE + text, busy=(8003,)).proxy
        assert proxy is not None
        return proxy.admin_port

    # 8001 and 8002 are the engine's, 8003 is somebody's
    assert admin("") == 8004
    assert admin("[proxy]\nadmin_port = 9000\n") == 9000
    # whoever wants any free port for clients gets any for the admin, too
    assert admin("[proxy]\nport = 0\n") is None


def test_engines_of_one_model_get_names_of_their_own() -> None:
    got = stack(ONE + ONE + '[[engine]]\nkind = "sim"\nmodel = "fp8"\n')
    assert [each.name for each in got.engines] == ["Some-Model", "Some-Model-2", "fp8"]
    assert [each.port for each in got.engines] == [8001, 8002, 8003]
    assert [each.spare_port for each in got.engines] == [8004, 8005, 8006]


def test_the_upstream_of_an_engine_that_listens_everywhere_is_asked_on_the_loopback() -> None:
    (first, _) = upstreams([EngineSetting(name="e", host="0.0.0.0", port=1, spare_port=2)])
    assert first.url == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("told", "wanted"),
    [("", "usual.db"), ("database = 'd.db'\n", "d.db"), ("database = 'none'\n", None)],
)
def test_events_go_to_the_usual_database_unless_the_file_says_otherwise(
    told: str, wanted: str | None
) -> None:
    assert stack(told + ONE).database == wanted


def test_the_command_line_goes_over_the_file() -> None:
    got = stack(
        'folder = "f"\n' + ONE + "[proxy]\nport = 7000\ndrain = 9\n",
        folder="g",
        proxy={"port": 7500},
    )
    assert got.folder == "g"
    assert got.proxy is not None
    assert (got.proxy.port, got.proxy.drain_s) == (7500, 9.0)


# --- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        # tests/contract/settings has all kinds of mistakes; these lead through a stack's own tables
        (ONE + "[engine.flags]\na = 1979-05-27", " line 3: engine 1: `flags`: `a` is not one line", "quotes"),
        (ONE + "[engine.flags]\na = { b = 1979-05-27 }", " line 3: engine 1: `flags`: `a` is not one line", "quotes"),
        (ONE + "host = '1[7.0.0.1'", " line 3: engine 1: `host` is no address", "127.0.0.1"),
        (ONE + "gpus = -1", " line 3: engine 1: `gpus` is not numbers of GPUs", "0,1"),
        (ONE + "[proxy]\nttl = 1", " line 4: [proxy]: unknown key `ttl`", "It belongs into [proxy.cache]"),
        (ONE + "[[proxy.team]]\nname = 5", " line 4: proxy.team 1: `name` is not a label", "`red`"),
        (ONE + "preset = 'widest'", "no preset is called `widest`", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place_and_the_way_out(
    text: str, message: str, hint: str
) -> None:
    error = refused(text)
    assert error.message.startswith(f"`s.toml`{message}" if message[0] == " " else message)
    assert hint in error.hint


def test_a_port_for_a_proxy_that_is_switched_off_is_refused() -> None:
    assert "`proxy = false`" in refused("proxy = false\n" + ONE, proxy={"port": 1}).message


# --- a swap's words ---------------------------------------------------------------------------------------


def test_a_swap_changes_what_is_named_and_nothing_else() -> None:
    was = engine(ONE + "name = 'e'\n[engine.flags]\nmax-num-seqs = 8\nenforce-eager = true\n")
    now = changed(was, {"model": "org/Other", "flags": {"max-num-seqs": 16}}, preset, "the swap")
    assert (now.name, now.port, now.model) == ("e", was.port, "org/Other")
    assert dict(now.flags) == {"max-num-seqs": "16", "enforce-eager": True}


def test_another_preset_takes_the_place_of_all_flags_but_those_told_beside_it() -> None:
    was = engine(ONE + "[engine.flags]\nenforce-eager = true\n")
    now = changed(was, {"preset": "wide", "flags": {"seed": 1}}, preset, "the swap")
    assert dict(now.flags) == {"max-num-seqs": "256", "enable-prefix-caching": True, "seed": "1"}


@pytest.mark.parametrize("told", [{"port": 1}, {"name": "x"}, {"kind": "sim"}, {"modle": "x"}])
def test_a_swap_moves_no_engine(told: dict[str, Any]) -> None:
    with pytest.raises(ToolkitError, match="the swap: unknown key"):
        changed(engine(ONE), told, preset, "the swap")


def test_the_tiny_engine_has_one_model() -> None:
    tiny = drafted({"engine": [{"kind": "tiny"}]}, "here", preset).engines[0]
    with pytest.raises(ToolkitError, match="tiny"):
        changed(tiny, {"model": "org/Other"}, preset, "the swap")


# --- which engines may start at the same time ---------------------------------------------------------


def groups(*engines: tuple[Kind, str | None]) -> list[str]:
    """Each group as the places of its engines."""
    settings = [
        EngineSetting(name=str(place), kind=kind, gpus=gpus)
        for place, (kind, gpus) in enumerate(engines)
    ]
    return sorted("".join(each.name for each in group) for group in turns(settings))


def test_engines_on_gpus_of_their_own_start_side_by_side() -> None:
    assert groups(("vllm", "0"), ("vllm", "1"), ("vllm", "MIG-7")) == ["0", "1", "2"]


def test_whoever_shares_a_gpu_waits_for_the_other() -> None:
    assert groups(("vllm", "0"), ("vllm", "1"), ("vllm", "0")) == ["02", "1"]
    # the last one shares a GPU with both others, so that none of them starts beside another
    assert groups(("vllm", "0"), ("vllm", "1"), ("vllm", "0,1")) == ["012"]


def test_one_that_names_no_gpu_may_get_any() -> None:
    assert groups(("vllm", "0"), ("vllm", None)) == ["01"]
    # the simulator takes none, and needs not wait until a model is loaded
    assert groups(("vllm", "0"), ("sim", None)) == ["0", "1"]
