"""A profile's phases as Locust's load shape. It reads the time since the start, and says how many users there should be."""

from collections.abc import Sequence
from typing import Any

from blast_run import Blast
from locust import LoadTestShape

from toolkit.blast.phases import at
from toolkit.profiles import Phase


def shape_class(phases: Sequence[Phase], hosts: int, blast: Blast) -> type[LoadTestShape]:
    """The class of the shape that takes `hosts` hosts through these phases."""

    def tick(self: Any) -> tuple[int, float] | None:
        stage = at(phases, self.get_run_time())
        if stage is None:
            return None
        blast.note_phase(stage.name)
        return stage.users * hosts, stage.spawn_rate * hosts

    fields = {"tick": tick, "abstract": False, "__doc__": "The profile's phases."}
    return type("Phases", (LoadTestShape,), fields)
