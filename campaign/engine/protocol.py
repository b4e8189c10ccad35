"""The worker's side of the protocol: lines in, lines out, and nothing that ends in a traceback.

`PROTOCOL.md` is the contract; its rules P1 to P7 are cited here by number. An engine implements
`Engine`; `serve` does the rest.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import queue
import signal
import stat
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from checks import MAX_LINE_BYTES, Refused, SolveRequest, TraceRequest, VerifyRequest, parse_request
from layout import Cancelled, Ticker

PROTOCOL_VERSION = 1
PROGRESS_MS = 500
_MAX_FILE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 16


class EngineError(Exception):
    """The engine could not follow this input; another try would end the same way."""


@dataclass(frozen=True)
class Limits:
    """What a worker accepts, in the words of the protocol."""

    max_input: int
    max_instructions: int
    max_actions: int = 64
    max_models: int = 16
    max_limit_ms: int = 60_000
    progress_ms: int = PROGRESS_MS


class Engine(Protocol):
    """What answers the requests. Answers are the fields of the protocol without `id` and `ok`."""

    name: str
    build_id: str
    limits: Limits

    def trace(self, request: TraceRequest, ticker: Ticker) -> dict[str, Any]:
        """Raises `EngineError`, `OSError` or `Cancelled`, as all three do."""

    def solve(self, request: SolveRequest, ticker: Ticker) -> dict[str, Any]: ...

    def verify(self, request: VerifyRequest, ticker: Ticker) -> dict[str, Any]: ...


class _Input:
    """Reads lines in a thread of its own, so that a long request notices the end of the input.

    It reads the descriptor itself: a thread that waits inside Python's buffered reader would hold
    its lock, and the interpreter aborts when it ends in that state.
    """

    def __init__(self, descriptor: int) -> None:
        self.lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.stopping = threading.Event()
        self._descriptor = descriptor
        threading.Thread(target=self._read, name="requests", daemon=True).start()

    def _read(self) -> None:
        pending = b""
        try:
            while chunk := os.read(self._descriptor, _CHUNK_BYTES):
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    self._take(line)
                # What is too long is refused when it ends; until then its length says enough.
                pending = pending[: MAX_LINE_BYTES + 1]
        except OSError:
            pass
        if pending:
            self._take(pending)
        self.stopping.set()
        self.lines.put(None)

    def _take(self, line: bytes) -> None:
        if _is_shutdown(line):
            self.stopping.set()
        self.lines.put(line)


class _Progress(Ticker):
    """Turns ticks into progress events, and a stop into `Cancelled`."""

    def __init__(self, worker: _Worker, request_id: int | str) -> None:
        self._worker = worker
        self._id = request_id
        self._next = time.monotonic() + PROGRESS_MS / 2000
        self._phase: str | None = None

    def tick(self, phase: str, done: int, total: int | None = None) -> None:
        if self._worker.input.stopping.is_set():
            raise Cancelled
        now = time.monotonic()
        if now < self._next and phase == self._phase:
            return
        self._phase = phase
        self._next = now + PROGRESS_MS / 2000
        event = {"event": "progress", "id": self._id, "phase": phase, "done": done}
        self._worker.write(event if total is None else {**event, "total": total})


class _Worker:
    def __init__(self, engine: Engine, stdin: int, stdout: BinaryIO) -> None:
        self._engine = engine
        self._stdout = stdout
        self.input = _Input(stdin)

    def run(self) -> None:
        while (line := self.input.lines.get()) is not None:
            if line.strip() and not self._answer(line):
                return

    def write(self, message: dict[str, Any]) -> None:
        self._stdout.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        self._stdout.flush()

    def _answer(self, line: bytes) -> bool:
        """Answers one line (P1, P3). Returns whether to go on."""
        request_id: int | str | None = None
        try:
            request_id, op, fields = parse_request(line)
            if op == "shutdown":
                self.write({"id": request_id, "ok": True})
                return False
            result = self._dispatch(request_id, op, fields)
            self.write({"id": request_id, "ok": True, **result})
        except Refused as refused:
            known = refused.request_id if request_id is None else request_id
            self._fail(known, refused.kind, str(refused))
        except EngineError as error:
            self._fail(request_id, "engine", str(error))
        except Cancelled:
            self._fail(request_id, "cancelled", "the worker was told to stop")
        except BrokenPipeError:
            raise
        except OSError as error:
            self._fail(request_id, "io", str(error))
        except Exception as error:  # noqa: BLE001 - P3: whatever an engine does, the worker lives on
            self._fail(request_id, "engine", f"{type(error).__name__}: {error}")
        return True

    def _dispatch(self, request_id: int | str, op: str, fields: dict[str, Any]) -> dict[str, Any]:
        limits = self._engine.limits
        ticker = _Progress(self, request_id)
        if op == "hello":
            return self._hello(fields)
        if op == "trace":
            return self._engine.trace(TraceRequest.parse(fields), ticker)
        if op == "solve":
            solve = SolveRequest.parse(
                fields, limits.max_actions, limits.max_models, limits.max_limit_ms
            )
            return self._engine.solve(solve, ticker)
        if op == "verify":
            return self._engine.verify(VerifyRequest.parse(fields), ticker)
        raise Refused("unsupported", f"op: unknown operation {op!r}")

    def _hello(self, fields: dict[str, Any]) -> dict[str, Any]:
        if fields.get("protocol") != PROTOCOL_VERSION:
            raise Refused("unsupported", f"protocol: this worker speaks {PROTOCOL_VERSION}")
        return {
            "protocol": PROTOCOL_VERSION,
            "engine": self._engine.name,
            "build_id": self._engine.build_id,
            "pid": os.getpid(),
            "limits": vars(self._engine.limits),
        }

    def _fail(self, request_id: int | str | None, kind: str, message: str) -> None:
        error = {"kind": kind, "message": message}
        self.write({"id": request_id, "ok": False, "error": error})


def serve(engine: Engine) -> int:
    """Serves requests from standard input until P4 ends it. Returns the exit code.

    Whatever else writes to standard output (a library, a stray `print`) goes to standard error
    from here on, so that it cannot break a line of the protocol.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        _Worker(engine, sys.stdin.fileno(), answers).run()
    except BrokenPipeError:
        # Nobody listens any more; what is left in the buffer must not raise again on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), answers.fileno())
        return 0
    return 0


def read_input(path: Path) -> tuple[bytes, str]:
    """The bytes of a regular file and their digest. Anything else could block for ever."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if about.st_size > _MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"longer than {_MAX_FILE_BYTES} bytes", str(path))
        content = file.read(_MAX_FILE_BYTES)
    return content, hashlib.sha256(content).hexdigest()


def write_output(directory: Path, name: str, content: bytes) -> None:
    """Puts `content` at `directory/name`, complete or not at all (P5)."""
    staged = directory / f".{name}.{os.getpid()}.tmp"
    try:
        staged.write_bytes(content)
        staged.replace(directory / name)
    except OSError:
        staged.unlink(missing_ok=True)
        raise


def _is_shutdown(line: bytes) -> bool:
    if b"shutdown" not in line:
        return False
    try:
        return parse_request(line)[1] == "shutdown"
    except Refused:
        return False
