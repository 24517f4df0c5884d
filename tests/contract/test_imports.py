"""The contract knows the product from outside: it must still hold when every package inside has been written anew."""

import ast
from pathlib import Path

HERE = Path(__file__).parent
ALLOWED = {"toolkit.sim.app", "toolkit.sim.presets"}
"""The simulator's start, in harness/fleets.py alone."""


def test_nothing_here_imports_the_toolkit_or_a_helper_of_its_inner_tests() -> None:
    found = set()
    for file in HERE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                if name.partition(".")[0] in {"toolkit", "support", "leaderboard_page"}:
                    found.add((str(file.relative_to(HERE)), name))
    assert found == {("harness/fleets.py", name) for name in ALLOWED}
