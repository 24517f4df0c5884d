"""Which layers a pipeline's stages hold."""

import pytest

from toolkit.plan.weights import stages


@pytest.mark.parametrize(
    ("layers", "pp", "sizes"),
    [
        (32, 1, [32]),
        (32, 4, [8, 8, 8, 8]),
        # vLLM's get_pp_indices: the rest goes backwards from the last but one
        (30, 4, [7, 8, 8, 7]),
        (31, 4, [8, 8, 8, 7]),
        (29, 4, [7, 7, 8, 7]),
        (27, 2, [14, 13]),
    ],
)
def test_the_rest_goes_to_the_stages_before_the_last(
    layers: int, pp: int, sizes: list[int]
) -> None:
    assert [len(stage) for stage in stages(layers, pp)] == sizes
    assert [index for stage in stages(layers, pp) for index in stage] == list(range(layers))
