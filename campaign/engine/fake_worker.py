"""A worker without an engine: a small made-up program, for tests of the life around workers.

    python3 fake_worker.py [--branches N] [--replay-ms N] [--query-ms N] [--silent] [--die-at N]

It speaks the whole protocol and is deterministic, but solves nothing real: results of campaigns
come from a real worker only.

The program looks at input byte `i` once for each branch `i < branches`, as far as the input goes,
and compares it with a key. A match opens a second branch, which asks whether the byte after it is
below 128. So outputs lead to targets that no seed meets. By `i % 8`, turning the first branch to a
match is answered `timeout` (5), `sat-unverified` (6) or `unsat` (7), and honestly otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks import Action, SolveRequest, TraceRequest, VerifyRequest
from layout import End, Ticker, edge
from protocol import Limits, read_input, serve, write_output

_OUTER = 0x1000
_INNER = 0x8000
_STEP = 0x10
_MATCH = 0x4
_OTHER = 0x8
_TICK_S = 0.02


@dataclass(frozen=True)
class Behaviour:
    """How the worker misbehaves, for tests."""

    branches: int
    replay_ms: int
    query_ms: int
    silent: bool
    die_at: int


@dataclass(frozen=True)
class _Branch:
    index: int
    inner: bool
    match: bool

    def direction(self, match: bool) -> int:
        source = (_INNER if self.inner else _OUTER) + self.index * _STEP
        return edge(source, source + (_MATCH if match else _OTHER))

    @property
    def taken(self) -> int:
        return self.direction(self.match)

    @property
    def opposite(self) -> int:
        return self.direction(not self.match)


def _key(index: int) -> int:
    return (index * 37 + 11) & 0xFF


class FakeEngine:
    """Answers requests about the made-up program."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.name = "fake 1"
        self.build_id = f"fa4e{behaviour.branches:04x}"
        self.limits = Limits(max_input=4096, max_instructions=600_000)
        self._behaviour = behaviour
        self._jobs = 0

    def trace(self, request: TraceRequest, ticker: Ticker) -> dict[str, Any]:
        content, digest = self._replay(request.seed, ticker)
        path = list(self._path(content))
        return {
            "seed_sha256": digest,
            "input_bytes": len(content),
            "taken": sorted(branch.taken for branch in path),
            "branches": [
                {"taken": branch.taken, "opposite": branch.opposite, "hits": 1} for branch in path
            ],
            "instructions": len(path),
            "end": End.RETURNED,
            "cpu_s": self._behaviour.replay_ms / 1000,
        }

    def solve(self, request: SolveRequest, ticker: Ticker) -> dict[str, Any]:
        content, digest = self._replay(request.seed, ticker)
        path = {branch.opposite: branch for branch in self._path(content)}
        outcomes = []
        for index, action in enumerate(request.actions):
            ticker.tick("query", index, len(request.actions))
            outcomes.append(self._one(path.get(action.target), content, action, request, ticker))
        spent_ms = self._behaviour.replay_ms + len(outcomes) * self._behaviour.query_ms
        return {
            "seed_sha256": digest,
            "replays": 1,
            "outcomes": outcomes,
            "instructions": len(path),
            "cpu_s": spent_ms / 1000,
        }

    def verify(self, request: VerifyRequest, ticker: Ticker) -> dict[str, Any]:
        content, digest = self._replay(request.input, ticker)
        taken = {branch.taken for branch in self._path(content)}
        return {
            "input_sha256": digest,
            "reached": [target for target in request.targets if target in taken],
            "instructions": len(taken),
            "end": End.RETURNED,
            "cpu_s": self._behaviour.replay_ms / 1000,
        }

    def _one(
        self,
        branch: _Branch | None,
        content: bytes,
        action: Action,
        request: SolveRequest,
        ticker: Ticker,
    ) -> dict[str, Any]:
        self._wait(self._behaviour.query_ms, "query", ticker)
        models = request.max_models if action.action == "sample" else 1
        outcome, inputs = _answer(branch, content, models)
        outputs = []
        for changed in inputs:
            name = hashlib.sha256(changed).hexdigest()
            write_output(request.out_dir, name, changed)
            reaches = any(seen.taken == action.target for seen in self._path(changed))
            outputs.append(
                {
                    "file": name,
                    "sha256": name,
                    "bytes": len(changed),
                    "reaches": reaches,
                    "end": End.RETURNED,
                }
            )
        return {
            "target": action.target,
            "action": action.action,
            "outcome": outcome,
            "outputs": outputs,
            "queries": 0 if branch is None else 1,
            "solver_ms": self._behaviour.query_ms,
        }

    def _path(self, content: bytes) -> Iterator[_Branch]:
        for index, value in enumerate(content[: self._behaviour.branches]):
            match = value == _key(index) and index % 8 != 7
            yield _Branch(index, inner=False, match=match)
            if match and index + 1 < len(content):
                yield _Branch(index, inner=True, match=content[index + 1] < 128)

    def _replay(self, path: Path, ticker: Ticker) -> tuple[bytes, str]:
        content, digest = read_input(path)
        self._jobs += 1
        if self._jobs == self._behaviour.die_at:
            sys.stderr.write("fake_worker: dies here, as asked\n")
            sys.stderr.flush()
            raise SystemExit(3)
        ticker.tick("replay", 0)
        self._wait(self._behaviour.replay_ms, "replay", ticker)
        return content[: self.limits.max_input], digest

    def _wait(self, milliseconds: int, phase: str, ticker: Ticker) -> None:
        ends = time.monotonic() + milliseconds / 1000
        done = 0
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, _TICK_S))
            done += 1
            if not self._behaviour.silent:
                ticker.tick(phase, done)


def _answer(branch: _Branch | None, content: bytes, models: int) -> tuple[str, list[bytes]]:
    if branch is None:
        return "unreached", []
    at = branch.index + 1 if branch.inner else branch.index
    key = _key(branch.index)
    if branch.inner:
        values = list(range(128, 256) if branch.match else range(128))
    elif branch.match:
        values = [value for value in range(256) if value != key]
    elif branch.index % 8 == 5:
        return "timeout", []
    elif branch.index % 8 == 6:
        return "sat-unverified", [_with(content, at, (key + 1) & 0xFF)]
    elif branch.index % 8 == 7:
        return "unsat", []
    else:
        values = [key]
    return "sat", [_with(content, at, value) for value in values[:models]]


def _with(content: bytes, at: int, value: int) -> bytes:
    return content[:at] + bytes([value]) + content[at + 1 :]


def main() -> int:
    """Serves requests about the made-up program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--branches", type=int, default=32, help="branches of the program")
    parser.add_argument("--replay-ms", type=int, default=0, help="time each replay takes")
    parser.add_argument("--query-ms", type=int, default=0, help="time each query takes")
    parser.add_argument("--silent", action="store_true", help="no progress while time passes")
    parser.add_argument("--die-at", type=int, default=0, help="exit with 3 in the N-th job")
    options = parser.parse_args()
    return serve(FakeEngine(Behaviour(**vars(options))))


if __name__ == "__main__":
    sys.exit(main())
