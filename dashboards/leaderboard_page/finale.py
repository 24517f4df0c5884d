"""The end of a reveal: who won, who stands beside the winner, and who was best at what. Pure: it draws boards.

Nobody is named for a figure that is not sure, or who fails; and the categories leave out hosts flagged for cheating.
"""

from collections.abc import Mapping

from leaderboard_page.badges import badge, shown_verdicts
from leaderboard_page.standings_table import RANKINGS
from leaderboard_page.strip import margin
from toolkit.board.ranking import may_lead
from toolkit.board.standings import DISHONEST, Board, RankBy, Standing, reasons
from toolkit.report.html import Markup, tag

CATEGORIES: Mapping[RankBy, str] = {
    "p95": "fastest",
    "output_tokens_per_s": "most tokens",
    "error_rate": "fewest errors",
}
_STEPS = ("winner", "second", "third")
_STEPS_SO_FAR = ("first so far", "second so far", "third so far")
"""Of a blast that is still on: nobody has won yet."""


def finale(board: Board, *, best_honest: Board, categories: Mapping[RankBy, Board]) -> Markup:
    """The podium of a board, and the winner of each category, of the same window."""
    sure = [one for one in board.standings if may_lead(one, board.rank_by)]
    words = _STEPS if board.ended else _STEPS_SO_FAR
    steps = []
    for place, one in enumerate(sure[: len(words)]):
        # tied hosts share a step, as they share a rank
        word = words[sum((other.rank or 0) < (one.rank or 0) for other in sure)]
        tied = [other.name for other in sure if other.rank == one.rank and other is not one]
        ahead = None
        if place == 0 and not tied and len(sure) > 1:
            ahead = tag("span", margin(one, sure[1], board.rank_by), class_="below")
        steps.append(
            tag(
                "li",
                tag("span", word, f", tied with {_names(tied)}" if tied else None, class_="what"),
                tag("b", tag("span", one.name, class_="name"), class_="value"),
                tag("span", [badge(verdict) for verdict in shown_verdicts(one)], class_="badges"),
                tag("span", _figure(one, board.rank_by), class_="below"),
                ahead,
                class_="step" + (" leader" if place == 0 else ""),
                data_key=f"step/{one.name}",
            )
        )
    if not steps:
        steps = [tag("li", tag("span", "Nobody has enough good answers to win", class_="below"))]

    cards = [_category(title, categories[rank_by]) for rank_by, title in CATEGORIES.items()]
    cards.append(_category("best honest", best_honest))
    return tag(
        "section",
        tag("ol", steps, class_="kpis podium"),
        tag("ul", cards, class_="kpis categories"),
        class_="finale",
        aria_label="Result",
    )


def _category(title: str, board: Board) -> Markup:
    may_win = [
        one
        for one in board.standings
        if may_lead(one, board.rank_by)
        and not any(verdict.code in DISHONEST for verdict in reasons(one.verdicts))
    ]
    best = [one for one in may_win if one.rank == may_win[0].rank]
    # an honest board has only hosts that were judged
    names, below = (
        "nobody",
        "nobody was judged" if board.honest else "no host has enough good answers",
    )
    if best:
        names, below = _names([one.name for one in best]), _figure(best[0], board.rank_by)
    return tag(
        "li",
        tag("span", title, class_="what"),
        tag("b", tag("span", names, class_="name"), class_="value", title=names),
        tag("span", below, class_="below"),
        class_="category",
        data_key=title,
    )


def _names(names: list[str]) -> str:
    """`h1`, `h1 and h2`, or `h1 and 5 more`."""
    if len(names) <= 2:
        return " and ".join(names)
    return f"{names[0]} and {len(names) - 1} more"


def _figure(one: Standing, rank_by: RankBy) -> str:
    figure = RANKINGS[rank_by]
    return f"{figure.written(getattr(one, figure.field))} {figure.name}"
