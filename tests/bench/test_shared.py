"""Two addresses of one engine: each is held only against its own share of the counters, and neither is somebody else."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.shots import books, failed, replayed, twin, uniques

from toolkit.bench.plan import BenchPlan
from toolkit.bench.results import results
from toolkit.metrics.dialects import EngineNumbers
from toolkit.records import Host, RequestRecord, ServedModel, Verdict

PAGE = EngineNumbers(
    engine="vllm", dialect="v1", started_at=1000.0, settings=(("block_size", "16"),)
)
QWEN = ServedModel(id="Qwen3.5-35B-A3B", root="Qwen/Qwen3.5-35B-A3B")


def with_twins() -> list[RequestRecord]:
    first = uniques(24)
    return [*first, *(twin(first[n], 24 + n) for n in range(8))]


def judged(
    hosts: dict[str, Sequence[RequestRecord]],
    counted: Sequence[RequestRecord],
    pages: dict[str, EngineNumbers | None] | None = None,
) -> dict[str, dict[str, Verdict]]:
    """Hosts whose counters all moved by `counted`."""
    runners = [
        (
            Host(name=name, url=f"http://{name}:1"),
            shots,
            replace(books(counted), name=name, prompt_tokens=30.0 * len(counted)),
        )
        for name, shots in hosts.items()
    ]
    told = results(
        runners,
        plan=BenchPlan(),
        run="r",
        client_ok=True,
        limits=None,
        pages=dict.fromkeys(hosts, PAGE) if pages is None else pages,
    )
    return {e.summary.name: {v.code: v for v in e.summary.verdicts} for e in told}


def test_two_addresses_are_clean_and_exact_together() -> None:
    direct, gateway = with_twins(), with_twins()
    found = judged({"direct": direct, "gateway": gateway}, [*direct, *gateway])
    assert [list(each) for each in found.values()] == [["clean", "same_engine"]] * 2
    assert {each["clean"].confidence for each in found.values()} == {"high"}


def test_what_a_gateway_adds_is_told_by_the_gateway() -> None:
    direct = with_twins()
    gateway = [replace(each, ttft_ms=(each.ttft_ms or 0.0) + 7.0) for each in direct]
    found = judged({"direct": direct, "gateway": gateway}, [*direct, *gateway])
    assert found["gateway"]["same_engine"].evidence.endswith(
        "; it adds 7.0 ms to the first token of direct (median; 24 of 24 equal prompts took longer)"
    )
    assert "it adds" not in found["direct"]["same_engine"].evidence


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_gateways_cache_is_the_gateways(is_slow: bool) -> None:
    direct, first = with_twins(), uniques(24)
    memory = [replayed(first[n], 24 + n, answer_id=first[n].answer_id) for n in range(8)]
    if is_slow:  # only the engine's counters tell it
        memory = [twin(first[n], 24 + n, text_hash=first[n].text_hash) for n in range(8)]
    found = judged({"direct": direct, "gateway": [*first, *memory]}, [*direct, *first])
    assert list(found["direct"]) == ["clean", "same_engine"]
    assert list(found["gateway"]) == ["response_cache", "same_engine"]
    assert "counters lack" in found["gateway"]["response_cache"].evidence


def test_a_gateway_that_cuts_is_accused_and_the_engine_is_not() -> None:
    direct = with_twins()
    cut = [replace(each, output_tokens=1, text_chars=4, token_chunks=1) for each in direct]
    # the engine made the whole of what the gateway cut
    found = judged({"direct": direct, "gateway": cut}, [*direct, *direct])
    assert "truncated_output" in found["gateway"]
    assert "truncated_output" not in found["direct"]
    assert "foreign_traffic" not in found["direct"]
    assert "foreign_traffic" not in found["gateway"]


def test_what_broke_at_one_address_is_nobody_elses_at_the_other() -> None:
    direct, gateway = with_twins(), with_twins()
    broken = [failed(90 + n, "cut", took_ms=2000.0) for n in range(2)]
    # the engine counted both, and ten tokens of each
    counted = [*direct, *gateway, *uniques(2, start=90, tokens=10)]
    found = judged({"direct": direct, "gateway": [*gateway, *broken]}, counted)
    assert [list(each) for each in found.values()] == [["clean", "same_engine"]] * 2


def test_somebody_elses_load_on_a_shared_engine_is_told() -> None:
    direct, gateway = with_twins(), with_twins()
    found = judged({"direct": direct, "gateway": gateway}, [*direct, *gateway, *uniques(20)])
    for each in found.values():
        assert list(each) == ["foreign_traffic", "same_engine"]
        # 84 were counted, of which the other address's 32 are ours, too
        assert "counted 52 requests, of which at least 20" in each["foreign_traffic"].evidence


def test_engines_of_other_settings_start_or_counts_are_two() -> None:
    own = with_twins()
    hosts: dict[str, Sequence[RequestRecord]] = {"a": own, "b": own}
    others = (
        replace(PAGE, started_at=2000.0),
        replace(PAGE, settings=(("block_size", "32"),)),
        replace(PAGE, started_at=None),
        None,
    )
    for other in others:
        found = judged(hosts, [*own, *own], {"a": PAGE, "b": other})
        assert list(found["a"]) == list(found["b"]) == ["foreign_traffic"]
    # equal engines that were asked for the same: each moved by its own requests alone
    found = judged(hosts, own)
    assert list(found["a"]) == list(found["b"]) == ["clean"]


def test_who_serves_another_model_than_all_rivals_is_told_if_nobody_listed_one() -> None:
    own = [replace(each, model=None) for each in with_twins()]
    other = ServedModel(id="Qwen3.5-4B", root="Qwen/Qwen3.5-4B")

    def codes(*served: ServedModel, listed: str | None = None) -> list[list[str]]:
        runners = [
            (
                Host(name=f"h{n}", url=f"http://h{n}:1", model=listed),
                own,
                replace(books(own), name=f"h{n}", models_before=(each,), models_after=(each,)),
            )
            for n, each in enumerate(served)
        ]
        told = results(runners, plan=BenchPlan(), run="r", client_ok=True, limits=None)
        return [[v.code for v in each.summary.verdicts] for each in told]

    fine = ["clean"]
    assert codes(QWEN, QWEN, other) == [fine, fine, ["model_mismatch"]]
    # of two nobody can say which is the other one, and of three that all differ neither
    assert codes(QWEN, other) == [fine, fine]
    third = ServedModel(id="Llama-3-70B")
    assert codes(QWEN, other, third) == [fine, fine, fine]
    # a name that says nothing of its model cannot be held against it, nor acquit it
    alias = ServedModel(id="default", root="/models/current")
    assert codes(QWEN, QWEN, alias)[2] == ["not_judged"]
    # quantised otherwise it is the same model
    assert codes(QWEN, QWEN, ServedModel(id="qwen3.5-35b", root="x/Qwen3.5-35B-A3B-AWQ"))[2] == fine
