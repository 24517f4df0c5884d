"""Which configurations are tried, in which order, and what each of them is."""

from toolkit.tuning.sweep_file import (
    Configuration,
    How,
    LeverValue,
    Serving,
    SweepLever,
    SweepPlan,
    around,
    changed,
    models,
)

BASE = Serving(model="m", flags=(("max-model-len", "512"), ("enforce-eager", True)))


def lever(name: str, **flags: str) -> SweepLever:
    values = tuple(LeverValue(name=v, flags=((f, v),)) for f, v in flags.items())
    return SweepLever(name=name, values=values)


def moved(*levers: SweepLever, how: How = "one at a time") -> tuple[Configuration, ...]:
    return around(SweepPlan(name="f", base=BASE, levers=levers, how=how), None)


def test_a_change_keeps_what_it_does_not_name() -> None:
    found = changed(BASE, Serving(model="n", flags=(("max-model-len", "8192"),), sim="fp8"))
    assert found == Serving(
        model="n", sim="fp8", flags=(("max-model-len", "8192"), ("enforce-eager", True))
    )


def test_each_model_changes_the_base_and_not_the_model_before_it() -> None:
    values = (LeverValue(name="a", sim="a"), LeverValue(name="b", vllm="v"))
    plan = SweepPlan(name="f", base=BASE, configurations=values, stage="quantization")
    first, second = models(plan)
    assert (first.name, first.lever, first.serving.sim) == ("a", "quantization", "a")
    assert (second.serving.sim, second.serving.vllm) == (None, "v")


def test_one_lever_at_a_time_moves_from_the_base() -> None:
    found = moved(lever("seqs", a="16"), lever("tokens", b="2048"))
    assert [(one.name, one.lever, dict(one.serving.flags)) for one in found] == [
        ("base", None, {"max-model-len": "512", "enforce-eager": True}),
        ("seqs 16", "seqs", {"max-model-len": "512", "enforce-eager": True, "a": "16"}),
        ("tokens 2048", "tokens", {"max-model-len": "512", "enforce-eager": True, "b": "2048"}),
    ]


def test_a_position_that_changes_nothing_is_the_base_and_not_measured_twice() -> None:
    same = SweepLever(
        name="length",
        values=(LeverValue(name="512", flags=(("max-model-len", "512"),)),),
    )
    assert [one.name for one in moved(same)] == ["base"]


def test_a_grid_is_every_position_with_every_other() -> None:
    levers = [
        SweepLever(name="x", values=lever("x", p="1").values + lever("x", p="2").values),
        SweepLever(name="y", values=lever("y", q="1").values + lever("y", q="2").values),
    ]
    found = moved(*levers, how="grid")
    assert [one.name for one in found] == ["base", "x 1, y 1", "x 1, y 2", "x 2, y 1", "x 2, y 2"]
    assert dict(found[3].serving.flags) | {} == {
        "max-model-len": "512",
        "enforce-eager": True,
        "p": "2",
        "q": "1",
    }


def test_who_serves_it_follows_from_what_it_says() -> None:
    assert Serving(url="http://h", model="m").kind() == "url"
    assert Serving(model="m", sim="fp8").kind() == "serve"
    assert Serving(model="m", sim="fp8").kind(sim=True) == "sim"
    assert Serving(model="m").kind(sim=True) is None
    assert Serving(sim="fp8").kind() == "sim"
    assert Serving().kind() is None
