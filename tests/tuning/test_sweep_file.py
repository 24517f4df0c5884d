"""A sweep's file as people write it, and what of it is refused."""

import re
import tomllib
from dataclasses import replace
from importlib.resources import files

import pytest

from toolkit.errors import ToolkitError
from toolkit.tuning.sweep_file import (
    How,
    LeverValue,
    Serving,
    SweepLever,
    SweepPlan,
    around,
    foreseen,
    models,
    read_sweep,
)

ONE = 'configurations = [{name = "a", sim = "fp8"}]\n'


def test_flags_are_as_vllm_has_them_and_settings_as_the_simulator_has_them() -> None:
    base = """[base]
flags = { max-model-len = 512, "--enforce-eager" = true, speculative-config = { method = "ngram" } }
settings = { time_scale = 0.1, prefix_caching = false }
[profiles.mixed]
prompts = [{ text = "Hi" }]"""
    plan = read_sweep(ONE + base, "mine.toml", users=7, duration_s=20, blocks=2)
    assert dict(plan.base.flags) == {
        "max-model-len": "512",
        "enforce-eager": True,
        "speculative-config": '{"method": "ngram"}',
    }
    assert dict(plan.base.settings) == {"time_scale": "0.1", "prefix_caching": "false"}
    ((name, text),) = plan.profiles
    assert (name, tomllib.loads(text)) == ("mixed", {"prompts": [{"text": "Hi"}]})
    # the command line goes over the file
    load = plan.load
    assert (load.users, load.duration_s, load.settle_s, plan.blocks) == (7, 20, 4, 2)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # tests/contract/settings has all other mistakes
        ("[base]\nflags = {a = [1979-05-27]}", " line 3: `base.flags`: `a` is no word and no number"),
        ("[profiles.p]\nsummary = 1979-05-27", " line 2: `profiles`: `p` holds a date"),
        ("[profiles.p]\nprompts = []", ": profiles.p` holds no prompt"),
        ("[base]\nenv = {VLLM_API_KEY = 'k'}", " line 3: `base.env` holds a key, which stands in no file"),
        ('look_at = ["speed"]', "`look_at` names no figure: `speed`"),
        ('levers = [{name = "x", values = [{name = "a", sims = 1}]}]', "levers 1: values 1: unknown key"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_its_name(text: str, told: str) -> None:
    with pytest.raises(ToolkitError, match=re.escape(told)) as refused:
        read_sweep(ONE + text, "mine.toml")
    assert "mine.toml" in refused.value.message


RECIPES = sorted(
    entry.name for entry in (files("toolkit") / "catalog" / "sweeps").iterdir() if entry.is_file()
)


def test_the_labs_of_the_course_are_all_there() -> None:
    wanted = "batch-sizes chunked-prefill contest max-model-len prefix-caching quantizations"
    wanted += " speculative-decoding structured-output"
    assert [f"{name}.toml" for name in wanted.split()] == RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_it_tries_and_what_to_look_at(name: str) -> None:
    text = (files("toolkit") / "catalog" / "sweeps" / name).read_text("utf-8")
    plan = read_sweep(text, name)
    assert plan.summary
    configurations = [one for stage in foreseen(plan) for one in stage]
    assert len(configurations) >= 2
    assert all(one.serving.kind() == "serve" for one in configurations)
    assert len({one.serving for one in foreseen(plan)[0]}) == len(foreseen(plan)[0])


def test_the_long_prompts_of_the_chunked_prefill_lab_have_more_than_twenty_thousand_tokens() -> (
    None
):
    text = (files("toolkit") / "catalog" / "sweeps" / "chunked-prefill.toml").read_text("utf-8")
    mixed = tomllib.loads(text)["profiles"]["mixed"]
    (long,) = (one for one in mixed["prompts"] if one["name"] == "long-summary")
    words = sum(len(mixed["passages"][name].split()) for name in long["passages"])
    # English has about 1.3 tokens a word with such models' tokenizers, and never fewer than one
    assert words == 88 * 219
    assert words * 1.3 > 20_000
    # and it must fit: the base serves 32,768 tokens
    assert words * 1.5 < 32_768


# --- what is tried, in which order

BASE = Serving(model="m", flags=(("max-model-len", "512"), ("enforce-eager", True)))


def lever(name: str, **flags: str) -> SweepLever:
    values = tuple(LeverValue(name=v, flags=((f, v),)) for f, v in flags.items())
    return SweepLever(name=name, values=values)


def test_each_model_changes_the_base_and_keeps_what_it_does_not_name() -> None:
    values = (
        LeverValue(name="a", sim="a", flags=(("max-model-len", "8192"),)),
        LeverValue(name="b", vllm="v", model="n"),
    )
    plan = SweepPlan(name="f", base=BASE, configurations=values, stage="quantization")
    first, second = models(plan)
    assert (first.name, first.lever) == ("a", "quantization")
    flags = (("max-model-len", "8192"), ("enforce-eager", True))
    assert first.serving == Serving(model="m", sim="a", flags=flags)
    assert second.serving == Serving(model="n", vllm="v", flags=BASE.flags)
    # the levers start from the best model once it is known; before, the first one stands for it
    plan = replace(plan, levers=(lever("seqs", p="16"),))
    assert [one.serving.model for one in around(plan, second)] == ["n", "n"]
    assert [one.name for one in foreseen(plan)[1]] == ["a", "seqs 16"]


@pytest.mark.parametrize(
    ("how", "names"),
    [
        ("one at a time", "base | x 1 | x 2 | y 3 | y 4"),
        ("grid", "base | x 1, y 3 | x 1, y 4 | x 2, y 3 | x 2, y 4"),
    ],
)
def test_one_lever_moves_at_a_time_or_every_position_with_every_other(how: How, names: str) -> None:
    levers = (lever("x", p="1", q="2"), lever("y", r="3", s="4"))
    found = around(SweepPlan(name="f", base=BASE, levers=levers, how=how), None)
    assert " | ".join(one.name for one in found) == names
    last = dict(found[-1].serving.flags)
    own = {"s": "4"} if how == "one at a time" else {"q": "2", "s": "4"}
    assert last == dict(BASE.flags) | own


def test_a_position_that_changes_nothing_is_the_base_and_not_measured_twice() -> None:
    same = LeverValue(name="512", flags=(("max-model-len", "512"),))
    plan = SweepPlan(name="f", base=BASE, levers=(SweepLever(name="length", values=(same,)),))
    assert [one.name for one in around(plan, None)] == ["base"]


@pytest.mark.parametrize(
    ("serving", "sim", "kind"),
    [
        (Serving(url="http://h", model="m"), False, "url"),
        (Serving(model="m", sim="fp8"), False, "serve"),
        (Serving(tiny=True), False, "serve"),
        (Serving(model="m", sim="fp8"), True, "sim"),
        (Serving(model="m"), True, None),
        (Serving(sim="fp8"), False, "sim"),
        (Serving(), False, None),
    ],
)
def test_who_serves_it_follows_from_what_it_says(
    serving: Serving, sim: bool, kind: str | None
) -> None:
    assert serving.kind(sim=sim) == kind
