"""The protocol as tests, run against every worker of the project.

Another worker is checked by a subclass that says how to start it and which seed it can read.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tests.support import LZ4_SEED, Worker, lz4_image

UNKNOWN_TARGET = (0x7FFF_0000 << 32) | 0x7FFF_0004


class Conformance:
    """What any worker must do. Subclasses bring `start_worker` and `seed`."""

    def start_worker(self) -> Worker:
        raise NotImplementedError

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.out = self.folder / "out"
        self.out.mkdir()
        self.seed = self.make_seed(self.folder / "seed")
        self.worker = self.enterContext(self.start_worker())

    def make_seed(self, path: Path) -> Path:
        raise NotImplementedError

    def trace(self) -> dict[str, Any]:
        return self.worker.ask("trace", seed=str(self.seed))

    def open_targets(self) -> list[int]:
        traced = self.trace()
        taken = set(traced["taken"])
        found = [branch["opposite"] for branch in traced["branches"]]
        return [target for target in dict.fromkeys(found) if target not in taken]

    def solve(self, targets: list[int], action: str = "solve", **more: object) -> dict[str, Any]:
        actions = [{"target": target, "action": action} for target in targets]
        fields = {"seed": str(self.seed), "out_dir": str(self.out), "actions": actions, **more}
        return self.worker.ask("solve", **fields)

    def test_hello_names_version_build_and_limits(self) -> None:
        hello = self.worker.ask("hello", protocol=1)
        self.assertEqual(hello["protocol"], 1)
        self.assertRegex(hello["build_id"], "^[0-9a-f]+$")
        self.assertEqual(hello["pid"], self.worker.process.pid)
        for name in ("max_input", "max_actions", "max_models", "max_limit_ms", "progress_ms"):
            self.assertGreater(hello["limits"][name], 0, name)
        self.assertEqual(hello["limits"]["max_actions"], 64)

    def test_hello_of_another_version_is_unsupported(self) -> None:
        self.assertEqual(self.worker.refused("hello", protocol=2), "unsupported")
        self.assertEqual(self.worker.refused("hello"), "unsupported")

    def test_a_trace_lists_coverage_and_the_directions_beside_it(self) -> None:
        traced = self.trace()
        self.assertEqual(traced["taken"], sorted(set(traced["taken"])))
        self.assertGreater(len(traced["branches"]), 10)
        self.assertEqual(traced["seed_sha256"], hashlib.sha256(self.seed.read_bytes()).hexdigest())
        for branch in traced["branches"]:
            self.assertIn(branch["taken"], traced["taken"])
            self.assertEqual(branch["taken"] >> 32, branch["opposite"] >> 32)
            self.assertNotEqual(branch["taken"], branch["opposite"])
            self.assertTrue(0 < branch["opposite"] < 1 << 63)
            self.assertGreaterEqual(branch["hits"], 1)

    def test_target_integers_are_the_same_in_a_second_run_and_a_second_process(self) -> None:
        first = self.trace()
        again = self.trace()
        with self.start_worker() as other:
            elsewhere = other.ask("trace", seed=str(self.seed))
            self.assertEqual(
                other.ask("hello", protocol=1)["build_id"],
                self.worker.ask("hello", protocol=1)["build_id"],
            )
        for name in ("taken", "branches", "instructions", "end"):
            self.assertEqual(first[name], again[name], name)
            self.assertEqual(first[name], elsewhere[name], name)

    def test_one_replay_solves_the_whole_group(self) -> None:
        targets = self.open_targets()[:16]
        self.worker.events.clear()
        solved = self.solve(targets)
        self.assertEqual(solved["replays"], 1)
        self.assertEqual([outcome["target"] for outcome in solved["outcomes"]], targets)
        # The life signs show it too: the replay comes once, before the first query.
        phases = [event["phase"] for event in self.worker.events]
        self.assertIn("replay", phases)
        self.assertNotIn("replay", phases[phases.index("query") :])
        answers = {outcome["outcome"] for outcome in solved["outcomes"]}
        self.assertLessEqual(answers, {"sat", "sat-unverified", "unsat", "timeout", "unreached"})
        self.assertIn("sat", answers)

    def test_sat_means_that_the_output_takes_the_target(self) -> None:
        solved = self.solve(self.open_targets())
        confirmed = 0
        for outcome in solved["outcomes"]:
            self.assertEqual(bool(outcome["outputs"]), outcome["outcome"].startswith("sat"))
            for output in outcome["outputs"]:
                path = self.out / output["file"]
                content = path.read_bytes()
                self.assertEqual(hashlib.sha256(content).hexdigest(), output["sha256"])
                self.assertEqual(len(content), output["bytes"])
                target = outcome["target"]
                checked = self.worker.ask("verify", input=str(path), targets=[target])
                self.assertEqual(checked["reached"], [target] if output["reaches"] else [])
                self.assertEqual(checked["end"], output["end"])
            if outcome["outcome"] == "sat":
                self.assertTrue(any(output["reaches"] for output in outcome["outputs"]))
                confirmed += 1
            elif outcome["outcome"] == "sat-unverified":
                self.assertFalse(any(output["reaches"] for output in outcome["outputs"]))
        self.assertGreater(confirmed, 3)

    def test_solving_is_deterministic(self) -> None:
        targets = self.open_targets()[:8]
        first = self.solve(targets)["outcomes"]
        second = self.solve(targets)["outcomes"]
        for one, two in zip(first, second, strict=True):
            self.assertEqual(one["outcome"], two["outcome"])
            self.assertEqual(one["outputs"], two["outputs"])

    def test_sampling_gives_several_different_inputs_and_no_more_than_asked(self) -> None:
        sampled = self.solve(self.open_targets(), action="sample", max_models=3)
        counts = []
        for outcome in sampled["outcomes"]:
            names = [output["file"] for output in outcome["outputs"]]
            self.assertEqual(len(names), len(set(names)))
            counts.append(len(names))
        self.assertLessEqual(max(counts), 3)
        self.assertGreater(max(counts), 1)

    def test_a_branch_the_seed_does_not_meet_is_unreached(self) -> None:
        outcome = self.solve([UNKNOWN_TARGET])["outcomes"][0]
        self.assertEqual((outcome["outcome"], outcome["outputs"]), ("unreached", []))

    def test_outputs_leave_no_temporary_file(self) -> None:
        solved = self.solve(self.open_targets()[:16])
        named = {o["file"] for outcome in solved["outcomes"] for o in outcome["outputs"]}
        self.assertEqual({path.name for path in self.out.iterdir()}, named)

    def test_verify_names_the_targets_that_were_taken_in_the_order_asked(self) -> None:
        taken = self.trace()["taken"]
        asked = [taken[3], UNKNOWN_TARGET, taken[0]]
        checked = self.worker.ask("verify", input=str(self.seed), targets=asked)
        self.assertEqual(checked["reached"], [taken[3], taken[0]])

    def test_an_empty_input_has_no_direction_to_turn(self) -> None:
        empty = self.folder / "empty"
        empty.write_bytes(b"")
        traced = self.worker.ask("trace", seed=str(empty))
        self.assertEqual((traced["input_bytes"], traced["branches"]), (0, []))

    def test_lines_that_are_no_request_are_answered_and_survived(self) -> None:
        lines = [
            b"junk",
            b"[]",
            b"7",
            b'{"op":"hello"}',
            b'{"id":null,"op":"hello"}',
            b'{"id":true,"op":"hello"}',
            b'{"id":1.5,"op":"hello"}',
            b"\xff\xfe\x00",
            b"[" * 5000,
            b'{"id":1,"op":"' + b"x" * (1 << 20) + b'"}',
        ]
        for line in lines:
            self.worker.send(line)
            answer = self.worker.answer()
            self.assertEqual((answer["id"], answer["ok"]), (None, False), line[:40])
            self.assertEqual(answer["error"]["kind"], "bad-request", line[:40])
        self.worker.send(b"")
        self.worker.ask("hello", protocol=1)

    def test_wrong_fields_are_named_and_survived(self) -> None:
        good = {
            "seed": str(self.seed),
            "out_dir": str(self.out),
            "actions": [{"target": 1, "action": "solve"}],
        }
        bad_actions: list[object] = [
            None,
            [],
            {},
            [7],
            [{"target": 1}],
            [{"target": 1, "action": "skip"}],
            [{"target": 0, "action": "solve"}],
            [{"target": -1, "action": "solve"}],
            [{"target": True, "action": "solve"}],
            [{"target": 1.0, "action": "solve"}],
            [{"target": "1", "action": "solve"}],
            [{"target": 1 << 64, "action": "solve"}],
            [{"target": 1, "action": "solve"}, {"target": 1, "action": "sample"}],
            [{"target": n + 1, "action": "solve"} for n in range(65)],
        ]
        cases: list[dict[str, object]] = [{"actions": actions} for actions in bad_actions]
        cases += [{"limit_ms": value} for value in (0, -1, 1.5, "9", 1 << 40, True)]
        cases += [{"max_models": value} for value in (0, 10_000, None, [])]
        cases += [{"seed": value} for value in (None, 7, "", "a\0b")]
        cases += [{"out_dir": value} for value in (None, "", str(self.seed), "/nowhere/at/all")]
        for case in cases:
            self.assertEqual(self.worker.refused("solve", **{**good, **case}), "bad-request", case)
        self.assertEqual(self.worker.refused("trace"), "bad-request")
        self.assertEqual(self.worker.refused("verify", input="x"), "bad-request")
        self.assertEqual(self.worker.refused("dance"), "unsupported")
        self.worker.send(b'{"id":"no-op"}')
        self.assertEqual(self.worker.answer()["id"], "no-op")
        self.worker.ask("hello", protocol=1)

    def test_files_that_cannot_be_read_are_io_errors(self) -> None:
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for path in (self.folder / "missing", self.folder, pipe, Path("/dev/zero")):
            self.assertEqual(self.worker.refused("trace", seed=str(path)), "io", path)
            self.assertEqual(self.worker.refused("verify", input=str(path), targets=[]), "io")
        self.trace()

    def test_an_output_that_cannot_be_written_is_an_io_error(self) -> None:
        targets = self.open_targets()
        named = {
            output["file"]
            for outcome in self.solve(targets)["outcomes"]
            for output in outcome["outputs"]
        }
        blocked = self.folder / "blocked"
        blocked.mkdir()
        for name in named:
            (blocked / name).mkdir()
        actions = [{"target": target, "action": "solve"} for target in targets]
        fields = {"seed": str(self.seed), "out_dir": str(blocked), "actions": actions}
        self.assertEqual(self.worker.refused("solve", **fields), "io")
        self.assertEqual({path.name for path in blocked.iterdir()}, named)
        self.trace()

    def test_requests_sent_together_are_answered_in_order(self) -> None:
        ids = [self.worker.start("trace", seed=str(self.seed)) for _ in range(3)]
        ids.append(self.worker.start("hello", protocol=1))
        self.assertEqual([self.worker.answer()["id"] for _ in ids], ids)

    def test_events_name_the_request_they_belong_to(self) -> None:
        targets = self.open_targets()[:4]
        self.worker.events.clear()
        solved = self.solve(targets)
        self.assertGreater(len(self.worker.events), 0)
        for event in self.worker.events:
            self.assertEqual((event["event"], event["id"]), ("progress", solved["id"]))
            self.assertIn(event["phase"], ("check", "replay", "query"))

    def test_shutdown_is_answered_and_ends_the_worker(self) -> None:
        self.worker.ask("shutdown")
        self.assertEqual(self.worker.ended(), (0, ""))

    def test_the_end_of_the_input_ends_the_worker(self) -> None:
        self.worker.ask("hello", protocol=1)
        self.worker.close_input()
        self.assertEqual(self.worker.ended(), (0, ""))

    def test_a_closed_output_ends_the_worker_without_a_traceback(self) -> None:
        self.worker.ask("hello", protocol=1)
        read_end, write_end = os.pipe()
        os.close(read_end)
        with tempfile.TemporaryFile() as errors:
            code = self.run_against(write_end, errors)
            errors.seek(0)
            self.assertEqual((code, errors.read()), (0, b""))

    def run_against(self, write_end: int, errors: Any) -> int:
        """Starts a second worker whose output nobody reads, and returns its exit code."""
        import subprocess

        with subprocess.Popen(
            self.worker.process.args, stdin=subprocess.PIPE, stdout=write_end, stderr=errors
        ) as process:
            os.close(write_end)
            process.stdin.write(json.dumps({"id": 1, "op": "hello", "protocol": 1}).encode())
            process.stdin.write(b"\n")
            process.stdin.flush()
            return process.wait(timeout=60)

    def test_sigterm_ends_the_worker_at_once(self) -> None:
        self.worker.ask("hello", protocol=1)
        self.worker.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.worker.ended(), (-signal.SIGTERM, ""))


class FakeWorkerConforms(Conformance, unittest.TestCase):
    def start_worker(self) -> Worker:
        return Worker("fake_worker.py")

    def make_seed(self, path: Path) -> Path:
        # Byte 0 matches its key, so that the branch behind it can be turned in many ways.
        path.write_bytes(bytes([11]) + bytes(31))
        return path


class TritonWorkerConforms(Conformance, unittest.TestCase):
    def start_worker(self) -> Worker:
        return Worker("triton_worker.py", str(lz4_image()))

    def make_seed(self, path: Path) -> Path:
        path.write_bytes(LZ4_SEED.read_bytes())
        return path


if __name__ == "__main__":
    unittest.main()
