"""A machine for classic BPF, written from the kernel's Documentation/networking/filter.rst; it knows nothing of toolkit."""

from collections.abc import Callable, Iterable

HOST, OUTGOING = 0, 4
ETHERNET, LOOPBACK = 1, 772
ANCILLARY = 0xFFFFF000
SIZES = {0x00: 4, 0x08: 2, 0x10: 1}


class OutOfFrameError(Exception):
    """A load beyond the frame: the kernel rejects the frame."""


class Machine:
    """One frame and what the kernel knows beside it."""

    def __init__(self, frame: bytes, *, kind: int, hardware: int, protocol: int) -> None:
        self._frame = frame
        self._ancillary = {0: protocol, 4: kind, 28: hardware}
        self._accumulator = self._index = self._place = 0
        self._memory = [0] * 16
        self._do: dict[int, Callable[[int, int, int, int], None]] = {
            0: self._load_to_a,
            1: self._load_to_x,
            2: self._store,
            4: self._calculate,
            5: self._jump,
            7: self._copy,
        }

    def run(self, code: list[tuple[int, int, int, int]]) -> int:
        try:
            while True:
                operation, if_true, if_false, k = code[self._place]
                self._place += 1
                if operation == 0x06:
                    return k
                self._do[operation & 7](operation, if_true, if_false, k)
        except OutOfFrameError:
            return 0

    def _load(self, at: int, size: int) -> int:
        if at >= ANCILLARY:
            return self._ancillary[at - ANCILLARY]
        if at + size > len(self._frame):
            raise OutOfFrameError
        return int.from_bytes(self._frame[at : at + size])

    def _load_to_a(self, operation: int, _true: int, _false: int, k: int) -> None:
        size = SIZES[operation & 0x18]
        values = {
            0x20: lambda: self._load(k, size),
            0x40: lambda: self._load(self._index + k, size),
            0x60: lambda: self._memory[k],
            0x80: lambda: len(self._frame),
        }
        self._accumulator = values[operation & 0xE0]()

    def _load_to_x(self, operation: int, _true: int, _false: int, k: int) -> None:
        values = {
            0xA0: lambda: 4 * (self._load(k, 1) & 0xF),
            0x00: lambda: k,
        }
        self._index = values[operation & 0xE0]()

    def _store(self, operation: int, _true: int, _false: int, k: int) -> None:
        assert operation == 0x02
        self._memory[k] = self._accumulator

    def _calculate(self, operation: int, _true: int, _false: int, k: int) -> None:
        a, operand = self._accumulator, self._index if operation & 0x08 else k
        values = {0x00: a + operand, 0x10: a - operand, 0x50: a & operand, 0x70: a >> operand}
        self._accumulator = values[operation & 0xF0] % 2**32

    def _jump(self, operation: int, if_true: int, if_false: int, k: int) -> None:
        if operation == 0x05:
            self._place += k
            return
        a, operand = self._accumulator, self._index if operation & 0x08 else k
        holds = {0x10: a == operand, 0x20: a > operand, 0x40: bool(a & operand)}
        self._place += if_true if holds[operation & 0xF0] else if_false

    def _copy(self, operation: int, _true: int, _false: int, _k: int) -> None:
        assert operation == 0x07
        self._index = self._accumulator


def verdict(
    program: Iterable[tuple[int, int, int, int]],
    frame: bytes,
    *,
    kind: int = HOST,
    hardware: int = ETHERNET,
    protocol: int = 0,
) -> int:
    """Bytes of the frame that the program lets through."""
    return Machine(frame, kind=kind, hardware=hardware, protocol=protocol).run(list(program))
