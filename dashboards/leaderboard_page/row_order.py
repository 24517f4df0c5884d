"""The order of the page's rows: the board's, but that a row moves only when a change of ranks has lasted.

Ranks and ties beside the rows are the window's own at every moment. No clock: time is the board's seconds.
"""

from collections.abc import Mapping

LASTS_S = 10
"""Hosts near the edge of a tie change their ranks back and forth within seconds; eyes that follow a row want it to stay."""


class RowOrder:
    """One board's rows, from tick to tick."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._seen: list[tuple[int, dict[str, int]]] = []
        """Seconds and their ranks: the last LASTS_S, and one before them."""

    def of(self, at_s: int, ranks: Mapping[str, int]) -> list[str]:
        """The hosts from the top; `ranks` are in the board's order.

        A host passes another when it was the better one in every look of the last LASTS_S: all such pairs together never
        contradict each other, so there is always an order that has them all. Otherwise all stay where they stood.
        """
        last_s = self._seen[-1][0] if self._seen else None
        if (
            last_s is None
            or not last_s <= at_s <= last_s + LASTS_S
            or ranks.keys() != set(self._shown)
        ):
            # another moment, or other hosts: nobody has watched these rows
            self._seen, self._shown = [(at_s, dict(ranks))], list(ranks)
            return list(self._shown)
        if at_s == last_s:
            self._seen.pop()
        self._seen.append((at_s, dict(ranks)))
        while len(self._seen) > 1 and self._seen[1][0] <= at_s - LASTS_S:
            del self._seen[0]
        if self._seen[0][0] > at_s - LASTS_S:
            return list(self._shown)
        lines = {name: [told[name] for _, told in self._seen] for name in self._shown}
        left, order = list(self._shown), []
        while left:
            first = next(
                name
                for name in left
                if not any(_is_better(lines[other], lines[name]) for other in left)
            )
            left.remove(first)
            order.append(first)
        self._shown = order
        return list(order)


def _is_better(one: list[int], other: list[int]) -> bool:
    return all(mine < theirs for mine, theirs in zip(one, other, strict=True))
