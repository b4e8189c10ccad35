"""Finds instruction boundaries, once per block of the image."""

from __future__ import annotations

from triton import ARCH, Instruction, TritonContext

from image import Image
from layout import MIN_DECODE, is_conditional


class Decoder:
    """Splits code into instructions. Answers are kept: the image never changes."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._context = TritonContext(ARCH.X86_64)
        self._blocks: dict[tuple[int, int], tuple[int, int | None]] = {}

    def block(self, address: int, size: int) -> tuple[int, int | None]:
        """The number of instructions in a block, and its last one if that is conditional."""
        known = self._blocks.get((address, size))
        if known is None:
            known = self._blocks[(address, size)] = self._split(address, size)
        return known

    def _split(self, address: int, size: int) -> tuple[int, int | None]:
        count = 0
        at = address
        last = b""
        last_at = address
        while at < address + size:
            instruction = Instruction(at, self._image.code(at, MIN_DECODE))
            self._context.disassembly(instruction)
            length = instruction.getSize()
            if length == 0:
                break
            last, last_at = self._image.code(at, length), at
            at += length
            count += 1
        return count, last_at if is_conditional(last) else None
