"""Which engines of a stack may start at the same time."""

from toolkit.serving.stack import EngineSetting, Kind, turns


def groups(*engines: tuple[Kind, str | None]) -> list[str]:
    """Each group as the places of its engines."""
    settings = [
        EngineSetting(name=str(place), kind=kind, gpus=gpus)
        for place, (kind, gpus) in enumerate(engines)
    ]
    return sorted("".join(each.name for each in group) for group in turns(settings))


def test_engines_on_gpus_of_their_own_start_side_by_side() -> None:
    assert groups(("vllm", "0"), ("vllm", "1"), ("vllm", "MIG-7")) == ["0", "1", "2"]


def test_whoever_shares_a_gpu_waits_for_the_other() -> None:
    assert groups(("vllm", "0"), ("vllm", "1"), ("vllm", "0")) == ["02", "1"]
    # the last one shares a GPU with both others, so that none of them starts beside another
    assert groups(("vllm", "0"), ("vllm", "1"), ("vllm", "0,1")) == ["012"]


def test_one_that_names_no_gpu_may_get_any() -> None:
    assert groups(("vllm", "0"), ("vllm", None)) == ["01"]
    # the simulator takes none, and needs not wait until a model is loaded
    assert groups(("vllm", "0"), ("sim", None)) == ["0", "1"]
