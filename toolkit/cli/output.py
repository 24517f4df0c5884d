"""JSON lines: the data of every verb that has `--json`."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import click


def print_json(record: Mapping[str, Any]) -> None:
    """Print one object on one line at once (echo flushes), so that a reader is never behind."""
    plain = {key: _plain(value) for key, value in record.items()}
    # None: closed, as by `>&-`; a screen that is not Unicode's gets JSON's own escapes
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    only_ascii = not encoding.lower().startswith("utf")
    click.echo(json.dumps(plain, ensure_ascii=only_ascii, allow_nan=False))


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity; whole counts read better without `.0`."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value
