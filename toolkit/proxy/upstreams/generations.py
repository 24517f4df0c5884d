"""Which generation of a model answers: the part of every key that changes when an upstream restarts or changes. No clock, no file.

A number per model counts up; whoever watches the upstreams says when.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from toolkit.proxy.upstreams.identity import ANY


class Generations:
    """The numbers that hold now."""

    def __init__(self, numbers: Mapping[str, int] = MappingProxyType({})) -> None:
        self.numbers = dict(numbers)

    def of(self, model: str | None) -> str:
        """A model's name and number, e.g., `tiny@3`; where it has none, or was not named, the number of all, `tiny@*3`.

        The two must not be mixed up: one that was `*1` and then gets a number of its own begins at 1.
        """
        own = None if model is None else self.numbers.get(model)
        if own is None:
            return f"{model or ''}@*{self.numbers.get(ANY, 0)}"
        return f"{model}@{own}"

    def raise_to(self, numbers: Mapping[str, int]) -> list[str]:
        """Take higher numbers over, e.g., of another process; the models that they change."""
        changed = [
            model for model, number in numbers.items() if number > self.numbers.get(model, 0)
        ]
        self.numbers.update({model: numbers[model] for model in changed})
        return changed

    def bump(self, models: Iterable[str]) -> None:
        """Begin a new generation of each."""
        for model in models:
            self.numbers[model] = self.numbers.get(model, 0) + 1
