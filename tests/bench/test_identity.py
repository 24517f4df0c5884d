"""A host serves the model it is listed with, whatever it is called and however it is quantised."""

from dataclasses import replace

import pytest
from support.shots import HOST, accused, books, no_books, told, uniques

from toolkit.bench.verdicts.model_mismatch import differ
from toolkit.records import Host, Ledger, ServedModel

QWEN = "Qwen/Qwen3.5-35B-A3B"


def serving(*models: ServedModel, after: tuple[ServedModel, ...] | None = None) -> Ledger:
    later = models if after is None else after
    return books(uniques(16), models_before=models, models_after=later)


def judged(host: Host, ledger: Ledger, answered_by: str | None = None) -> str | None:
    """The confidence of the accusation; None without one."""
    return accused(uniques(16, model=answered_by), ledger, host=host).get("model_mismatch")


def listed(model: str | None = None, **more: object) -> Host:
    return replace(HOST, model=model, **more)


# the same model


@pytest.mark.parametrize(
    ("model", "served"),
    [
        (QWEN, ServedModel(id=QWEN, root=QWEN)),
        (QWEN, ServedModel(id="Qwen3.5-35B-A3B", root="Qwen/Qwen3.5-35B-A3B-FP8")),
        (QWEN, ServedModel(id="Qwen3.5-35B-A3B", root="QuantTrio/Qwen3.5-35B-A3B-AWQ")),
        (QWEN, ServedModel(id="Qwen3.5-35B-A3B", root="Qwen/Qwen3.5-35B-A3B-GPTQ-Int4")),
        (QWEN, ServedModel(id="qwen3.5-35b", root="/models/snapshot")),
        (QWEN, ServedModel(id="contest", root=QWEN)),
        (QWEN, ServedModel(id="contest", root="/data/Qwen3.5-35B-A3B/")),
        (QWEN, ServedModel(id="default", root="/hub/models--Qwen--Qwen3.5-35B-A3B/snapshots/0f3a")),
        (QWEN, ServedModel(id="default", root="/models/current")),
        (QWEN, ServedModel(id="gpt-4", root=None)),
        ("contest", ServedModel(id="contest", root=QWEN)),
        (QWEN.lower(), ServedModel(id="QWEN3.5-35B-A3B", root=None)),
        ("meta-llama/Llama-3.1-8B-Instruct", ServedModel(id="llama3.1:8b", root=None)),
        ("Qwen/Qwen2.5-7B", ServedModel(id="qwen2.5-7b-instruct-q4_K_M.gguf", root=None)),
        ("mistralai/Mixtral-8x7B-v0.1", ServedModel(id="mixtral-8x7b", root=None)),
        ("RedHatAI/gemma-3-27b-it-quantized.w4a16", ServedModel(id="gemma-3-27b", root=None)),
        (None, ServedModel(id="anything", root="org/anything")),
        (None, ServedModel(id="sql-adapter", root="/adapters/sql")),
    ],
)
def test_another_spelling_alias_or_quantisation_is_no_other_model(
    model: str | None, served: ServedModel
) -> None:
    assert judged(listed(model), serving(served), answered_by=served.id) is None


def test_an_alias_over_an_opaque_path_is_not_judged() -> None:
    ledger = serving(ServedModel(id="default", root="/models/current"))
    found = told(uniques(16, model="default"), ledger, host=listed(QWEN))
    assert set(found) == {"not_judged"}
    assert "model_mismatch: the names that it serves" in found["not_judged"].evidence


def test_a_host_that_lists_nothing_is_not_judged() -> None:
    found = told(uniques(16), serving(), host=listed(QWEN))
    assert "model_mismatch: no list of models" in found["not_judged"].evidence


# another model


def test_the_listed_model_is_neither_served_nor_a_root() -> None:
    ledger = serving(ServedModel(id="Qwen/Qwen3.5-9B", root="Qwen/Qwen3.5-9B"))
    found = told(uniques(16, model="Qwen/Qwen3.5-9B"), ledger, host=listed(QWEN))
    assert found["model_mismatch"].evidence == (
        "listed is `Qwen/Qwen3.5-35B-A3B`, served is `Qwen/Qwen3.5-9B`"
    )
    assert found["model_mismatch"].confidence == "medium"


def test_an_alias_that_is_listed_must_be_served() -> None:
    assert judged(listed("contest"), serving(ServedModel(id="other", root="/m"))) == "medium"


def test_one_of_many_served_models_is_enough() -> None:
    ledger = serving(ServedModel(id="Llama-3.1-8B"), ServedModel(id="qwen3.5-35b"))
    assert judged(listed(QWEN), ledger) is None
    assert judged(listed("Qwen/Qwen3.5-9B"), ledger) == "medium"


def test_a_root_of_another_model_than_its_name_says() -> None:
    ledger = serving(ServedModel(id=QWEN, root="/models/Qwen3.5-9B"))
    found = told(uniques(16, model=QWEN), ledger, host=listed(QWEN))
    assert found["model_mismatch"].evidence == f"`{QWEN}` comes from `/models/Qwen3.5-9B`"


def test_answers_that_name_another_model() -> None:
    ledger = serving(ServedModel(id=QWEN, root=QWEN))
    assert judged(listed(), ledger, answered_by="Llama-3.1-8B") == "medium"
    assert judged(listed(), ledger, answered_by="qwen3.5-35b-a3b-awq") is None
    assert judged(listed(), ledger, answered_by="backend-7") is None


def test_two_kinds_of_names_agree() -> None:
    ledger = serving(ServedModel(id="Qwen3.5-9B", root=None))
    assert judged(listed(QWEN), ledger, answered_by="Llama-3.1-8B") == "high"


def test_any_served_model_may_have_been_asked() -> None:
    ledger = serving(ServedModel(id="Llama-3.1-8B"), ServedModel(id="Qwen3.5-9B"))
    assert judged(listed(), ledger, answered_by="Qwen3.5-9B") is None


def test_answers_of_several_models_in_one_run() -> None:
    served = serving(ServedModel(id="contest", root=None))
    shots = [*uniques(8, model="Qwen3.5-35B"), *uniques(8, start=8, model="Qwen3.5-9B")]
    found = told(shots, served)
    assert found["model_mismatch"].evidence == (
        "answers name several models, `Qwen3.5-35B`, `Qwen3.5-9B`"
    )


# changes and limits: exact


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (ServedModel(id="other", root="a/b", max_model_len=4096), "no longer served"),
        (ServedModel(id="tiny", root="a/c", max_model_len=4096), "became `a/c`"),
        (
            ServedModel(id="tiny", root="a/b", max_model_len=2048),
            "became 2,048 during the run, it was 4,096",
        ),
        (ServedModel(id="tiny", root="a/b", max_model_len=None), "became unknown"),
    ],
)
def test_what_changes_during_the_run_is_certain(later: ServedModel, words: str) -> None:
    first = ServedModel(id="tiny", root="a/b", max_model_len=4096)
    found = told(uniques(16), serving(first, after=(later,)))
    assert found["model_mismatch"].confidence == "high"
    assert words in found["model_mismatch"].evidence


def test_the_first_served_model_is_asked_where_none_is_listed() -> None:
    first, second = ServedModel(id="a", root="x/a"), ServedModel(id="b", root=None, max_model_len=1)
    later = replace(second, max_model_len=2)
    assert judged(listed(), serving(first, second, after=(first, later))) is None
    assert judged(listed("b"), serving(first, second, after=(first, later))) == "high"
    # what the answers name comes before what is listed
    both = serving(first, second, after=(first, later))
    assert judged(listed("b"), both, answered_by="a") is None


def test_other_models_may_come_and_go() -> None:
    ours, adapter = ServedModel(id="tiny", root="a/b"), ServedModel(id="sql", root="/x")
    assert judged(listed(), serving(ours, adapter, after=(ours,)), answered_by="tiny") is None
    assert judged(listed(), serving(ours, after=(adapter, ours)), answered_by="tiny") is None


def test_a_list_that_did_not_come_again_is_no_change() -> None:
    ours = ServedModel(id="tiny", root="a/b")
    assert judged(listed(), serving(ours, after=()), answered_by="tiny") is None


def test_another_limit_than_listed_is_certain() -> None:
    ledger = serving(ServedModel(id="tiny", root="a/b", max_model_len=4096))
    host = listed(max_model_len=8192)
    found = told(uniques(16), ledger, host=host)
    assert found["model_mismatch"].confidence == "high"
    assert found["model_mismatch"].evidence == "it serves up to 4,096 tokens, listed are 8,192"
    assert judged(listed(max_model_len=4096), ledger) is None
    assert judged(host, serving(ServedModel(id="tiny", root="a/b"))) is None


@pytest.mark.parametrize(
    ("root", "confidence"),
    [
        ("Qwen/Qwen3.5-35B-A3B-FP8", None),
        ("/data/Qwen3.5-35B-A3B-FP8/", None),
        ("qwen/qwen3.5-35b-a3b-fp8", None),
        ("Qwen/Qwen3.5-35B-A3B-GPTQ-Int4", "high"),
        ("Qwen/Qwen3.5-35B-A3B", "high"),
    ],
)
def test_a_listed_root_is_meant_with_its_quantisation(root: str, confidence: str | None) -> None:
    host = listed(root="Qwen/Qwen3.5-35B-A3B-FP8")
    ledger = serving(ServedModel(id="Qwen3.5-35B-A3B", root=root))
    assert judged(host, ledger, answered_by="Qwen3.5-35B-A3B") == confidence


# names


@pytest.mark.parametrize(
    ("one", "two", "other"),
    [
        ("Qwen3.5-35B-A3B", "Qwen3.5-35B", False),
        ("Qwen3.5-35B-A3B", "Qwen3.5-9B", True),
        ("Qwen3.5-35B-A3B", "Qwen3.5-3B", True),  # 3B are only active
        ("Qwen3.5-35B-A3B", "Qwen3.5-A3B", False),
        ("Qwen3.5-35B-A3B", "Qwen3.5-A10B", True),
        ("Qwen3-8B", "Llama-3.1-8B", True),
        ("Qwen2.5-7B", "Qwen3-7B", True),
        ("Llama-3.1-8B", "llama3-8b", False),  # 3 is short for 3.1
        ("Llama-3.1-8B", "llama-3.2-8b", True),
        ("Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B", False),
        ("DeepSeek-R1-Distill-Qwen-7B", "Qwen2.5-7B", True),
        ("gpt-oss-120b", "gpt-oss-20b", True),
        ("gpt-oss-120b", "gpt-oss-120b-mxfp4", False),
        ("mixtral-8x7b", "mistral-7b", True),
        ("gemma-3n-E4B-it", "gemma-3n-e2b", True),
        ("smol-135M", "smol-360m", True),
        ("some-2507-7b", "some-1106-7b", False),  # dates
        ("some-99-7b", "some-98-7b", True),
        ("contest", "Qwen3-8B", False),
        ("/models/snapshot", "Qwen3-8B", False),
        ("0f35be", "Qwen3-8B", False),
        ("", "Qwen3-8B", False),
        ("////", "Qwen3-8B", False),
    ],
)
def test_names_differ_by_size_family_or_version_only(one: str, two: str, other: bool) -> None:
    assert differ(one, two) is other
    assert differ(two, one) is other


def test_nothing_answered_still_tells_what_is_served() -> None:
    ledger = no_books(models_before=(ServedModel(id="Qwen3.5-9B"),))
    assert told([], ledger, host=listed(QWEN)).keys() == {"model_mismatch", "not_judged"}


def test_the_list_of_before_will_do_where_there_is_no_later_one() -> None:
    ledger = serving(ServedModel(id="Qwen3.5-9B"), after=())
    assert judged(listed(QWEN), ledger) == "medium"


def test_of_many_served_models_four_are_named() -> None:
    ledger = serving(*(ServedModel(id=f"Qwen3.5-{size}B") for size in range(1, 9)))
    evidence = told(uniques(16, model=None), ledger, host=listed(QWEN))["model_mismatch"].evidence
    assert "`Qwen3.5-4B`" in evidence
    assert "`Qwen3.5-5B`" not in evidence


def test_what_a_host_calls_its_models_cannot_act_on_a_terminal_nor_fill_it() -> None:
    evil = "Qwen3.5-9B\x1b[2J\n" + "x" * 10_000
    ledger = serving(*(ServedModel(id=f"{n}-{evil}", root="x") for n in range(50)))
    evidence = told(uniques(16), ledger, host=listed(QWEN))["model_mismatch"].evidence
    assert evidence.isprintable()
    assert len(evidence) < 500
