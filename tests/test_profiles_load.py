"""What a profile says of a blast: pauses, phases, chains, unique requests, a prefix that all share."""

import re
from importlib import resources

import pytest

from toolkit.errors import ToolkitError
from toolkit.profiles import Phase, Profile, read_profile

HI = '[[prompts]]\ntext = "Hi"\n'
PHASE = '[[phases]]\nfor = "1m"\n'


def read(text: str) -> Profile:
    return read_profile(text, "mine", "toml")


def refusal(text: str) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        read(text)
    assert caught.value.hint
    return caught.value


def from_catalog(name: str) -> Profile:
    file = resources.files("toolkit").joinpath("catalog", "profiles", f"{name}.toml")
    return read_profile(file.read_text(encoding="utf-8"), name, "toml")


def test_a_profile_that_says_nothing_of_load_has_none() -> None:
    profile = read(HI)
    assert (profile.think_time_s, profile.unique_share, profile.phases) == (None, 0.0, ())
    assert (profile.shared_prefix, profile.prompts[0].then) == (None, ())


@pytest.mark.parametrize(
    ("value", "seconds"), [("2", (2.0, 2.0)), ("0", (0.0, 0.0)), ("[0.5, 3]", (0.5, 3.0))]
)
def test_a_think_time_is_a_number_of_seconds_or_two(
    value: str, seconds: tuple[float, float]
) -> None:
    assert read(f"think_time_s = {value}\n{HI}").think_time_s == seconds


def test_phases_follow_each_other_as_written() -> None:
    text = """
        [[phases]]
        name = "up"
        for = "1m30s"
        users = [1, 32]
        [[phases]]
        for = "2h"
        users = 32
        spawn_rate = 4
    """
    assert read(HI + text).phases == (
        Phase(name="up", length_s=90.0, users=(1, 32)),
        Phase(name="phase-2", length_s=7200.0, users=(32, 32), spawn_rate=4.0),
    )


def test_a_chain_is_a_list_of_texts_with_the_answer_in_them() -> None:
    profile = read(HI + 'then = ["Shorten: {answer}", "{answer}{answer}"]')
    assert profile.prompts[0].then == ("Shorten: {answer}", "{answer}{answer}")


def test_a_shared_prefix_is_every_prompts_system_message() -> None:
    text = """
        shared_prefix = "manual"
        [passages]
        manual = '''
Read me.
'''
        more = "Also."
        [[prompts]]
        text = "Why?"
        passages = ["more"]
        [[prompts]]
        messages = [{role = "user", content = "Hi"}]
    """
    profile = read(text)
    system = {"role": "system", "content": "Read me."}
    assert [prompt.messages for prompt in profile.prompts] == [
        (system, {"role": "user", "content": "Also.\n\nWhy?"}),
        (system, {"role": "user", "content": "Hi"}),
    ]
    assert profile.shared_prefix == "manual"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("think_time = 1\n" + HI, "`mine`: unknown key `think_time`"),
        *(
            (f"think_time_s = {value}\n{HI}", "`mine`: `think_time_s` is neither seconds nor")
            for value in ("-1", "[3, 1]", "[1]", "[1, 2, 3]", "'2s'", "true", "nan", "[0, inf]")
        ),
        ("think_time_s = 3601\n" + HI, "`mine`: `think_time_s` is neither seconds nor"),
        (f"think_time_s = {'9' * 400}\n{HI}", "`mine`: `think_time_s` is neither seconds nor"),
        ("unique_share = 2\n" + HI, "`mine`: `unique_share` is not a number from 0 to 1"),
        ("shared_prefix = 'x'\n" + HI, "`mine`: `shared_prefix`: there is no passage `x`"),
        ("shared_prefix = 3\n" + HI, "`mine`: `shared_prefix` is not one line of text"),
        (
            (
                "shared_prefix = 'a'\npassages = {a = 'A'}\n[[prompts]]\nname = 'p'\n"
                "messages = [{role = 'system', content = 'Be brief.'}]"
            ),
            "`mine` prompt `p` has a system message beside the `shared_prefix`",
        ),
        (HI + "then = 'x'", "`mine`: prompts 1: `then` is not a list, each entry a text"),
        (
            HI + "then = ['{answer}', 'x {anwser}']",
            "`mine`: prompts 1: `then`: `x {anwser}` does not hold `{answer}`",
        ),
        (HI + "then = [3]", "`mine`: prompts 1: `then` is not a list, each entry a text"),
        (HI + "phases = 3", "`mine`: prompts 1: unknown key `phases`"),
        ("phases = 3\n" + HI, "`mine`: `phases` is no list of tables"),
        (HI + PHASE + "user = 3", "`mine`: phases 1: unknown key `user`"),
        (HI + PHASE, "`mine`: phases 1 has no `users`"),
        *(
            (HI + PHASE + f"users = {value}", "`mine`: phases 1: `users` is neither")
            for value in ("-1", "1.5", "[1]", "[1, 2, 3]", "[1, -1]", "true", "'4'", "100001")
        ),
        (HI + PHASE + "users = 0", "`mine`: `phases` never have a user"),
        (HI + "[[phases]]\nusers = 1", "`mine`: phases 1 has no `for`"),
        (
            HI + "[[phases]]\nusers = 1\nfor = '5'",
            "`mine`: phases 1: `for` is not a duration",
        ),
        (HI + "[[phases]]\nusers = 1\nfor = '0s'", "`mine`: phases 1: `for` is not a duration"),
        (
            HI + PHASE + "users = 1\nspawn_rate = 0",
            "phases 1: `spawn_rate` is not a number above 0",
        ),
        (
            HI + PHASE + "users = 1\nspawn_rate = 'x'",
            "phases 1: `spawn_rate` is not a number above",
        ),
        (HI + PHASE + 'users = 1\nname = "a\\nb"', "phases 1: `name` is not one line of text"),
        (HI + PHASE + "users = 1\n" + PHASE + "users = []", "`mine`: phases 2: `users`"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_key(text: str, message: str) -> None:
    assert message in re.sub(r"` line \d+", "`", refusal(text).message)


def test_a_typing_error_is_told_with_the_word_that_was_meant() -> None:
    assert refusal("think_time = 1\n" + HI).hint == "Did you mean `think_time_s`?"
    assert refusal(HI + PHASE + "user = 3").hint == "Did you mean `users`?"


# the catalog


def test_the_chain_has_the_four_calls_of_an_application() -> None:
    profile = from_catalog("chain")
    assert [len(prompt.then) for prompt in profile.prompts] == [3, 3, 3]


def test_the_ramp_climbs_with_the_contests_prompts_and_comes_down_again() -> None:
    profile = from_catalog("ramp")
    assert profile.prompts == from_catalog("contest").prompts
    assert [(phase.users_from, phase.users_to) for phase in profile.phases] == [
        (1, 1),
        (1, 64),
        (64, 64),
        (4, 4),
    ]
    assert sum(phase.length_s for phase in profile.phases) == 15 * 60


def test_the_shared_prefix_is_long_and_the_questions_are_short() -> None:
    profile = from_catalog("shared-prefix")
    systems = {str(prompt.messages[0]["content"]) for prompt in profile.prompts}
    assert len(systems) == 1
    assert 700 <= len(systems.pop().split()) <= 740
    assert max(len(str(prompt.messages[1]["content"]).split()) for prompt in profile.prompts) < 30
