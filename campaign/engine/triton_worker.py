"""A worker for real programs: symbolic replay with Triton, every answer checked by a concrete one.

    python3 triton_worker.py IMAGE [--max-input N] [--max-instructions N]

IMAGE is a freestanding program as `cargo xtask` builds them: `int entry(input, length)` and no
system below it. Speaks the worker protocol of `PROTOCOL.md` on standard input and output.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triton import VERSION

import query
from checks import Action, SolveRequest, TraceRequest, VerifyRequest
from concrete import ConcreteReplay, ConcreteRun
from decode import Decoder
from image import Image, ImageError
from layout import Ticker
from protocol import EngineError, Limits, read_input, serve, write_output
from symbolic import ReplayError, SymbolicReplay, SymbolicRun


class TritonEngine:
    """Answers requests about one image."""

    def __init__(self, image: Image, limits: Limits) -> None:
        self.name = f"triton {VERSION.MAJOR}.{VERSION.MINOR}.{VERSION.BUILD}"
        self.build_id = image.build_id
        self.limits = limits
        self._concrete = ConcreteReplay(image, Decoder(image), limits.max_instructions)
        self._symbolic = SymbolicReplay(image, limits.max_instructions)

    def trace(self, request: TraceRequest, ticker: Ticker) -> dict[str, Any]:
        started = time.process_time()
        content, digest = self._read(request.seed)
        seen = self._concrete.run(content, ticker)
        run = self._follow(content, seen, ticker)
        branches = [
            {"taken": taken, "opposite": opposite, "hits": hits}
            for taken, opposite, hits in query.opposites(run.steps)
        ]
        return {
            "seed_sha256": digest,
            "input_bytes": len(content),
            "taken": sorted(seen.taken),
            "branches": branches,
            "instructions": run.instructions,
            "end": seen.end,
            "cpu_s": _since(started),
        }

    def solve(self, request: SolveRequest, ticker: Ticker) -> dict[str, Any]:
        started = time.process_time()
        content, digest = self._read(request.seed)
        seen = self._concrete.run(content, ticker)
        run = self._follow(content, seen, ticker)
        path = query.Path(run, content)
        outcomes = []
        for index, action in enumerate(request.actions):
            ticker.tick("query", index, len(request.actions))
            outcomes.append(self._one(path, action, request, ticker))
        return {
            "seed_sha256": digest,
            "replays": 1,
            "outcomes": outcomes,
            "instructions": run.instructions,
            "cpu_s": _since(started),
        }

    def verify(self, request: VerifyRequest, ticker: Ticker) -> dict[str, Any]:
        started = time.process_time()
        content, digest = self._read(request.input)
        seen = self._concrete.run(content, ticker)
        return {
            "input_sha256": digest,
            "reached": [target for target in request.targets if target in seen.taken],
            "instructions": seen.instructions,
            "end": seen.end,
            "cpu_s": _since(started),
        }

    def _one(
        self, path: query.Path, action: Action, request: SolveRequest, ticker: Ticker
    ) -> dict[str, Any]:
        models = request.max_models if action.action == "sample" else 1
        proposal = path.propose(action.target, request.limit_ms, models, ticker)
        outputs = list(self._keep(proposal.inputs, action.target, request.out_dir, ticker))
        outcome = str(proposal.answer)
        if outputs and not any(output["reaches"] for output in outputs):
            outcome = "sat-unverified"
        return {
            "target": action.target,
            "action": action.action,
            "outcome": outcome,
            "outputs": outputs,
            "queries": proposal.queries,
            "solver_ms": proposal.solver_ms,
        }

    def _keep(
        self, inputs: list[bytes], target: int, out_dir: Path, ticker: Ticker
    ) -> Iterator[dict[str, Any]]:
        # Two models may differ only in bytes the input does not have.
        for content in dict.fromkeys(inputs):
            seen = self._concrete.run(content, ticker)
            name = hashlib.sha256(content).hexdigest()
            write_output(out_dir, name, content)
            yield {
                "file": name,
                "sha256": name,
                "bytes": len(content),
                "reaches": target in seen.taken,
                "end": seen.end,
            }

    def _follow(self, content: bytes, seen: ConcreteRun, ticker: Ticker) -> SymbolicRun:
        try:
            return self._symbolic.run(content, seen, ticker)
        except ReplayError as error:
            raise EngineError(str(error)) from error

    def _read(self, path: Path) -> tuple[bytes, str]:
        """The bytes a replay uses, and the digest of all of them."""
        content, digest = read_input(path)
        return content[: self.limits.max_input], digest


def _since(started: float) -> float:
    return round(time.process_time() - started, 6)


def main() -> int:
    """Loads the image and serves requests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("image", type=Path)
    parser.add_argument("--max-input", type=int, default=4096)
    parser.add_argument("--max-instructions", type=int, default=600_000)
    options = parser.parse_args()
    try:
        image = Image.load(options.image)
    except (ImageError, OSError) as error:
        print(f"triton_worker: {error}", file=sys.stderr)
        return 66
    return serve(TritonEngine(image, Limits(options.max_input, options.max_instructions)))


if __name__ == "__main__":
    sys.exit(main())
