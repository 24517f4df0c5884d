"""What every contract test may ask for. Nothing here or in harness/ imports the toolkit, but the simulator's start (harness/fleets.py)."""

import pytest

pytest.register_assert_rewrite("contract.harness")
