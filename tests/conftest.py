"""For every test here: a run in CI that skips any fails, as a skipped test is a hole; no example is timed; interrupts and hang-ups are heard."""

import asyncio
import gc
import inspect
import os
import signal
import sys
import threading
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine stands still for longer than the 200 ms that Hypothesis gives an example; the rest stays as it is,
# in CI its own profile for that.
settings.register_profile(
    "untimed", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")

# Where no bytecode is kept, as in images of containers, each worker of each run rewrites the asserts of all files anew, which
# takes 7 s of CPU, and whatever a test starts compiles the toolkit first. `.ci/run` does the same.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell's `pytest &` has it and all that it starts ignore interrupts, which many a test here sends.
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

# And what `nohup` has ignored, all that is started here would ignore, too; a handler is not inherited.
if (
    signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs for a minute at most, in a loop of its own: of which kind, `loop` may say (support/fronting.py)."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    named = inspect.signature(pyfuncitem.obj).parameters
    run = pyfuncitem.funcargs.get("loop", asyncio.run)
    run(asyncio.wait_for(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in named}), 60))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting made is no garbage, ever: to look through 14,000 tests for some took 0.5 s, before and after each bench."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a CI run that skipped anything; `-ra` names each test and its reason above the closing line."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None or not reporter.stats.get("skipped"):
        return
    reporter.write_line("\nCI is set, and nothing may be skipped there.", red=True)
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
