"""Which layers each stage of a pipeline holds, as vLLM 0.32 cuts them."""


def stages(layers: int, pp: int) -> tuple[range, ...]:
    """The layers of each of `pp` stages, in order.

    Equal parts; what is left over goes one each to the stages before the last, backwards: the first and the last have the
    embeddings already. 30 layers on 4: 7, 8, 8, 7.
    """
    sizes = [layers // pp] * pp
    for place in range(layers % pp):
        # of two stages the first: there is no middle
        sizes[-2 - place] += 1
    ends = [sum(sizes[: rank + 1]) for rank in range(pp)]
    return tuple(range(end - size, end) for size, end in zip(sizes, ends, strict=True))
