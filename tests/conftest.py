"""For every test here: a skipped test is a hole, so a run in CI that skips any fails."""

import os

import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a CI run that skipped anything; `-ra` names each test and its reason above the closing line."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None or not reporter.stats.get("skipped"):
        return
    reporter.write_line("\nCI is set, and nothing may be skipped there.", red=True)
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
