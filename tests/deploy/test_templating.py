"""Every value of a template is quoted, and a forgotten one is an error."""

import pytest
from jinja2 import TemplateError

from toolkit.deploy.quoting import Plain
from toolkit.deploy.templating import render
from toolkit.errors import ToolkitError


def test_every_value_is_quoted_for_its_language() -> None:
    values = {"name": 'a: "b"', "port": 80}
    assert render("x: {{ name }}\ny: {{ port }}\n", language="yaml", **values) == (
        'x: "a: \\"b\\""\ny: 80\n'
    )
    assert render("x {{ name }} {{ port }};\n", language="nginx", **values) == (
        'x "a: \\"b\\"" 80;\n'
    )


def test_what_is_put_together_is_quoted_as_one() -> None:
    assert render('{{ "http://" ~ name ~ "/v1" }}', language="nginx", name='h"') == (
        '"http://h\\"/v1"'
    )


def test_text_of_the_language_passes_and_its_parts_do_not() -> None:
    assert render("{{ size }}", language="nginx", size=Plain("10m")) == "10m"
    assert render('{{ size ~ "" }}', language="nginx", size=Plain("10m")) == '"10m"'


@pytest.mark.parametrize(
    "template", ["{{ absent }}", "{{ here.absent }}", "{{ absent | comment }}"]
)
def test_a_value_that_is_not_given_is_an_error_and_no_empty_word(template: str) -> None:
    with pytest.raises(TemplateError):
        render(template, language="yaml", here={})


def test_a_template_s_own_words_are_left_alone() -> None:
    text = '{% for each in [1, 2] %}\n- "$x" {{ each }}\n{% endfor %}\nend\n'
    assert render(text, language="yaml") == '- "$x" 1\n- "$x" 2\nend\n'


def test_no_name_ends_a_comment() -> None:
    with pytest.raises(ToolkitError):
        render("# {{ name | comment }}\n", language="nginx", name="x\nevil on;")
