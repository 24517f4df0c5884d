"""What the bench's tests of its client share: both event loops."""

import asyncio

import pytest
import uvloop
from support.chat import Run


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Run:
    """How a test runs what it awaits: the command line's loop is uvloop, a caller's may be any."""
    return request.param
