"""The symbolic replay: one input through the engine, and the branches it could have taken.

R1. One replay serves every question about an input: `run` returns the whole path, and solving any
    number of its branches needs no second replay.
R2. The replay follows the input. Where a symbolic value becomes an address or a length it is taken
    as it is in this input, so an answer of the solver is a proposal until the concrete replay
    has seen the branch.
R3. It must take the branches the concrete replay took; a difference is an error, never a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triton import ARCH, EXCEPTION, MODE, Instruction, MemoryAccess, TritonContext

from concrete import ConcreteRun
from image import Image
from layout import (
    INPUT_ADDRESS,
    MIN_DECODE,
    RETURN_ADDRESS,
    STACK_TOP,
    WHOLE_STEPS,
    End,
    Ticker,
    edge,
    is_conditional,
)

_TICK_INSTRUCTIONS = 256
_MODES = (
    MODE.ONLY_ON_SYMBOLIZED,
    MODE.AST_OPTIMIZATIONS,
    MODE.CONSTANT_FOLDING,
    MODE.ALIGNED_MEMORY,
    # Without it every concrete branch is a constraint too: thirty times as many.
    MODE.PC_TRACKING_SYMBOLIC,
)


class ReplayError(Exception):
    """The engine could not follow the input. Says nothing about any target."""


@dataclass(frozen=True)
class Step:
    """One symbolic decision on the path, in order.

    `opposite` is None for a decision without another direction to ask for (an indirect jump).
    """

    taken: int
    opposite: int | None
    holds: Any
    """What the input satisfied here."""
    flips: Any
    """What an input must satisfy to go the other way; None without an opposite."""


@dataclass(frozen=True)
class SymbolicRun:
    """A path and the engine state its constraints live in."""

    context: TritonContext
    steps: tuple[Step, ...]
    instructions: int


class SymbolicReplay:
    """Replays inputs of one image. Every run has an engine state of its own."""

    def __init__(self, image: Image, max_instructions: int) -> None:
        self._image = image
        self._max_instructions = max_instructions
        self._hooks = {
            image.functions[name].start: name for name in WHOLE_STEPS if name in image.functions
        }
        self._code: dict[int, bytes] = {}

    def run(self, content: bytes, seen: ConcreteRun, ticker: Ticker) -> SymbolicRun:
        """Follows `content`, which `seen` describes. Raises `ReplayError` or `Cancelled`."""
        context = self._context(content)
        registers = context.registers
        # A faulting run has no memory to fault on here: it is over after as many branches.
        stops_early = seen.end in (End.FAULT, End.LIMIT)
        taken: set[int] = set()
        conditionals = instructions = 0
        pc = self._image.entry
        while pc != RETURN_ADDRESS:
            if stops_early and conditionals >= seen.conditionals:
                break
            if pc in self._hooks:
                pc = _whole_step(context, self._hooks[pc])
                continue
            code = self._code.get(pc)
            if code is None:
                code = self._code[pc] = self._image.code(pc, MIN_DECODE)
            if code[:1] == b"\xf4":
                break
            instruction = Instruction(pc, code)
            if context.processing(instruction) != EXCEPTION.NO_FAULT:
                raise ReplayError(f"unsupported instruction at {pc:#x}: {instruction}")
            instructions += 1
            following = context.getConcreteRegisterValue(registers.rip)
            if instruction.isBranch() and is_conditional(code[: instruction.getSize()]):
                conditionals += 1
                taken.add(edge(pc, following))
            pc = following
            if instructions % _TICK_INSTRUCTIONS == 0:
                ticker.tick("replay", instructions, seen.instructions)
            if instructions > self._max_instructions:
                raise ReplayError(f"still running after {instructions} instructions")
        if taken != seen.taken or conditionals != seen.conditionals:
            raise ReplayError(
                f"the replays disagree: {len(taken ^ seen.taken)} directions differ, "
                f"{conditionals} branches against {seen.conditionals}"
            )
        return SymbolicRun(context, _steps(context), instructions)

    def _context(self, content: bytes) -> TritonContext:
        context = TritonContext(ARCH.X86_64)
        for mode in _MODES:
            context.setMode(mode, True)
        for segment in self._image.segments:
            context.setConcreteMemoryAreaValue(segment.address, segment.data)
        context.setConcreteMemoryAreaValue(INPUT_ADDRESS, content)
        # Variables are numbered from 0 in the order of the bytes.
        for offset in range(len(content)):
            context.symbolizeMemory(MemoryAccess(INPUT_ADDRESS + offset, 1))
        registers = context.registers
        context.setConcreteRegisterValue(registers.rsp, STACK_TOP - 8)
        context.setConcreteMemoryValue(MemoryAccess(STACK_TOP - 8, 8), RETURN_ADDRESS)
        context.setConcreteRegisterValue(registers.rdi, INPUT_ADDRESS)
        context.setConcreteRegisterValue(registers.rsi, len(content))
        return context


def _steps(context: TritonContext) -> tuple[Step, ...]:
    steps: list[Step] = []
    for constraint in context.getPathConstraints():
        taken = flips = opposite = None
        for branch in constraint.getBranchConstraints():
            direction = edge(branch["srcAddr"], branch["dstAddr"])
            if branch["isTaken"]:
                taken = direction
            else:
                opposite, flips = direction, branch["constraint"]
        if taken is None:
            raise ReplayError("a path constraint without a taken branch")
        steps.append(Step(taken, opposite, constraint.getTakenPredicate(), flips))
    return tuple(steps)


def _whole_step(context: TritonContext, name: str) -> int:
    """Does `name` at once and returns where its caller goes on.

    Addresses and the length are those of this input (R2); the bytes keep their expressions.
    """
    registers = context.registers
    to = context.getConcreteRegisterValue(registers.rdi)
    source = context.getConcreteRegisterValue(registers.rsi)
    length = context.getConcreteRegisterValue(registers.rdx)
    expressions: list[tuple[int, Any]] = []
    if name == "memset":
        content = bytes([source & 0xFF]) * length
        low_byte = registers.sil
        if context.isRegisterSymbolized(low_byte):
            value = context.getRegisterAst(low_byte)
            expressions = [(offset, value) for offset in range(length)]
    else:
        content = bytes(context.getConcreteMemoryAreaValue(source, length))
        expressions = [
            (offset, context.getMemoryAst(MemoryAccess(source + offset, 1)))
            for offset in range(length)
            if context.isMemorySymbolized(source + offset)
        ]
    for offset in range(length):
        context.concretizeMemory(to + offset)
    context.setConcreteMemoryAreaValue(to, content)
    for offset, node in expressions:
        context.assignSymbolicExpressionToMemory(
            context.newSymbolicExpression(node, name), MemoryAccess(to + offset, 1)
        )
    stack = context.getConcreteRegisterValue(registers.rsp)
    back = int(context.getConcreteMemoryValue(MemoryAccess(stack, 8)))
    context.concretizeRegister(registers.rax)
    context.setConcreteRegisterValue(registers.rax, to)
    context.setConcreteRegisterValue(registers.rsp, stack + 8)
    context.setConcreteRegisterValue(registers.rip, back)
    return back
