"""A worker that misbehaves: the made-up one, with what it says about a solve twisted.

    python3 bad_worker.py ENGINE_DIR HOW TIMES

HOW is `garbage`, `wrong-id`, `other-targets`, `wrong-digest` or `hangs`; the first TIMES answers of
this process to a solve are twisted so, and TIMES 0 twists all of them.
"""

import json
import subprocess
import sys
import time

engine, how, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
worker = subprocess.Popen(
    [sys.executable, f"{engine}/fake_worker.py", "--branches", "48"], stdin=sys.stdin, stdout=subprocess.PIPE
)
twisted = 0
for line in worker.stdout:
    answer = json.loads(line)
    if "outcomes" in answer and (times == 0 or twisted < times):
        twisted += 1
        if how == "garbage":
            line = b"Segmentation fault (core dumped)\n"
        elif how == "hangs":
            time.sleep(3600)
        elif how == "wrong-id":
            answer["id"] += 1
        elif how == "other-targets":
            answer["outcomes"][0]["target"] += 4
        elif how == "wrong-digest":
            for outcome in answer["outcomes"]:
                for output in outcome["outputs"]:
                    output["sha256"] = output["sha256"][::-1]
        if how != "garbage":
            line = json.dumps(answer).encode() + b"\n"
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
