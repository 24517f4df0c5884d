"""A scouted host's blocks as requests, in the words that a newcomer reads."""

from toolkit.plan.checkup import checkup, deviation
from toolkit.records import Sighting


def seen(**told: object) -> Sighting:
    return Sighting(name="alice", url="http://10.0.0.4:8000", at=0.0, status="ok", **told)  # type: ignore[arg-type]


def test_the_winners_661_blocks_are_38_sequences() -> None:
    found = checkup(seen(num_gpu_blocks=661, block_size=16), 271)
    assert found.at_once == 38
    assert found.words == (
        "661 blocks of 16, one of them reserved; at 271 tokens, 17 blocks each, that is 38 sequences"
    )


def test_a_hybrid_counts_its_states_as_blocks() -> None:
    # one block of 1,056 tokens and two for each of three groups of states: (661 - 1) / 7 = 94.3
    found = checkup(
        seen(num_gpu_blocks=661, block_size=1056), 271, blocks_per_request=7, hybrid=True
    )
    assert found.at_once == 94
    assert found.words.endswith("7 blocks each, its states included, that is 94 sequences")


def test_each_of_two_engines_reserves_a_block_and_none_borrows_from_the_other() -> None:
    # a sighting has the sum, 2 x 51; one pool of 102 would hold (102 - 1) / 17 = 5.9
    found = checkup(seen(num_gpu_blocks=2 * 51, block_size=16, engines=2), 271)
    # (51 - 1) / 17 = 2.9
    assert found.at_once == 4
    assert found.words == (
        "51 blocks of 16, one of them reserved; at 271 tokens, 17 blocks each, that is 2 sequences; 2 engines: 4"
    )


def test_a_host_that_does_not_tell_its_block_size_is_asked_nothing_of() -> None:
    found = checkup(seen(num_gpu_blocks=661), 271)
    assert found.at_once is None
    assert "does not tell how many tokens a block holds" in found.words
    assert checkup(seen(num_gpu_blocks=661), 271, block_size=16).at_once == 38


def test_a_host_that_tells_tokens_but_no_blocks_is_divided_by_tokens() -> None:
    # 2,097,152 / 271 = 7738.6
    found = checkup(seen(kv_cache_tokens=2_097_152), 271)
    assert found.at_once == 7738


def test_a_host_that_tells_nothing_is_unknown() -> None:
    found = checkup(seen(), 271)
    assert (found.at_once, found.num_gpu_blocks) == (None, None)
    assert found.words == "the host tells neither its blocks nor how many tokens it can keep"


def test_more_running_than_fits_is_said() -> None:
    found = checkup(seen(num_gpu_blocks=661, block_size=16, running=60.0), 271)
    assert "60 requests were running" in found.notes[0]


def test_the_plan_is_told_how_far_it_was_off() -> None:
    # (700 - 661) / 661 = 5.9 %; 39 blocks of 16 MiB are 0.6 GiB
    found = deviation(700, 661, block_bytes=16 * 2**20)
    assert found is not None
    assert found.words == "the plan has 700 blocks, the server reports 661: 5.9% more, 0.6 GiB"
    exact = deviation(661, 661, block_bytes=None)
    assert exact is not None
    assert exact.words == "the plan has 661 blocks, the server reports 661: exact"
    assert deviation(700, None, block_bytes=None) is None
