"""Measures a worker on real inputs: what checks, traces and groups of solves cost and find.

    python3 measure.py [--group N] FILE.. -- WORKER ARGS..

Every file is traced and checked; then one request solves its first N open branches, open meaning
that none of the files takes them. Prints one JSON object. CPU seconds are the worker's own; wall
time says more about the machine's other work and is not reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any


class Worker:
    """A worker process, asked one request at a time."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._asked = 0

    def ask(self, op: str, **fields: object) -> dict[str, Any]:
        """Returns the answer, a failure included. Raises `EOFError` when the worker is gone."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._asked += 1
        request = {"id": self._asked, "op": op, **fields}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            answer = json.loads(line)
            if answer.get("id") == self._asked and "ok" in answer:
                return answer
        raise EOFError("the worker is gone")

    def peak_mib(self) -> int:
        """The most memory the worker has had so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(lines[0].split()[1]) // 1024 if lines else 0

    def stop(self) -> None:
        """Ends the worker in the way of the protocol."""
        self.ask("shutdown")
        self._process.wait()


def measure(worker: Worker, files: list[str], group: int) -> dict[str, Any]:
    """Runs the passes over `files`."""
    hello = worker.ask("hello", protocol=1)
    traces = {file: worker.ask("trace", seed=file) for file in files}
    checks = [worker.ask("verify", input=file, targets=[]) for file in files]
    failed = {file: answer["error"] for file, answer in traces.items() if not answer["ok"]}
    traced = {file: answer for file, answer in traces.items() if answer["ok"]}
    covered = {target for answer in traced.values() for target in answer["taken"]}
    sizes: list[int] = []
    solve_cpu: list[float] = []
    solver_ms: list[int] = []
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as out_dir:
        for file, answer in traced.items():
            opposites = dict.fromkeys(branch["opposite"] for branch in answer["branches"])
            found = [target for target in opposites if target not in covered]
            sizes.append(len(found))
            actions = [{"target": target, "action": "solve"} for target in found[:group]]
            if not actions:
                continue
            solved = worker.ask("solve", seed=file, out_dir=out_dir, actions=actions)
            solve_cpu.append(solved["cpu_s"])
            solver_ms += [outcome["solver_ms"] for outcome in solved["outcomes"]]
            outcomes.update(outcome["outcome"] for outcome in solved["outcomes"])
    return {
        "engine": hello["engine"],
        "build_id": hello["build_id"],
        "files": len(files),
        "failed": failed,
        "directions_covered": len(covered),
        "open_per_file": _spread(sizes),
        "check_cpu_s": _spread([answer["cpu_s"] for answer in checks if answer["ok"]]),
        "trace_cpu_s": _spread([answer["cpu_s"] for answer in traced.values()]),
        "solve_cpu_s": _spread(solve_cpu),
        "solver_ms": _spread(solver_ms),
        "outcomes": dict(sorted(outcomes.items())),
        "peak_mib": worker.peak_mib(),
    }


def _spread(values: list[Any]) -> dict[str, float]:
    if not values:
        return {}
    return {"median": round(statistics.median(values), 3), "max": round(max(values), 3)}


def main() -> int:
    """Reads the command line and prints the result."""
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    before, command = words[:at], words[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", type=int, default=16, help="open branches to solve at once")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args(before)
    if not command:
        parser.error("name the worker after --")
    worker = Worker(command)
    print(json.dumps(measure(worker, options.files, options.group), indent=2))
    worker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
