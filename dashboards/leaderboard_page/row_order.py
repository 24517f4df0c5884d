"""In what order does the page show its rows? The board's, but two rows swap only when the better rank has lasted.

The ranks and ties printed in the rows are always the window's own. No clock: time is the board's seconds.
"""

from collections.abc import Mapping

LASTS_S = 10
"""Hosts at the edge of a tie swap ranks every few seconds, and a row that jumps about cannot be followed."""


class RowOrder:
    """One board's rows, from tick to tick."""

    def __init__(self) -> None:
        self._order: list[str] = []
        """As the page showed it last."""
        self._history: list[tuple[int, dict[str, int]]] = []
        """Second and ranks of each tick in the last LASTS_S, and of one tick before them."""

    def update(self, at_s: int, ranks: Mapping[str, int]) -> list[str]:
        """Add a tick, whose `ranks` are in the board's order; return the hosts from the top row down.

        One host passes another only if its rank was better at every tick of the last LASTS_S. "Better at every tick" has
        no circles, so an order that respects all such pairs always exists. Other rows keep their places.
        """
        last_s = self._history[-1][0] if self._history else None
        goes_on = last_s is not None and last_s <= at_s <= last_s + LASTS_S
        if not goes_on or ranks.keys() != set(self._order):
            # another moment or other hosts: there is no order on the screen that has to be kept
            self._history, self._order = [(at_s, dict(ranks))], list(ranks)
            return list(self._order)

        if at_s == last_s:
            self._history.pop()
        self._history.append((at_s, dict(ranks)))
        while len(self._history) > 1 and self._history[1][0] <= at_s - LASTS_S:
            del self._history[0]
        if self._history[0][0] > at_s - LASTS_S:
            return list(self._order)  # watched for less than LASTS_S

        # a topological sort: the next row is the uppermost old one that no remaining host beats
        past = {host: [tick[host] for _, tick in self._history] for host in self._order}
        remaining, self._order = self._order, []
        while remaining:
            row = next(
                host
                for host in remaining
                if not any(_beats(past[other], past[host]) for other in remaining)
            )
            remaining.remove(row)
            self._order.append(row)
        return list(self._order)


def _beats(one: list[int], other: list[int]) -> bool:
    """Whether the first ranks are better than the others at every tick; 1 is the best."""
    return all(mine < theirs for mine, theirs in zip(one, other, strict=True))
