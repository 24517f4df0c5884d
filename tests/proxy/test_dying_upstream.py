"""An upstream that is started again by its supervisor dies: who asked it gets an answer from its next life, and nobody asks for ever."""

from support.proxied import proxied, whole
from support.scripted_upstream import Line, ScriptedUpstream


async def cut(line: Line) -> None:
    """What a process does that is ended between two of its connections: this one was taken, and is closed."""
    line.close()


async def test_a_call_that_a_dying_upstream_takes_once_more_is_the_next_ones() -> None:
    scripts = iter([cut, cut, whole("back")])

    async def play(line: Line) -> None:
        await next(scripts)(line)

    async with ScriptedUpstream(play) as engine, proxied(engine) as proxy:
        proxy.proxy.routing.undrain("u0", 5.0)
        answer = await proxy.ask()
        assert (answer.status, answer.text, len(engine.lines)) == (200, "back", 3)


async def test_a_call_that_kills_whatever_takes_it_ends() -> None:
    async with ScriptedUpstream(cut) as engine, proxied(engine) as proxy:
        proxy.proxy.routing.undrain("u0", 5.0)
        answer = await proxy.ask()
        assert answer.status == 502
        # once more after the first, with each tick of a tenth of the second in which it may be one death
        assert 2 <= len(engine.lines) <= 13
