from toolkit.report.html import Markup, tag


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("b", "<i>", tag("i", "&")) == "<b>&lt;i&gt;<i>&amp;</i></b>"


def test_an_attribute_cannot_be_left_by_a_quote() -> None:
    assert tag("b", title='" onclick="alert(1)') == '<b title="&quot; onclick=&quot;alert(1)"></b>'


def test_none_and_false_leave_an_attribute_out_true_is_bare_and_zero_stays() -> None:
    assert tag("b", a=None, b=False, c=True, data_d=0, class_="e") == (
        '<b c data-d="0" class="e"></b>'
    )


def test_nested_lists_of_children_are_put_side_by_side_and_none_is_nothing() -> None:
    assert tag("p", ["a", [None, 1], (tag("br"),)]) == "<p>a1<br/></p>"


def test_what_is_made_of_markup_by_plain_string_work_is_text_again() -> None:
    # joining, slicing or formatting may have let a stranger's text in
    assert tag("p", tag("i", "a") + "<b>") == "<p>&lt;i&gt;a&lt;/i&gt;&lt;b&gt;</p>"


def test_a_number_is_written_as_it_is() -> None:
    assert Markup.joined([1, 2.5, "<"]) == "12.5&lt;"
