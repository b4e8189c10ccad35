"""The concrete replay: runs one input at emulator speed and says which branches it took.

It knows nothing of symbols, so it is an independent witness: an answer of the solver counts as
reached only when this replay saw the branch. It is also so much faster than the symbolic replay
that every answer can be checked.
"""

from __future__ import annotations

from dataclasses import dataclass

from unicorn import UC_ARCH_X86, UC_HOOK_BLOCK, UC_MODE_64, Uc, UcError
from unicorn.x86_const import UC_X86_REG_RDI, UC_X86_REG_RIP, UC_X86_REG_RSI, UC_X86_REG_RSP

from decode import Decoder
from image import Image
from layout import (
    INPUT_ADDRESS,
    RETURN_ADDRESS,
    STACK_BYTES,
    STACK_TOP,
    WHOLE_STEPS,
    End,
    Ticker,
    edge,
)

_PAGE = 4096
_TICK_BLOCKS = 1024


@dataclass(frozen=True)
class ConcreteRun:
    """What one input did."""

    taken: frozenset[int]
    """Every direction of a conditional branch that was taken."""
    conditionals: int
    """How many conditional branches were executed, repeats included."""
    instructions: int
    end: End


class ConcreteReplay:
    """Replays inputs of one image. Every run starts from fresh memory."""

    def __init__(self, image: Image, decoder: Decoder, max_instructions: int) -> None:
        self._image = image
        self._decoder = decoder
        self._max_instructions = max_instructions
        functions = (image.functions.get(name) for name in WHOLE_STEPS)
        self._silent = [function for function in functions if function is not None]

    def run(self, content: bytes, ticker: Ticker) -> ConcreteRun:
        """Runs `entry` over `content`. Raises `Cancelled` when the ticker does."""
        machine = self._machine(content)
        watch = _Watch(self, machine, ticker)
        machine.hook_add(UC_HOOK_BLOCK, watch.block)
        end = End.RETURNED
        try:
            machine.emu_start(self._image.entry, RETURN_ADDRESS)
        except UcError:
            end = End.FAULT
        if watch.interrupt is not None:
            raise watch.interrupt
        stopped_at = machine.reg_read(UC_X86_REG_RIP)
        if watch.over_limit:
            end = End.LIMIT
        elif end is End.RETURNED and stopped_at != RETURN_ADDRESS:
            end = End.HALTED
        if end is End.RETURNED:
            watch.arrive(stopped_at)
        return ConcreteRun(frozenset(watch.taken), watch.conditionals, watch.instructions, end)

    def _machine(self, content: bytes) -> Uc:
        machine = Uc(UC_ARCH_X86, UC_MODE_64)
        pages: set[int] = set()
        for segment in self._image.segments:
            first = segment.address // _PAGE
            last = (segment.address + max(segment.size, 1) - 1) // _PAGE
            pages.update(range(first, last + 1))
        for start, count in _runs(sorted(pages)):
            machine.mem_map(start * _PAGE, count * _PAGE)
        for segment in self._image.segments:
            machine.mem_write(segment.address, segment.data)
        machine.mem_map(INPUT_ADDRESS, (len(content) // _PAGE + 1) * _PAGE)
        machine.mem_write(INPUT_ADDRESS, content)
        machine.mem_map(STACK_TOP - STACK_BYTES, STACK_BYTES)
        machine.mem_map(RETURN_ADDRESS, _PAGE)
        machine.mem_write(STACK_TOP - 8, RETURN_ADDRESS.to_bytes(8, "little"))
        machine.reg_write(UC_X86_REG_RSP, STACK_TOP - 8)
        machine.reg_write(UC_X86_REG_RDI, INPUT_ADDRESS)
        machine.reg_write(UC_X86_REG_RSI, len(content))
        return machine

    def is_silent(self, address: int) -> bool:
        """Whether branches at `address` are not recorded."""
        return any(function.start <= address < function.end for function in self._silent)


class _Watch:
    """Turns the emulator's blocks into branch directions."""

    def __init__(self, replay: ConcreteReplay, machine: Uc, ticker: Ticker) -> None:
        self._replay = replay
        self._machine = machine
        self._ticker = ticker
        self._source: int | None = None
        self._blocks = 0
        self.taken: set[int] = set()
        self.conditionals = 0
        self.instructions = 0
        self.over_limit = False
        self.interrupt: BaseException | None = None

    def arrive(self, address: int) -> None:
        """Records the branch that led to `address`, if the last block ended in one."""
        if self._source is not None:
            self.taken.add(edge(self._source, address))
            self.conditionals += 1
            self._source = None

    def block(self, _machine: Uc, address: int, size: int, _context: object) -> None:
        """Called before each block. An exception must not cross the emulator's own frames."""
        try:
            self.arrive(address)
            count, last = self._replay._decoder.block(address, size)
            if last is not None and not self._replay.is_silent(last):
                self._source = last
            self.instructions += count
            self._blocks += 1
            if self.instructions > self._replay._max_instructions:
                self.over_limit = True
                self._machine.emu_stop()
            elif self._blocks % _TICK_BLOCKS == 0:
                self._ticker.tick("check", self.instructions)
        except BaseException as error:  # noqa: BLE001
            self.interrupt = error
            self._machine.emu_stop()


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Joins consecutive numbers into `(first, count)`."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][0] + runs[-1][1] == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs
