"""A stack from TOML: what is understood, what is filled in, and what is refused with the place and the way out."""

from typing import Any

import pytest

from toolkit.errors import ToolkitError
from toolkit.serving.stack import (
    EngineSetting,
    Kind,
    Stack,
    changed,
    placed,
    read,
    turns,
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


# --- which engines may start at the same time ---------------------------------------------------------


def groups(*engines: tuple[Kind, str | None]) -> list[str]:
    """Each group as the places of its engines."""
    settings = [
        EngineSetting(name=str(place), kind=kind, gpus=gpus)
        for place, (kind, gpus) in enumerate(engines)
    ]
    return sorted("".join(each.name for each in group) for group in turns(settings))


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        ((("vllm", "0"), ("vllm", "1"), ("vllm", "MIG-7")), ["0", "1", "2"]),
        # whoever shares a GPU waits for the other
        ((("vllm", "0"), ("vllm", "1"), ("vllm", "0")), ["02", "1"]),
        ((("vllm", "0"), ("vllm", "1"), ("vllm", "0,1")), ["012"]),
        # one that names none may get any; the simulator takes none, and needs not wait until a model is loaded
        ((("vllm", "0"), ("vllm", None)), ["01"]),
        ((("vllm", "0"), ("sim", None)), ["0", "1"]),
    ],
)
def test_engines_on_gpus_of_their_own_start_side_by_side(
    engines: tuple[tuple[Kind, str | None], ...], expected: list[str]
) -> None:
    assert groups(*engines) == expected
