"""Starts workers as a coordinator would, and talks to them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ENGINE = Path(__file__).resolve().parent.parent
CAMPAIGN = ENGINE.parent
LZ4_SEED = CAMPAIGN / "targets" / "lz4" / "seeds" / "match.lz4"
PATIENCE_S = 60
_ENDED = object()


def lz4_image() -> Path:
    """The lz4 program. Its absence is an error: without it half of the tests would be empty."""
    named = os.environ.get("CAMPAIGN_LZ4_IMAGE")
    usual = CAMPAIGN.parent / "target" / "campaign" / "lz4" / "program.elf"
    image = Path(named) if named else usual
    if not image.is_file():
        raise FileNotFoundError(
            f"{image}: build it with `cargo xtask test`, or name it in CAMPAIGN_LZ4_IMAGE"
        )
    return image


class Worker:
    """A running worker. `ask` returns the answer; events are kept in `events`."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ENGINE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.events: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stderr = b""
        self._threads = [threading.Thread(target=self._read_out, daemon=True)]
        self._threads.append(threading.Thread(target=self._read_err, daemon=True))
        for thread in self._threads:
            thread.start()
        self._next_id = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def send(self, line: bytes) -> None:
        """Writes one raw line."""
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def start(self, op: str, **fields: object) -> int:
        """Sends a request and returns its id."""
        self._next_id += 1
        self.send(json.dumps({"id": self._next_id, "op": op, **fields}).encode())
        return self._next_id

    def line(self) -> dict[str, Any]:
        """The next line, event or answer."""
        line = self._lines.get(timeout=PATIENCE_S)
        if line is _ENDED:
            raise EOFError(f"the worker is gone: {self._stderr.decode()}")
        return json.loads(line)

    def answer(self) -> dict[str, Any]:
        """The next answer; events before it are kept."""
        while "event" in (message := self.line()):
            self.events.append(message)
        return message

    def ask(self, op: str, **fields: object) -> dict[str, Any]:
        """Sends a request and returns its answer, which must be a success."""
        request_id = self.start(op, **fields)
        answer = self.answer()
        if answer.get("id") != request_id or answer.get("ok") is not True:
            raise AssertionError(f"{op}: {answer}")
        return answer

    def refused(self, op: str, **fields: object) -> str:
        """Sends a request that must fail, and returns the kind of its error."""
        request_id = self.start(op, **fields)
        answer = self.answer()
        if answer.get("id") != request_id or answer.get("ok") is not False:
            raise AssertionError(f"{op}: {answer}")
        return answer["error"]["kind"]

    def close_input(self) -> None:
        """What the death of a coordinator looks like."""
        self.process.stdin.close()

    def ended(self) -> tuple[int, str]:
        """Waits for the end; the exit code and what was said on standard error."""
        code = self.process.wait(timeout=PATIENCE_S)
        for thread in self._threads:
            thread.join()
        return code, self._stderr.decode()

    def _read_out(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(_ENDED)

    def _read_err(self) -> None:
        self._stderr = self.process.stderr.read()
