"""How Sphinx makes the manual: `sphinx-build -W docs build/manual`. Its pages fetch nothing from elsewhere."""

from importlib import metadata
from itertools import groupby
from typing import Any

import click

from toolkit.cli.serve import verb as serve

project = "toolkit"
release = metadata.version("llm-serving-toolkit")
extensions = ["myst_parser", "sphinx_click"]
exclude_patterns = ["examples", "schemas"]
myst_heading_anchors = 3
# the text of `--help` has its code between single backticks
default_role = "code"
# and its options two hyphens
smartquotes = False
highlight_language = "text"
html_theme = "furo"
html_title = "toolkit"
html_static_path = ["static"]
html_css_files = ["manual.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

# nobody types `toolkit serve run`: what it takes is what `toolkit serve` takes
serve.command.params = [each for each in serve.run.params if isinstance(each, click.Option)]


def _examples_as_blocks(_app: object, _ctx: object, lines: list[str]) -> None:
    """Keep the columns of a command's examples, which sphinx-click makes a line block."""
    made = []
    for is_example, some in groupby(lines, lambda line: line.startswith("| ")):
        if is_example:
            made += ["", ".. code-block:: text", "", *(f"   {line[2:]}" for line in some), ""]
        else:
            made += some
    lines[:] = made


def setup(app: Any) -> None:
    """Sphinx calls it once."""
    app.connect("sphinx-click-process-description", _examples_as_blocks)
