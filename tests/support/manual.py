"""README.md, the manual in docs/ and their neighbours as data: headings, links, blocks, command lines. Reads text; runs and contacts nothing.

A block that a reader can paste is ```sh; one that shows a session is ```console, whose lines after `$ ` are commands and whose
others are what they printed. What a test must know to run a block stands in a comment before it, which a reader never sees:

    <!-- block: server=gptq-int4; until=Ready -->

    not-run=REASON   needs what a test has not; its toolkit commands are still parsed
    server=NAME      a simulated server of that personality listens on port 8001 meanwhile
    until=WORD       runs on: once it printed WORD it is interrupted, as by Ctrl-C
    beside=previous  the block before it, which has an `until`, runs meanwhile
    exit=N           ends with this code; 0 otherwise; `any` where that is the machine's to say
    columns=no       what a test runs of it is too little for the table that it shows
    ids=VERB         run ids in it stand for the newest run of this verb
"""

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"

_FENCE = re.compile(r"^```(\w*|\{[\w-]+\}.*)$")
_NOTE = re.compile(r"^<!-- block: (.*) -->$")
_HEADING = re.compile(r"^(#{1,6}) (.+)$")
_LINK = re.compile(r"!?\[(?:[^\]\n]|\n(?!\n))*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_BETWEEN_COMMANDS = frozenset(("&&", "||", "|", ";", "&", "(", ")", ">", ">>", "<", "2>", "|&"))


def in_order(page: str = "docs/index.md") -> list[str]:
    """A page of the manual and all below it, as its tables of contents name them."""
    folder, text = Path(page).parent, (ROOT / page).read_text()
    below = [
        (folder / f"{name}.md").as_posix()
        for names in re.findall(
            r"^```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        )
        for name in names.split()
    ]
    return [page, *(each for name in below for each in in_order(name))]


MANUAL = tuple(in_order())
"""As a reader who turns the pages meets them."""
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *MANUAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What stands between two fences."""

    page: str
    info: str
    text: str
    line: int
    """Of the opening fence, from 1."""
    heading: str
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How a test's report calls it: moved lines change no name but those of equal beginnings."""
        first = self.commands[0] if self.commands else self.text.split("\n", 1)[0]
        return f"{self.page}, {self.heading}: {first}"

    @property
    def place(self) -> str:
        """Where it stands: no other block stands there."""
        return f"{self.page}:{self.line}"

    @property
    def is_shell(self) -> bool:
        return self.info in {"sh", "console"}

    @property
    def commands(self) -> list[str]:
        """The lines that a shell is given, continued lines joined."""
        joined = self.text.replace("\\\n", " ")
        lines = joined.splitlines()
        if self.info == "console":
            return [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip()] if self.info == "sh" else []

    @property
    def script(self) -> str:
        """All of them, to be run at once."""
        return "\n".join(self.commands) + "\n"

    @property
    def column_titles(self) -> list[str]:
        """The words over each table that it shows: the line above one of `─`."""
        lines = self.text.splitlines()
        return [above for above, rule in itertools.pairwise(lines) if set(rule) == {"─"}]


def blocks(page: str) -> list[Block]:
    """All blocks of a page, in order; what a directive of Sphinx holds is none."""
    found: list[Block] = []
    heading, notes, inside = "", {}, None
    start, lines = 0, list[str]()
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is not None:
            if line == "```":
                if not inside.startswith("{"):
                    text = "\n".join(lines) + "\n"
                    found.append(
                        Block(
                            page=page,
                            info=inside,
                            text=text,
                            line=start,
                            heading=heading,
                            notes=notes,
                        )
                    )
                inside, notes = None, {}
            else:
                lines.append(line)
        elif fence:
            inside, start, lines = fence[1], number, []
        elif line.strip():
            title, note = _HEADING.match(line), _NOTE.match(line)
            heading = title[2] if title else heading
            notes = _notes(note[1]) if note else {}
    assert inside is None, f"{page} ends in a block"
    return found


def _notes(text: str) -> dict[str, str]:
    pairs = (part.split("=", 1) for part in text.split("; "))
    return {key.strip(): value.strip() for key, value in pairs}


def prose(path: Path) -> str:
    """The page without its blocks and comments."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """What `#...` may name on this page, by GitHub's rule: lower case, punctuation dropped, blanks to hyphens, `-1` for the next."""
    seen: Counter[str] = Counter()
    found = set()
    for line in prose(path).splitlines():
        title = _HEADING.match(line)
        if title:
            slug = re.sub(r"[^\w\- ]", "", title[2].lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


def links(path: Path) -> list[str]:
    """Targets of links and pictures."""
    return _LINK.findall(prose(path))


def section(page: str, heading: str) -> str:
    """The text under a heading of a page, up to the next of its level or above."""
    marks = heading.split(" ", 1)[0]
    pattern = rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(marks)}}} |\Z)"
    found = re.search(pattern, (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no heading `{heading}`"
    return found[1]


def inline_commands(path: Path) -> list[str]:
    """What stands in prose and tables between backticks and begins as a command of ours does."""
    words = (word.replace("\\|", "|") for word in _CODE.findall(prose(path)))
    return [word for word in words if word.startswith("toolkit ")]


def calls(command: str) -> Iterator[list[str]]:
    """The arguments of each `toolkit` in a line of shell, also behind `&&`, `|`, `sudo` and `--`."""
    reader = shlex.shlex(command, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    call: list[str] | None = None
    for word in [*reader, ";"]:
        is_ours = Path(word).name == "toolkit" and not word.endswith("/")
        if word in _BETWEEN_COMMANDS or (is_ours and (call is None or call[-1:] == ["--"])):
            if call:
                yield call
            call = [] if is_ours else None
        elif call is not None:
            call.append(word)
