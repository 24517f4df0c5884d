"""How many tokens a prompt has, from its characters: a line per model, learned from what answers' usage tells.

An estimate for limits, before anything was sent; the tokenizer is not asked. It holds numbers only, no text.

tokens = overhead + rate * characters. The overhead is what a chat template adds; learned apart, many short prompts do not
make a long one look longer than it is. Both begin at the defaults and move as far as the answers ask for: short prompts
tell the overhead, long ones the rate.
"""

from collections import OrderedDict
from dataclasses import dataclass

DEFAULT_RATE = 0.25
"""Tokens a character: English has 3.5 to 4.5 characters a token."""
DEFAULT_OVERHEAD = 8.0
RATE_DOUBT, OVERHEAD_DOUBT = 0.25, 16.0
"""How far the truth may be from these: Chinese is near one token a character, a template with a system prompt has 20 to 40."""
LOWEST_RATE, HIGHEST_RATE = 0.01, 4.0
"""A run of spaces; a byte-level tokenizer's rarest characters of four bytes."""
MOST_OVERHEAD = 256
"""More above the highest rate is no text's: images, or a prompt that the server keeps."""
REMEMBERED = 128
"""Answers that count; older ones fade."""
NOISE_TOKENS, NOISE_SHARE = 8.0, 0.1
"""So far a prompt's tokens lie off the line, and by so much of them: a hundred short ones of 3 to 8 characters say next to
nothing of a long one's rate."""


@dataclass(slots=True, eq=False)
class _Line:
    """Weighted sums over (characters, tokens), and the line through them."""

    weight: float = 0.0
    chars: float = 0.0
    tokens: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    overhead: float = DEFAULT_OVERHEAD
    rate: float = DEFAULT_RATE

    def add(self, chars: int, tokens: int) -> None:
        weight = 1.0 / (NOISE_TOKENS + NOISE_SHARE * DEFAULT_RATE * chars) ** 2
        keep = 1.0 - 1.0 / REMEMBERED
        # from the defaults: what is left over is what there is to learn
        left = tokens - DEFAULT_OVERHEAD - DEFAULT_RATE * chars
        self.weight = self.weight * keep + weight
        self.chars = self.chars * keep + weight * chars
        self.tokens = self.tokens * keep + weight * left
        self.squares = self.squares * keep + weight * chars * chars
        self.products = self.products * keep + weight * chars * left
        self._solve()

    def _solve(self) -> None:
        """Least squares, held to the defaults by their doubt: the determinant is never 0."""
        across = self.weight + OVERHEAD_DOUBT**-2
        along = self.squares + RATE_DOUBT**-2
        determinant = across * along - self.chars * self.chars
        overhead = (self.tokens * along - self.products * self.chars) / determinant
        rate = (self.products * across - self.tokens * self.chars) / determinant
        self.overhead = max(0.0, DEFAULT_OVERHEAD + overhead)
        self.rate = min(HIGHEST_RATE, max(LOWEST_RATE, DEFAULT_RATE + rate))


class Estimates:
    """A line for each of the last `most` models that answered."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._lines: OrderedDict[str, _Line] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lines)

    def tokens(self, model: str | None, chars: int) -> int:
        """About so many tokens; at least one."""
        line = self._lines.get(model or "")
        if line is None:
            return max(1, round(DEFAULT_OVERHEAD + DEFAULT_RATE * chars))
        return max(1, round(line.overhead + line.rate * chars))

    def learn(self, model: str | None, chars: int, tokens: int) -> None:
        """An answer's usage told a prompt's tokens. What no text can have is passed over: images weigh no character."""
        if chars <= 0 or tokens <= 0 or tokens > HIGHEST_RATE * chars + MOST_OVERHEAD:
            return
        name = model or ""
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
            if len(self._lines) > self._most:
                self._lines.popitem(last=False)
        self._lines.move_to_end(name)
        line.add(chars, tokens)
