"""Presets: each is known to the newest vLLM, says why, and gives way to the user's own flags."""

import tomllib
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.serving.flags import arguments, known
from toolkit.serving.presets import over, preset

ROOT = Path(__file__).parents[2]
CATALOG = ROOT / "toolkit/catalog"
TABLE = tomllib.loads((CATALOG / "presets.toml").read_text())


def test_the_contests_winner_is_as_the_seed_tells_it() -> None:
    assert dict(preset("contest-gptq-int4", TABLE).flags) == {
        "gpu-memory-utilization": "0.98",
        "max-num-seqs": "512",
        "max-model-len": "512",
        "kv-cache-dtype": "fp8_e4m3",
    }


@pytest.mark.parametrize("name", TABLE)
def test_every_flag_of_a_preset_is_one_of_a_real_vllm(name: str) -> None:
    flags_table = tomllib.loads((CATALOG / "flags.toml").read_text())
    newest = known((ROOT / "tests/data/startup/help-0.32.0.txt").read_text())
    found = preset(name, TABLE)
    for flags in (found.flags, *(engine["flags"] for engine in found.engines)):
        assert arguments(flags.items(), newest, "0.32.0", flags_table).notes == ()
    assert TABLE[name]["why"]


def test_each_team_has_a_slice_a_port_and_a_name_of_its_own() -> None:
    first, second = preset("multi-team", TABLE).engines
    for key in ("name", "team", "served_name", "port", "gpus", "model"):
        assert first[key] != second[key]
    # the preset's flags, and the engine's own beside them
    assert first["flags"]["max-model-len"] == "16384"
    assert first["flags"]["enable-prefix-caching"] is True


def test_a_preset_that_nobody_knows_is_told_the_nearest() -> None:
    with pytest.raises(ToolkitError) as caught:
        preset("contest-gptq", TABLE)
    assert caught.value.message == "no preset is called `contest-gptq`"
    assert caught.value.hint.startswith(
        "Did you mean `contest-gptq-int4`? Known presets: baseline,"
    )


@pytest.mark.parametrize(
    "own",
    [
        ("enable-prefix-caching", False),
        ("--enable_prefix_caching", False),
        ("no-enable-prefix-caching", True),
    ],
)
def test_the_users_own_flag_takes_the_presets_place_however_it_is_spelled(
    own: tuple[str, bool],
) -> None:
    merged = over({"enable-prefix-caching": True, "max-num-seqs": "64"}, [own])
    assert len(merged) == 2
    assert merged["max-num-seqs"] == "64"
    assert merged[own[0].lstrip("-").replace("_", "-")] is own[1]


def test_merging_leaves_the_catalog_as_it_was() -> None:
    before = dict(TABLE["baseline"]["flags"])
    over(preset("baseline", TABLE).flags, [("max-model-len", "1")])
    assert TABLE["baseline"]["flags"] == before
