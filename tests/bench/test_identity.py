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

NINE = "Qwen/Qwen3.5-9B"
LLAMA = "Llama-3.1-8B"
FIRST, SECOND = ServedModel(id="a", root="x/a"), ServedModel(id="b", max_model_len=1)
LATER = (FIRST, replace(SECOND, max_model_len=2))
OURS, ADAPTER = ServedModel(id="tiny", root="a/b"), ServedModel(id="sql", root="/x")
LIMITED = replace(OURS, max_model_len=4096)


def model(id_: str, root: str | None = None) -> ServedModel:
    return ServedModel(id=id_, root=root)


@pytest.mark.parametrize(
    ("host", "ledger", "answered_by", "confidence"),
    [
        (listed(QWEN), serving(model(NINE, NINE)), NINE, "medium"),  # neither served nor a root
        (listed(QWEN), serving(model(NINE), after=()), None, "medium"),
        (listed("contest"), serving(model("other", "/m")), None, "medium"),  # an alias must be served
        # one of many served models is enough, and any may have been asked
        (listed(QWEN), serving(model(LLAMA), model("qwen3.5-35b")), None, None),
        (listed(NINE), serving(model(LLAMA), model("qwen3.5-35b")), None, "medium"),
        (listed(), serving(model(LLAMA), model("Qwen3.5-9B")), "Qwen3.5-9B", None),
        (listed(QWEN), serving(model(QWEN, "/models/Qwen3.5-9B")), QWEN, "medium"),  # by its root
        # what answers name
        (listed(), serving(model(QWEN, QWEN)), LLAMA, "medium"),
        (listed(), serving(model(QWEN, QWEN)), "qwen3.5-35b-a3b-awq", None),
        (listed(), serving(model(QWEN, QWEN)), "backend-7", None),
        (listed(QWEN), serving(model("Qwen3.5-9B")), LLAMA, "high"),  # two kinds of names
        # what changed: of the model that answers name, else the listed one, else the first
        (listed(), serving(FIRST, SECOND, after=LATER), None, None),
        (listed("b"), serving(FIRST, SECOND, after=LATER), None, "high"),
        (listed("b"), serving(FIRST, SECOND, after=LATER), "a", None),
        (listed(), serving(OURS, ADAPTER, after=(OURS,)), "tiny", None),  # others may come and go
        (listed(), serving(OURS, after=(ADAPTER, OURS)), "tiny", None),
        (listed(), serving(OURS, after=()), "tiny", None),  # the list did not come again
        (listed(max_model_len=4096), serving(LIMITED), None, None),
        (listed(max_model_len=8192), serving(LIMITED), None, "high"),
        (listed(max_model_len=8192), serving(OURS), None, None),
        # a listed root is meant with its quantisation
        *((listed(root="Qwen/Qwen3.5-35B-A3B-FP8"), serving(model("q", root)), "q", confidence)
          for root, confidence in (
            ("Qwen/Qwen3.5-35B-A3B-FP8", None), ("/data/Qwen3.5-35B-A3B-FP8/", None),
            ("qwen/qwen3.5-35b-a3b-fp8", None), ("Qwen/Qwen3.5-35B-A3B-GPTQ-Int4", "high"),
            ("Qwen/Qwen3.5-35B-A3B", "high"))),
    ],
)  # fmt: skip
def test_another_model_than_listed_named_or_at_the_beginning_is_told(
    host: Host, ledger: Ledger, answered_by: str | None, confidence: str | None
) -> None:
    assert judged(host, ledger, answered_by) == confidence


@pytest.mark.parametrize(
    ("host", "ledger", "answered_by", "sentence"),
    [
        (listed(QWEN), serving(model(NINE, NINE)), (NINE,), f"listed is `{QWEN}`, served is `{NINE}`"),
        (listed(QWEN), serving(model(QWEN, "/models/Qwen3.5-9B")), (QWEN,),
         f"`{QWEN}` comes from `/models/Qwen3.5-9B`"),
        (listed(), serving(model("contest")), ("Qwen3.5-35B", "Qwen3.5-9B"),
         "answers name several models, `Qwen3.5-35B`, `Qwen3.5-9B`"),
        (listed(max_model_len=8192), serving(LIMITED), (None,),
         "it serves up to 4,096 tokens, listed are 8,192"),
        (listed(), serving(LIMITED, after=(model("other"),)), (None,),
         "`tiny` was no longer served after the run"),
        (listed(), serving(LIMITED, after=(replace(LIMITED, root="a/c"),)), (None,),
         "root of `tiny` became `a/c` during the run, it was `a/b`"),
        (listed(), serving(LIMITED, after=(replace(LIMITED, max_model_len=2048),)), (None,),
         "max_model_len of `tiny` became 2,048 during the run, it was 4,096"),
        (listed(), serving(LIMITED, after=(OURS,)), (None,),
         "max_model_len of `tiny` became unknown during the run, it was 4,096"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_both_names(
    host: Host, ledger: Ledger, answered_by: tuple[str | None, ...], sentence: str
) -> None:
    records = [
        record
        for number, name in enumerate(answered_by)
        for record in uniques(8, start=8 * number, model=name)
    ]
    assert told(records, ledger, host=host)["model_mismatch"].evidence == sentence


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
