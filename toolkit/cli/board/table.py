"""How `toolkit board` shows standings to a person: a table, the rules it follows, and what explains it."""

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from toolkit.board.ranking import FEW_FOR_P50, FEW_FOR_P95, FORMULAS, TIES
from toolkit.board.standings import UNJUDGED, Board, Standing, reasons, why_not_valid
from toolkit.records import Event
from toolkit.report.tables import Column, notes, screen, table_of
from toolkit.units import DASH, clock, latency, per_second, percent, spoken, time_of_day

WIDEST_NAME = 40
WIDEST_VERDICTS = 44
LAST_EVENTS = 6
LATE_S, STALE_S = 5, 15
"""Data that is older than that is amber, then red."""
UNSURE = "?"


def _change(one: Standing) -> Text:
    """Against a minute ago."""
    if not one.rank_change:
        return Text("")
    mark, style = ("\u25b2", "green") if one.rank_change > 0 else ("\u25bc", "red")
    return Text(f"{mark}{abs(one.rank_change)}", style=style)


def _latency(value: float | None, samples: int, few: int) -> Text:
    """Marked where too few answers make it unsure."""
    if value is not None and samples < few:
        return Text(latency(value) + UNSURE, style="dim")
    return Text(latency(value))


def _errors(one: Standing) -> Text:
    style = "" if not one.errors else "red" if one.trouble else "yellow"
    return Text(percent(one.error_rate, 1), style=style)


def _tokens(one: Standing) -> str:
    if one.ok and not one.output_tokens_per_s:
        return DASH  # embeddings have none
    return ("~" if one.output_tokens_estimated else "") + per_second(one.output_tokens_per_s)


def _badges(one: Standing) -> Text:
    codes = [each.code for each in one.verdicts]
    accusing = [code for code in codes if code not in ("clean", "same_engine")]
    words = ", ".join(code.replace("_", " ") for code in (accusing or codes))
    if not one.trouble and not accusing:
        return Text(words or DASH, style="green" if codes else "")
    trouble = Text(one.trouble or "", style="bold red")
    others = words if accusing else ""
    between = ", " if trouble and others else ""
    return trouble.append(f"{between}{others}", style="not bold yellow")


COLUMNS = (
    Column(
        "#",
        lambda one: DASH if one.rank is None else f"{'=' if one.tied else ''}{one.rank}",
        right=True,
    ),
    Column("", _change, spare=9),
    Column(
        "host",
        lambda one: Text(one.name, style="red" if one.trouble else ""),
        widest=WIDEST_NAME,
        narrowest=16,
    ),
    Column("req/s", lambda one: per_second(one.rps), right=True),
    Column("tok/s", _tokens, right=True, spare=2),
    Column(
        "TTFT p50",
        lambda one: _latency(one.ttft_p50_ms, one.streamed, FEW_FOR_P50),
        right=True,
        spare=1,
    ),
    Column(
        "TTFT p95",
        lambda one: _latency(one.ttft_p95_ms, one.streamed, FEW_FOR_P95),
        right=True,
        spare=4,
    ),
    Column("E2E p50", lambda one: _latency(one.p50_ms, one.ok, FEW_FOR_P50), right=True, spare=3),
    Column("E2E p95", lambda one: _latency(one.p95_ms, one.ok, FEW_FOR_P95), right=True),
    Column("errors", _errors, right=True),
    Column(
        "hits",
        lambda one: ("~" if one.hit_share_inferred else "") + percent(one.hit_share),
        right=True,
        spare=6,
    ),
    Column("ok", lambda one: f"{one.ok:,}", right=True, spare=8),
    Column(
        "score", lambda one: DASH if one.score is None else f"{one.score:.3f}", right=True, spare=7
    ),
    Column("verdict", _badges, widest=WIDEST_VERDICTS, narrowest=16),
)


def print_board(board: Board, events: Sequence[Event] = (), now: float | None = None) -> None:
    """Print a board; `now` is the reader's clock, for the age of a live one."""
    console = screen()
    for part in picture(board, console, events=events, now=now).renderables:
        console.print(part)  # one by one: in a pipe a sentence stays one line


def board_table(board: Board, console: Console) -> RenderableType:
    """One row a host, those left out last."""
    return table_of(COLUMNS, (*board.standings, *board.left_out), console)


def picture(
    board: Board, console: Console, *, events: Sequence[Event] = (), now: float | None = None
) -> Group:
    """The heading, the table, and what explains it: sentences, the last events of the window, the rules."""
    shown = (*board.standings, *board.left_out)
    parts: list[RenderableType] = [heading(board, now), Text(), board_table(board, console)]
    if reason := why_not_valid(events):
        parts.insert(1, Text(f"Not valid for ranking: {reason}", style="bold red"))

    # hosts of one sentence share a line
    below = list(notes((one.name, *each) for one in shown for each in _sentences(one)))
    if board.limited_s:
        length = spoken(board.limited_s)
        done = "not counted" if board.skip_limited else "counted; `--skip-limited` leaves them out"
        text = f"The load generator was the limit in {length} of the window, for all hosts: {done}"
        below.append(Text(text, style="yellow"))
    if below:
        parts += [Text(), *below]

    if board.at_s is not None:
        from_s, to_s = board.at_s - board.window_s + 1, board.at_s + 1
        inside = [each for each in events if from_s <= each.at < to_s][-LAST_EVENTS:]
        if inside:
            parts.append(Text())
        for each in inside:
            who = f"{each.name}: " if each.name else ""
            what = f"  {who}{each.kind} {each.text}".rstrip()
            parts.append(Text.assemble((time_of_day(each.at), "cyan"), what))

    # what marks mean, as far as they stand there
    marks = ""
    if any(0 < samples < FEW_FOR_P95 for one in shown for samples in (one.ok, one.streamed)):
        marks += f" {UNSURE}: not enough answers to judge the percentile."
    if any(one.hit_share_inferred or one.output_tokens_estimated for one in shown):
        marks += " ~: inferred from times, or counted from chunks."
    rules = Text(f"{FORMULAS[board.rank_by]}. {TIES}{marks}", style="dim")
    return Group(*parts, Text(), rules)


def _sentences(one: Standing) -> Iterator[tuple[str, str]]:
    """What explains a host's figures, each with its title."""
    if one.left_out:
        codes = [each.code for each in reasons(one.verdicts) if each.code not in UNJUDGED]
        words = " and ".join(code.replace("_", " ") for code in codes)
        yield "left out", f"for {words}" if codes else "it was not judged"
    for verdict in one.verdicts:
        if verdict.code != "clean":
            yield verdict.title, verdict.because
    for interval in one.taints:
        what = f"{time_of_day(interval.from_s)[:5]} {'restart' if interval.restarted else 'outage'}"
        left_s = interval.clean_in_s
        end = "still down" if left_s is None else f"out of it in {spoken(left_s)}"
        yield "downtime", f"{spoken(interval.in_window_s)} of the {what} in the window, {end}"
    if not one.ok:
        yield one.trouble or "no answer", "nothing was answered in the window"
    elif one.trouble == "down":
        yield "down", "it answers nothing now"
    elif one.trouble == "failing":
        yield "failing", f"{one.errors:,} of {one.ok + one.errors:,} requests failed in the window"


def heading(board: Board, now: float | None = None) -> Text:
    """What is shown, of when, and how old it is."""
    run = f"run {board.run}"
    if board.at_s is None:
        return Text(f"{run}: no data yet")
    window = f"last {spoken(board.window_s)}"
    if board.elapsed_s < board.window_s:
        window = f"first {spoken(board.elapsed_s)} (of a window of {spoken(board.window_s)})"
    text = Text.assemble((run, "bold"), f", {window} up to {clock(board.at_s + 1)}")
    if board.ended and board.at_s == board.data_end_s and board.frozen_at_s is None:
        text.append(", ended")
    elif now is not None:
        age_s = max(0.0, now - board.at_s - 1)
        style = "red" if age_s > STALE_S else "yellow" if age_s > LATE_S else "green"
        text.append(f", {spoken(round(age_s))} ago", style=style)
    text.append(f", ranked by {board.rank_by}{', honest' if board.honest else ''}")
    if board.frozen_at_s is not None:
        text.append(f"  frozen at {clock(board.frozen_at_s)}", style="bold cyan")
    return text
