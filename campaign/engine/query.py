"""Asks the solver for inputs that leave a path at a chosen branch.

Q1. A query holds only the constraints that share bytes with the branch, directly or through other
    constraints. The rest are satisfied by the input as it is, because the answer keeps its bytes.
Q2. One target may be met many times on a path. The earliest occasions are tried first, each with
    what is left of the target's time, until one has an answer.
Q3. "No answer" is said of this path and this target only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from triton import AST_NODE, SOLVER, SOLVER_STATE

from layout import Ticker
from symbolic import Step, SymbolicRun

_SOLVER_MEMORY_MIB = 1024
_MAX_OCCASIONS = 6


class Answer(StrEnum):
    """What the solver said about one target on one path."""

    SAT = "sat"
    UNSAT = "unsat"
    TIMEOUT = "timeout"
    UNREACHED = "unreached"


@dataclass
class Proposal:
    """The answer for one target, with the inputs the solver proposes. Nothing is checked yet."""

    answer: Answer
    inputs: list[bytes] = field(default_factory=list)
    queries: int = 0
    solver_ms: int = 0


class Path:
    """The decisions of one run, ready for any number of queries."""

    def __init__(self, run: SymbolicRun, content: bytes) -> None:
        self._run = run
        self._content = content
        self._nodes = run.context.getAstContext()
        # On the seeds of libyaml and giflib it takes a tenth of the other solver's time.
        run.context.setSolver(SOLVER.BITWUZLA)
        run.context.setSolverMemoryLimit(_SOLVER_MEMORY_MIB)
        self._bytes = [self._bytes_in(step.holds) for step in run.steps]
        self._occasions: dict[int, list[int]] = {}
        for index, step in enumerate(run.steps):
            if step.opposite is not None:
                self._occasions.setdefault(step.opposite, []).append(index)

    def propose(self, target: int, limit_ms: int, models: int, ticker: Ticker) -> Proposal:
        """Asks for up to `models` inputs that take `target`, within about `limit_ms` in all."""
        occasions = self._occasions.get(target, [])
        proposal = Proposal(Answer.UNSAT if occasions else Answer.UNREACHED)
        for index in _spread(occasions, _MAX_OCCASIONS):
            left_ms = limit_ms - proposal.solver_ms
            if left_ms <= 0:
                proposal.answer = Answer.TIMEOUT
                break
            ticker.tick("query", proposal.queries)
            state, answers, spent_ms = self._ask(index, left_ms, models)
            proposal.queries += 1
            proposal.solver_ms += max(1, spent_ms)
            if answers:
                proposal.answer = Answer.SAT
                proposal.inputs = [self._apply(answer) for answer in answers]
                break
            if state != SOLVER_STATE.UNSAT:
                proposal.answer = Answer.TIMEOUT
        return proposal

    def _ask(self, index: int, limit_ms: int, models: int) -> tuple[Any, list[dict[int, Any]], int]:
        step = self._run.steps[index]
        related = [self._run.steps[i].holds for i in self._related(index)]
        question = self._nodes.land([*related, step.flips]) if related else step.flips
        context = self._run.context
        context.setSolverTimeout(limit_ms)
        if models == 1:
            model, state, spent_ms = context.getModel(question, status=True, timeout=limit_ms)
            return state, [model] if model else [], spent_ms
        found, state, spent_ms = context.getModels(question, models, status=True, timeout=limit_ms)
        return state, [model for model in found if model], spent_ms

    def _related(self, index: int) -> list[int]:
        """The earlier decisions that share bytes with decision `index`, repeats left out."""
        wanted = set(self._bytes[index])
        before = [i for i in range(index) if self._bytes[i]]
        chosen: set[int] = set()
        grew = True
        while grew:
            grew = False
            for i in before:
                if i not in chosen and not wanted.isdisjoint(self._bytes[i]):
                    chosen.add(i)
                    if not self._bytes[i] <= wanted:
                        wanted |= self._bytes[i]
                        grew = True
        distinct: dict[tuple[int, int], int] = {}
        for i in sorted(chosen):
            step = self._run.steps[i]
            distinct.setdefault((step.taken, step.holds.getHash()), i)
        return list(distinct.values())

    def _bytes_in(self, node: Any) -> frozenset[int]:
        found = self._nodes.search(node, AST_NODE.VARIABLE)
        return frozenset(variable.getSymbolicVariable().getId() for variable in found)

    def _apply(self, model: dict[int, Any]) -> bytes:
        changed = bytearray(self._content)
        for variable, value in model.items():
            if variable < len(changed):
                changed[variable] = value.getValue()
        return bytes(changed)


def opposites(steps: Iterable[Step]) -> list[tuple[int, int, int]]:
    """`(taken, opposite, hits)` of each symbolic branch direction, in order of first meeting."""
    hits: dict[tuple[int, int], int] = {}
    for step in steps:
        if step.opposite is not None:
            key = (step.taken, step.opposite)
            hits[key] = hits.get(key, 0) + 1
    return [(taken, opposite, count) for (taken, opposite), count in hits.items()]


def _spread(items: list[int], limit: int) -> list[int]:
    """The first half of `limit` items and the rest evenly from what follows."""
    if len(items) <= limit:
        return items
    head = limit // 2
    rest = items[head:]
    count = limit - head
    return items[:head] + [rest[(i + 1) * len(rest) // count - 1] for i in range(count)]
