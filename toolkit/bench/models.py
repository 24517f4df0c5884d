"""Which of the served models do requests name? Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.records import ServedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The name to ask for, or why there is none."""

    model: str | None = None
    error: str | None = None


def choice(served: Sequence[ServedModel], *, listed: str | None, wanted: str | None) -> Choice:
    """Choose the model at one host.

    `wanted` is the command line's and must be served; `listed` is what the hosts file expects there: when it is
    not served, what is served is measured all the same, and a verdict says so.
    """
    if wanted is not None:
        name = _name(served, wanted)
        return Choice(model=name) if name else Choice(error=_not_served(wanted, served))
    name = listed and _name(served, listed)
    if name or served:
        return Choice(model=name or served[0].id)
    return Choice(error="it lists no model, and nobody named one")


def _name(served: Sequence[ServedModel], asked: str) -> str | None:
    """The served id that `asked` means, as an id or as the place its weights came from."""
    ids = [model.id for model in served if asked in (model.id, model.root)]
    return asked if asked in ids or not served else next(iter(ids), None)


def _not_served(wanted: str, served: Sequence[ServedModel]) -> str:
    return f"it does not serve `{wanted}` but {', '.join(f'`{model.id}`' for model in served)}"
