"""Dependent calls: what a step holds of the answer before it."""

from toolkit.blast.chains import MOST_ANSWER_CHARS, filled, step_messages, step_name


def test_the_answer_stands_wherever_the_template_names_it() -> None:
    assert filled("Correct {answer}, yes {answer}; {other} {}", "A {answer} b") == (
        "Correct A {answer} b, yes A {answer} b; {other} {}"
    )


def test_a_long_answer_is_cut() -> None:
    assert filled("<{answer}>", "x" * 5000) == "<" + "x" * 2000 + ">"
    assert MOST_ANSWER_CHARS == 2000


def test_half_a_character_of_an_answer_becomes_a_question_mark() -> None:
    assert filled("{answer}!", "a\ud83d") == "a?!"


def test_a_step_keeps_the_system_messages_and_nothing_else_of_the_first() -> None:
    before = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]
    assert step_messages(before, "Say {answer}.", "it") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say it."},
    ]


def test_a_step_is_called_by_its_number() -> None:
    assert [step_name("plan", step) for step in (1, 2, 3)] == ["plan", "plan/2", "plan/3"]
