"""Where a replay puts things in memory, and what both replays must agree on."""

from __future__ import annotations

from enum import StrEnum

INPUT_ADDRESS = 0x4000_0000
"""The input's first byte; its page is readable to the end even when the input is empty."""

STACK_TOP = 0x5000_0000
"""The stack grows down from here."""

STACK_BYTES = 1 << 20
RETURN_ADDRESS = 0x6000_0000
"""Where `entry` returns to: a replay that gets here is over."""

WHOLE_STEPS = ("memset", "memcpy", "memmove")
"""Functions that the symbolic replay does in one step. Branches inside them are not recorded."""

MIN_DECODE = 16
"""Bytes that hold any one instruction."""


class End(StrEnum):
    """Why a replay ended."""

    RETURNED = "returned"
    """`entry` came back."""
    HALTED = "halted"
    """The program gave up: an assertion, `abort` or `exit`."""
    FAULT = "fault"
    """The program touched memory it does not have, or ran into bytes that are no code."""
    LIMIT = "limit"
    """The limit on instructions was reached; what was seen until then counts."""


class Cancelled(Exception):
    """The coordinator went away or asked to stop; the request has no result."""


class Ticker:
    """What a long computation calls now and then. `tick` may raise `Cancelled`."""

    def tick(self, phase: str, done: int, total: int | None = None) -> None:
        """Says how far `phase` is. Cheap enough to call some thousand times a second."""


def edge(source: int, destination: int) -> int:
    """The target integer of one branch direction: positive, below 2**63, fixed for a build."""
    return source << 32 | destination


def is_conditional(code: bytes) -> bool:
    """Whether an instruction is a conditional jump (short, near, or on the count register)."""
    if code[:1] in (b"\xf2", b"\xf3", b"\x2e", b"\x3e"):
        code = code[1:]
    if len(code) >= 2 and code[0] == 0x0F:
        return 0x80 <= code[1] <= 0x8F
    return len(code) >= 2 and (0x70 <= code[0] <= 0x7F or 0xE0 <= code[0] <= 0xE3)
