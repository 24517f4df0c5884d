"""A template's text and values -> a file's text, every `{{ }}` quoted for the language that is written.

A name that is not given is an error, never an empty word. It opens nothing: templates come in as text.
"""

from functools import lru_cache
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError

from toolkit.deploy.quoting import (
    QUOTES,
    Language,
    Plain,
    comment,
    systemd_text,
    systemd_variable,
    yaml_block,
)

FILTERS = {
    "comment": comment,
    "block": yaml_block,
    "text": systemd_text,
    "variable": systemd_variable,
}
"""`{{ name | comment }}` inside comments, `{{ text | block(4) }}` for several lines in YAML; the last two for units."""


def render(template: str, *, language: Language, **values: Any) -> str:
    """The text of one file. Raises ToolkitError for a value that the language can't carry."""
    return _environment(language).from_string(template).render(values)


@lru_cache(maxsize=len(QUOTES))
def _environment(language: Language) -> Environment:
    quote = QUOTES[language]

    def quoted(value: Any) -> Any:
        if isinstance(value, StrictUndefined):
            raise TemplateError("a value of a template is not given")
        return value if isinstance(value, Plain) else quote(value)

    # autoescape is HTML's; `quoted` does the same for each language here
    found = Environment(
        undefined=StrictUndefined,
        finalize=quoted,
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters.update(FILTERS)
    return found
