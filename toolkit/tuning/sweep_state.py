"""What a sweep has done so far, kept in the store as what its run says of itself: so a killed one goes on where it was.

Each step is one transaction. What was measured stands in runs of its own, which blast writes once a second.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from toolkit.errors import ToolkitError
from toolkit.records import Event, Host, LoaderSecond, Run, Shot, Tally, TallyKind
from toolkit.tuning.children import Mark
from toolkit.tuning.figures import Figures

VERB = "sweep"
FORM = 1
"""Of what is kept; another one is of another version."""

CellStatus = Literal["under way", "measured", "failed"]


class SweepStore(Protocol):
    """Where a sweep reads and writes; `toolkit.store.Store` is one, and says what its methods mean."""

    def add_run(self, run: Run) -> None: ...  # noqa: D102
    def end_run(self, run_id: str, *, ended_at: float, client_ok: bool | None) -> None: ...  # noqa: D102
    def run(self, run_id: str) -> Run | None: ...  # noqa: D102
    def runs(self, *, verb: str | None = None, limit: int | None = None) -> list[Run]: ...  # noqa: D102
    def hosts_of(self, run_id: str) -> dict[int, Host]: ...  # noqa: D102
    def capture(self, run_id: str) -> dict[str, Any] | None: ...  # noqa: D102
    def set_capture(self, run_id: str, summary: Mapping[str, object]) -> None: ...  # noqa: D102
    def add_event(self, event: Event) -> None: ...  # noqa: D102
    def events(self, run_id: str, *, after_row: int = 0) -> list[tuple[int, Event]]: ...  # noqa: D102
    def shots(self, run_id: str, *, name: str | None = None) -> list[Shot]: ...  # noqa: D102
    def loader_seconds(  # noqa: D102
        self, run_id: str, *, after_row: int = 0, from_s: int | None = None
    ) -> list[tuple[int, LoaderSecond]]: ...
    def tallies(  # noqa: D102
        self,
        run_id: str,
        *,
        name: str | None = None,
        kind: TallyKind | None = None,
        from_s: int | None = None,
        to_s: int | None = None,
    ) -> list[Tally]: ...


@dataclass(slots=True, kw_only=True)
class SweepCell:
    """One configuration in one block."""

    status: CellStatus = "under way"
    run: str | None = None
    """The blast's."""
    begun_at: float = 0.0
    """Wall clock."""
    url: str | None = None
    start_s: float | None = None
    """From the command to the first answer; None: somebody else's server."""
    cause: str | None = None
    figures: Figures = field(default_factory=dict)
    """What tallies do not tell: of counters, of the warm-up and of requests for JSON."""
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class State:
    """All of it."""

    form: int = FORM
    cells: dict[str, SweepCell] = field(default_factory=dict)
    """By `stage/name/block`."""
    out: dict[str, str] = field(default_factory=dict)
    """Configuration's key -> why it is left out: it did not start."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Configuration's key -> why it cannot work."""
    base: str | None = None
    """Name of the model that the levers start from; None: not chosen yet, or there are none."""
    ports: dict[str, int] = field(default_factory=dict)
    children: list[Mark] = field(default_factory=list)
    """Processes that may be alive."""
    notes: list[str] = field(default_factory=list)

    def cell(self, key: str, block: int) -> SweepCell | None:
        """What is known of one configuration in one block."""
        return self.cells.get(f"{key}/{block}")


class Kept:
    """A sweep's state and the run that it belongs to, in an open store."""

    def __init__(self, store: SweepStore, run: str, state: State) -> None:
        self.store, self.run, self.state = store, run, state

    @classmethod
    def begun(cls, store: SweepStore, run: Run) -> "Kept":
        """A new sweep."""
        store.add_run(run)
        kept = cls(store, run.id, State())
        kept.save()
        return kept

    @classmethod
    def found(cls, store: SweepStore, run: str) -> "Kept":
        """A sweep that the store knows. Raises ToolkitError for one of another form."""
        told = store.capture(run) or {}
        if told.get("form") != FORM:
            raise ToolkitError(
                f"sweep `{run}` was written by another version of the toolkit",
                "Begin a new one; its runs stay, `toolkit runs` lists them",
            )
        try:
            return cls(store, run, state_of(told))
        except (TypeError, ValueError, AttributeError) as error:
            raise ToolkitError(
                f"what sweep `{run}` had done so far is not as the toolkit writes it",
                "Begin a new one; its runs stay, `toolkit runs` lists them",
            ) from error

    def save(self) -> None:
        """Write it down; it is on disk then."""
        self.store.set_capture(self.run, asdict(self.state))

    def tell(self, at: float, text: str) -> None:
        """Leave an event at the sweep's run."""
        self.store.add_event(Event(run=self.run, at=at, kind="mark", text=text))


def state_of(told: dict[str, Any]) -> State:
    """What was written down, read back."""
    known = {key: value for key, value in told.items() if key in State.__dataclass_fields__}
    known["cells"] = {key: SweepCell(**cell) for key, cell in told.get("cells", {}).items()}
    known["children"] = [(int(pid), int(ticks)) for pid, ticks in told.get("children", [])]
    return State(**known)
