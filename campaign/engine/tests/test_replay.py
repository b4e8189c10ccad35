"""Corners of a replay that well-behaved programs do not reach, on a small program made for them."""

from __future__ import annotations

import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tests.support import CAMPAIGN, Worker

FLAGS = [
    "-O1",
    "-fno-pie",
    "-fno-stack-protector",
    "-fno-builtin",
    "-fcf-protection=none",
    "-fno-jump-tables",
    "-static",
    "-no-pie",
    "-nostdlib",
    "-Wl,-e,entry",
    "-Wl,--build-id=sha1",
]

# `touch` keeps the compiler from removing what a well-behaved program would not do.
PROGRAM = r"""
#include <stdlib.h>
#include <string.h>
#include "entry.h"

static volatile unsigned long touch;

int entry(const unsigned char *input, unsigned length) {
  unsigned char first[8] = {0}, second[8] = {0};
  if (length < 8) return 1;
  if (input[0] == 'h') abort();
  if (input[0] == 'f') *(volatile int *)touch = 1;
  if (input[0] == 'x') ((void (*)(void))(touch + 16))();
  if (input[0] == 'l') for (;;) touch++;
  memcpy(first, input, 8);
  memmove(first + 1, first, 7);
  if (first[4] == 0x5a) return 2;
  memset(second, input[5], 8);
  if (second[7] == 0xa5) return 3;
  memcpy(second, "fixed!!!", 8);
  if (second[7] == input[6]) return 4;
  return memcmp(input + 1, "key", 3) == 0 ? 5 : 0;
}
"""


class Replays(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        image = self.folder / "program.elf"
        source = self.folder / "program.c"
        source.write_text(PROGRAM)
        common = CAMPAIGN / "targets" / "common"
        files = [str(source), str(common / "stubs.c")]
        command = ["gcc", *FLAGS, f"-I{common}", *files, "-o", str(image)]
        subprocess.run(command, check=True, capture_output=True)
        limit = ("--max-instructions", "20000", "--max-input", "64")
        self.worker = self.enterContext(Worker("triton_worker.py", str(image), *limit))

    def trace(self, content: bytes) -> dict[str, Any]:
        path = self.folder / "input"
        path.write_bytes(content)
        return self.worker.ask("trace", seed=str(path))

    def outputs(self, content: bytes) -> list[bytes]:
        """Inputs that turn the branches of `content`, those it takes elsewhere included."""
        traced = self.trace(content)
        found = dict.fromkeys(branch["opposite"] for branch in traced["branches"])
        actions = [{"target": target, "action": "solve"} for target in found]
        fields = {"seed": str(self.folder / "input"), "out_dir": str(self.folder)}
        solved = self.worker.ask("solve", actions=actions, **fields)
        self.assertEqual({outcome["outcome"] for outcome in solved["outcomes"]}, {"sat"})
        names = [output["file"] for o in solved["outcomes"] for output in o["outputs"]]
        return [(self.folder / name).read_bytes() for name in names]

    def test_each_way_to_end_is_named_and_followed(self) -> None:
        for first, end in (("-", "returned"), ("h", "halted"), ("f", "fault"), ("x", "fault")):
            traced = self.trace(first.encode() + bytes(7))
            self.assertEqual(traced["end"], end, first)
            # The decision that led there is on the path, so it can be turned.
            self.assertGreater(len(traced["branches"]), 0, first)

    def test_an_endless_loop_is_cut_at_the_limit(self) -> None:
        traced = self.trace(b"l" + bytes(7))
        self.assertEqual(traced["end"], "limit")
        self.assertGreater(len(traced["branches"]), 0)
        self.assertLess(traced["cpu_s"], 10)

    def test_bytes_keep_their_meaning_through_copies_moves_and_fills(self) -> None:
        found = self.outputs(bytes(8))
        # memcpy, then memmove over itself: first[4] is input[3].
        self.assertTrue(any(output[3] == 0x5A for output in found))
        # memset with a byte of the input.
        self.assertTrue(any(output[5] == 0xA5 for output in found))
        # A copy of a constant over symbolic bytes leaves no symbol behind.
        self.assertTrue(any(output[6] == ord("!") for output in found))
        # The branches of memcmp are turned one byte at a time.
        self.assertTrue(any(output[1] == ord("k") for output in found))

    def test_one_output_after_the_other_reaches_the_end_of_a_comparison(self) -> None:
        content = bytes(8)
        for known in (1, 2, 3):
            longer = [o for o in self.outputs(content) if o[1 : 1 + known] == b"key"[:known]]
            self.assertTrue(longer, known)
            content = longer[0]

    def test_bytes_past_the_limit_on_inputs_are_ignored(self) -> None:
        short = self.trace(bytes(64))
        long = self.trace(bytes(64) + b"more")
        self.assertEqual((short["input_bytes"], long["input_bytes"]), (64, 64))
        self.assertEqual(short["taken"], long["taken"])
        self.assertNotEqual(short["seed_sha256"], long["seed_sha256"])


if __name__ == "__main__":
    unittest.main()
