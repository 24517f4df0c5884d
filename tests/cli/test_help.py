"""`--help` of every command: what it does, on one screen; examples that click would take, one wording for one option."""

import re
import shlex
from collections import defaultdict

import click
import pytest
from click.testing import CliRunner
from support.command_lines import complaint, every_command
from support.manual import calls

from toolkit.cli import GROUPS, VERBS, main
from toolkit.cli.help_page import Command, Option

COMMANDS = dict(every_command())
ROWS, COLUMNS = 24, 80


def page(name: str) -> str:
    """Its help as a terminal of 80 columns shows it: click leaves two of them free."""
    words = [*name.split()[1:], "--help"]
    result = CliRunner().invoke(main, words, prog_name="toolkit", terminal_width=COLUMNS - 2)
    assert result.exit_code == 0
    return result.stdout


def examples(name: str) -> list[str]:
    """The lines of its help that can be typed, continued ones joined, without what is said about them."""
    text = (COMMANDS[name].help or "").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    typed = [re.sub(r"(?<=\S) {2,}(?=[^-\s]).*", "", line) for line in lines if "toolkit " in line]
    return [line for line in typed if line.startswith(("toolkit ", "eval ", "ssh "))]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_begins_with_a_sentence_and_has_a_short_one(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    first = command.help.strip().split("\n\n")[0]
    assert first[0].isupper()
    assert re.search(r"[.:](\s|$)", first), first
    if not command.hidden and name != "toolkit":
        assert re.fullmatch(r"[A-Z].{10,68}[.?]", command.get_short_help_str(limit=80))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_an_example_and_each_would_be_taken(name: str) -> None:
    found = examples(name)
    assert found, "no example"
    for line in found:
        for call in calls(line):
            if call[0] != "VERB":
                assert complaint(call) is None, line
    own = name if name != "toolkit serve run" else "toolkit serve"
    assert any(own in line for line in found), "no example of its own"


def test_an_example_that_is_wrong_would_be_found() -> None:
    (call,) = calls("toolkit scout hosts.txt --intervall 5s")
    assert complaint(call)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_eighty_columns(name: str) -> None:
    assert [line for line in page(name).splitlines() if len(line) > COLUMNS] == []


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "toolkit"])
def test_what_most_people_need_fits_one_screen_and_the_rest_stands_below_it(name: str) -> None:
    common, _, advanced = page(name).partition("\nAdvanced:\n")
    assert len(common.rstrip().splitlines()) <= ROWS
    assert "--help  " in common
    assert "\n  --db" not in common
    # nothing that is said of a command is left out
    words = " ".join(f"{common} {advanced}".split())
    for paragraph in re.split(r"[\b\f]|\n\s*\n", COMMANDS[name].help or ""):
        assert " ".join(paragraph.split()) in words


def options() -> list[tuple[str, click.Option]]:
    return [
        (name, parameter)
        for name, command in COMMANDS.items()
        for parameter in command.params
        if isinstance(parameter, click.Option)
    ]


def test_every_option_says_what_it_does_in_a_sentence() -> None:
    silent = {
        f"{name} {option.opts[0]}"
        for name, option in options()
        if not re.fullmatch(r".{8,}[.\]]", option.help or "", re.DOTALL)
    }
    assert silent == set()


def test_no_placeholder_is_only_a_type() -> None:
    """`--host TEXT` does not say what is wanted; of a number, which is `N`, the sentence does."""
    vague = {
        f"{name} {option.opts[0]}"
        for name, option in options()
        if not option.is_flag
        and option.metavar is None
        and isinstance(option.type, click.types.StringParamType)
    }
    assert vague <= {"toolkit deploy --image"}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_page_speaks_of_clicks_own_types_of_numbers(name: str) -> None:
    assert not re.search(r"INTEGER|FLOAT", page(name))


def test_one_option_has_one_placeholder_everywhere() -> None:
    seen = defaultdict(set)
    for name, option in options():
        if not option.is_flag and (option.metavar or isinstance(option.type, click.Path)):
            context = click.Context(COMMANDS[name])
            seen[option.opts[-1]].add(option.make_metavar(context))
    # the same word for another thing, and each says so
    other = {"--host": {"ADDRESS", "NAME", "URL|NAME"}, "--profile": {"NAME|FILE", "FILE"}}
    other |= {"--gpus": {"0,1", "N"}, "--concurrency": {"1,2,4,...", "N"}}
    other |= {"--set": {"FLAG=VALUE", "NAME=VALUE"}, "--sim": {"PERSONALITY"}}
    other |= {"--vllm": {"COMMAND", "VERSION"}, "--model": {"NAME", "MODEL"}}
    other |= {"--resume": {"RUN", "[RUN]"}, "--keep": {"5|7d|2GB", "N"}, "--idle": {"DURATION"}}
    other |= {"--out": {"FILE", "DIRECTORY"}}
    several = {word: found for word, found in seen.items() if len(found) > 1}
    assert {
        word: found for word, found in several.items() if not found <= other.get(word, set())
    } == {}


def test_what_repeats_stands_everywhere_in_the_same_words() -> None:
    for name, option in options():
        text = option.help or ""
        if "--json" in option.opts and option.is_flag:
            assert text.startswith("Print one JSON object"), name
        if "--db" in option.opts and name not in {"toolkit serve run", "toolkit proxy"}:
            assert text == "SQLite database file, created on first use.", name
        if "--run" in option.opts:
            assert option.make_metavar(click.Context(COMMANDS[name])) == "RUN", name
        if "--yes" in option.opts:
            assert text.startswith("Do not ask"), name
        if "--no-store" in option.opts:
            assert text.startswith("Do not store anything"), name
        if option.multiple:
            assert "may be repeated" in text, f"{name} {option.opts[0]}"
        assert not re.search(r"can be repeated|again for more|more than once", text), name


def test_every_verb_stands_in_one_room_and_help_lists_the_rooms_in_order() -> None:
    assert len(set(VERBS)) == len(VERBS) == sum(len(verbs) for verbs in GROUPS.values())
    text = page("toolkit")
    places = [text.index(f"\n{group}:\n") for group in GROUPS]
    assert places == sorted(places)
    listed = re.findall(r"^  ([a-z]+)  +[A-Z]", text, re.MULTILINE)
    assert [verb for verb in listed if verb in VERBS] == list(VERBS)


def test_words_of_an_example_are_read_as_a_shell_would() -> None:
    assert examples("toolkit completion") == [
        'eval "$(toolkit completion bash)"',
        'eval "$(toolkit completion zsh)"',
        "toolkit completion fish | source",
    ]
    assert shlex.split(examples("toolkit impact")[0])[-1] == "1.3"


def test_an_old_spelling_works_and_stands_nowhere() -> None:
    @click.command(cls=Command)
    @click.option("--num-prompts", cls=Option, aliases=["--requests"], type=click.IntRange(1, 9))
    def ask(num_prompts: int | None) -> None:
        click.echo(f"{num_prompts} prompts")

    def said(*words: str) -> str:
        return CliRunner().invoke(ask, words).output

    assert said("--requests", "3") == said("--requests=3") == said("--num-prompts", "3")
    assert said("--requests", "3") == "3 prompts\n"
    assert said("--num-prompts", "3", "--requests", "4") == "4 prompts\n"
    for words in (["--help"], ["--requests", "10"]):
        assert "--num-prompts" in said(*words)
        assert "--requests" not in said(*words)
