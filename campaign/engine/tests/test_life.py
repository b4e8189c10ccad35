"""Long, silent, interrupted and dying workers."""

from __future__ import annotations

import tempfile
import threading
import time
import unittest
from pathlib import Path

from tests.support import CAMPAIGN, Worker, lz4_image


class Stalls:
    """How long the machine kept a thread that does nothing, and so perhaps the worker, from its turn."""

    longest_s = 0.0

    def __enter__(self) -> Stalls:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.01):
            now = time.monotonic()
            self.longest_s, last = max(self.longest_s, now - last), now


class LongRequests(unittest.TestCase):
    def setUp(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.seed = folder / "seed"
        self.seed.write_bytes(bytes(32))

    def start(self, *switches: str) -> Worker:
        return self.enterContext(Worker("fake_worker.py", *switches))

    def test_a_long_replay_shows_life_more_often_than_promised(self) -> None:
        worker = self.start("--replay-ms", "3000")
        promised_s = worker.ask("hello", protocol=1)["limits"]["progress_ms"] / 1000
        worker.start("trace", seed=str(self.seed))
        last = time.monotonic()
        gaps = []
        with Stalls() as stalls:
            while "event" in worker.line():
                gaps.append(time.monotonic() - last)
                last = time.monotonic()
        self.assertGreaterEqual(len(gaps), 4)
        self.assertLess(max(gaps), promised_s + stalls.longest_s)

    def test_a_silent_worker_can_be_told_from_a_living_one(self) -> None:
        worker = self.start("--replay-ms", "1200", "--silent")
        worker.ask("trace", seed=str(self.seed))
        self.assertEqual([event["done"] for event in worker.events], [0])

    def test_the_end_of_the_input_interrupts_a_long_request(self) -> None:
        worker = self.start("--replay-ms", "60000")
        worker.start("trace", seed=str(self.seed))
        self.assertEqual(worker.line()["event"], "progress")
        closed_at = time.monotonic()
        worker.close_input()
        answer = worker.answer()
        self.assertEqual(answer["error"]["kind"], "cancelled")
        self.assertEqual(worker.ended(), (0, ""))
        self.assertLess(time.monotonic() - closed_at, 45)

    def test_shutdown_interrupts_a_long_request_and_those_behind_it(self) -> None:
        worker = self.start("--replay-ms", "60000")
        ids = [worker.start("trace", seed=str(self.seed)) for _ in range(2)]
        self.assertEqual(worker.line()["event"], "progress")
        last = worker.start("shutdown")
        answers = [worker.answer() for _ in range(3)]
        self.assertEqual([answer["id"] for answer in answers], [*ids, last])
        self.assertEqual([answer["ok"] for answer in answers], [False, False, True])
        self.assertEqual(worker.ended(), (0, ""))

    def test_the_word_shutdown_elsewhere_stops_nothing(self) -> None:
        worker = self.start()
        worker.send(b'{"id":"shutdown","op":"trace","seed":"shutdown"}')
        self.assertEqual(worker.answer()["error"]["kind"], "io")
        worker.ask("trace", seed=str(self.seed))

    def test_a_worker_that_dies_in_a_job_gives_no_answer_to_it(self) -> None:
        worker = self.start("--die-at", "2")
        worker.ask("trace", seed=str(self.seed))
        worker.start("trace", seed=str(self.seed))
        with self.assertRaises(EOFError):
            worker.answer()
        self.assertEqual(worker.ended()[0], 3)


class RealLongRequests(unittest.TestCase):
    def test_a_real_replay_is_interrupted_by_the_end_of_the_input(self) -> None:
        seed = CAMPAIGN / "targets" / "lz4" / "seeds" / "linked.lz4"
        with Worker("triton_worker.py", str(lz4_image())) as worker:
            ids = [worker.start("trace", seed=str(seed)) for _ in range(200)]
            self.assertEqual(worker.answer()["id"], ids[0])
            worker.close_input()
            kinds = [worker.answer()["ok"] for _ in ids[1:]]
            self.assertFalse(kinds[-1])
            self.assertEqual(worker.ended(), (0, ""))

    def test_an_image_that_is_none_is_refused_with_one_line(self) -> None:
        for path in (__file__, "/nowhere", "/bin/true"):
            with Worker("triton_worker.py", path) as worker:
                code, said = worker.ended()
                self.assertEqual(code, 66)
                self.assertEqual(said.count("\n"), 1, said)


if __name__ == "__main__":
    unittest.main()
