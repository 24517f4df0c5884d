"""What the planner says against a configuration of a sweep, before it is started."""

from collections.abc import Callable

from toolkit.improve.configurations import Configuration


def impossible_on(gpu: str, gpus: int) -> Callable[[Configuration], str | None]:
    """Ask the planner whether it fits this GPU, or so many of them."""
    del gpu, gpus
    return lambda _: None
