"""What the command line of `toolkit demo` said."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The command line of one demo, fields named as its options."""

    seconds: int
    page: bool
    port: int | None
    real: bool
    keep: bool
