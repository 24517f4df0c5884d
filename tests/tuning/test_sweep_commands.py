"""The words of the commands that a sweep runs, its stack files, and its estimates."""

from pathlib import Path

import pytest

from toolkit.tuning.sweep import blast_words, estimate_s, host_name, stack_of, warm_levels
from toolkit.tuning.sweep_file import Configuration, Serving, around, foreseen, models, read_sweep

TEXT = """
profile = "contest"
blocks = 2
[load]
users = 64
duration = "60s"
settle = "8s"
mix = 50
max_tokens = 64
[[configurations]]
name = "fp8"
sim = "fp8"
[[configurations]]
name = "awq"
model = "org/awq"
[[levers]]
name = "seqs"
values = [{name = "16", flags = {max-num-seqs = 16}}]
"""


def one(name: str = "a", **serving: object) -> Configuration:
    told = Serving(**serving)  # type: ignore[arg-type]
    return Configuration(name=name, stage=1, lever=None, value=None, serving=told)


def test_a_name_becomes_one_word_of_a_hosts_file() -> None:
    assert host_name(one("chunks of 2048, é#")) == "chunks-of-2048-é"
    assert host_name(one("##")) == "configuration"


@pytest.mark.parametrize(
    ("users", "levels"),
    [
        (1, [1]),
        (2, [1, 2]),
        (5, [1, 2, 4, 5]),
        (64, [1, 2, 4, 8, 16, 32, 64]),
        (999, [1, 2, 4, 8, 16, 32, 64]),
    ],
)
def test_it_is_warmed_as_far_as_the_load_goes(users: int, levels: list[int]) -> None:
    assert warm_levels(users) == levels


def test_users_come_evenly_over_the_seconds_that_do_not_count() -> None:
    plan = read_sweep(TEXT, "f")
    words = blast_words(plan, hosts="h.txt", profile="contest", database="d.db", resume=None)
    # 64 users in 8 s
    assert " ".join(words) == (
        "blast h.txt --profile contest --users 64 --spawn-rate 8 --canaries 0 --timeout 60s "
        "--processes 1 --mix 50 --max-tokens 64 --duration 60s --db d.db --non-neutral --json"
    )


def test_a_blast_that_goes_on_has_the_rest_of_its_time_and_no_new_one() -> None:
    plan = read_sweep(TEXT, "f")
    words = blast_words(plan, hosts="h", profile="p", database="d", resume="0123456789ab")
    assert "--duration" not in words
    assert words[words.index("--resume") + 1] == "0123456789ab"


def test_a_stack_is_the_engine_alone_and_serve_reads_it(tmp_path: Path) -> None:
    from toolkit.serving.stack import read

    flags = (("max-model-len", "512"), ("enable-prefix-caching", False))
    text = stack_of(
        one("fp8 a", model="org/m", flags=flags, env=(("A", "b"),), gpus="0", key_env="KEY"),
        8123,
        users=6,
        folder=str(tmp_path),
        profile="contest",
        database="d.db",
    )
    stack = read(text, "stack.toml", lambda _: {})
    (engine,) = stack.engines
    assert (engine.name, engine.model, engine.port, engine.gpus, engine.key_env) == (
        "fp8-a",
        "org/m",
        8123,
        "0",
        "KEY",
    )
    assert dict(engine.flags) == {"max-model-len": "512", "enable-prefix-caching": False}
    assert dict(engine.env) == {"A": "b"}
    assert (stack.warm.profile, stack.folder, stack.database) == ("contest", str(tmp_path), "d.db")
    # warmed as far as the load goes, which has six users
    assert stack.warm.concurrency == (1, 2, 4, 6)
    # a response cache before it would answer for all configurations alike
    assert read(text, "stack.toml", lambda _: {}).proxy is None


def test_a_tiny_model_is_served_by_the_real_engine() -> None:
    text = stack_of(one(tiny=True), 1, users=1, folder="f", profile="p", database="d")
    assert 'kind = "tiny"' in text


def test_the_levers_start_from_the_best_model_once_it_is_known() -> None:
    plan = read_sweep(TEXT, "f")
    first = models(plan)
    assert [each.name for each in first] == ["fp8", "awq"]
    second = around(plan, first[1])
    assert [(each.name, each.serving.model) for each in second] == [
        ("awq", "org/awq"),
        ("seqs 16", "org/awq"),
    ]
    # before it is known the first one stands for it
    assert [each.name for each in foreseen(plan)[1]] == ["fp8", "seqs 16"]


def test_the_time_is_told_where_starts_are_known_and_not_where_they_are_not() -> None:
    plan = read_sweep(TEXT, "f")
    first = foreseen(plan)[0]
    assert estimate_s(plan, first, sim=False) is None
    # the simulator: 2 blocks x 1 configuration x (1 s start + 60 s load + 4 s around it)
    assert estimate_s(plan, first[:1], sim=True) == pytest.approx(130)
    told = read_sweep(TEXT.replace('settle = "8s"', 'settle = "8s"\nstart = "3m"'), "f")
    # 2 blocks x 2 configurations x (180 + 60 + 4)
    assert estimate_s(told, first, sim=False) == pytest.approx(976)
