"""Another program of this line: the same table, written independently with the standard library."""

import fcntl
import hashlib
import json
import os
import sys
import time


class Table:
    def __init__(self, root, shards, ttl=60.0):
        self.root, self.shards, self.ttl = root, shards, ttl

    def path(self, target):
        digest = hashlib.sha256(f"target:{target}".encode("ascii")).hexdigest()
        shard = int(digest[:8], 16) % self.shards
        return digest, os.path.join(self.root, f"{shard:03d}", f"{digest}.json")

    def lock_all(self, targets):
        held = []
        for _, path in sorted(self.path(target) for target in targets):
            fd = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            held.append(fd)
        return held

    def read(self, target):
        try:
            with open(self.path(target)[1], encoding="utf-8") as file:
                return json.load(file)
        except FileNotFoundError:
            return None

    def write(self, target, record):
        path = self.path(target)[1]
        temp = f"{path}.{os.getpid()}.tmp"
        with open(temp, "w", encoding="utf-8") as file:
            file.write(json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False))
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
        fd = os.open(os.path.dirname(path), os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def claim(self, targets, owner, token, **more):
        held = self.lock_all(targets)
        try:
            now = time.time()
            old = {target: self.read(target) for target in targets}
            for record in old.values():
                ttl = (record or {}).get("ringfence", {}).get("ttl", self.ttl)
                if record and now - record["updated"] < ttl:
                    return False
            ordered = sorted(targets, key=lambda target: self.path(target)[0])
            for target in targets:
                before = old[target] or {}
                stolen = bool(before) and before["owner"] != owner
                self.write(target, {
                    "schema": 1, "id": self.path(target)[0], "target": target,
                    "targets": ordered, "status": "leased", "payload": {"by": owner},
                    "owner": owner, "previous_owner": before["owner"] if stolen else None,
                    "worker": 3, "token": token, "updated": now,
                    "attempts": before.get("attempts", 0) + 1,
                    "steals": before.get("steals", 0) + stolen, **more,
                })
            return True
        finally:
            for fd in reversed(held):
                os.close(fd)

    def release(self, targets, token):
        held = self.lock_all(targets)
        try:
            if any((self.read(target) or {}).get("token") != token for target in targets):
                return False
            for target in targets:
                os.unlink(self.path(target)[1])
            return True
        finally:
            for fd in reversed(held):
                os.close(fd)


def churn(table, owner, marks, seconds):
    """Claims, marks its targets as its own, checks that nobody else has, releases."""
    end, grants = time.time() + seconds, 0
    groups = [[1, 2, 3], [3, 4], [4, 5, 1]]
    # Kernel locks are not fair: on a busy machine it may take long to get a group once.
    while time.time() < end or grants == 0 and time.time() < end + 120:
        group = groups[grants % 3]
        token = f"py-{os.getpid()}-{grants}"
        if not table.claim(group, owner, token):
            time.sleep(0.0005)
            continue
        for target in group:
            fd = os.open(os.path.join(marks, str(target)), os.O_CREAT | os.O_EXCL)
            os.close(fd)
        for target in group:
            os.unlink(os.path.join(marks, str(target)))
        assert table.release(group, token), "lost an unexpired lease"
        grants += 1
    return grants


def main():
    verb, root = sys.argv[1], sys.argv[2]
    table = Table(root, 8)
    numbers = [int(number) for number in sys.argv[3].split(",")]
    if verb == "claim":
        print("> granted" if table.claim(numbers, "python", "py-token", note={"kept": [1.5]}) else "> refused", flush=True)
    elif verb == "release":
        print("> released" if table.release(numbers, "py-token") else "> refused", flush=True)
    elif verb == "hold":
        held = table.lock_all(numbers)
        print("> holding", flush=True)
        sys.stdin.readline()
        del held
    elif verb == "show":
        print("> " + json.dumps(table.read(numbers[0]), sort_keys=True, separators=(",", ":")), flush=True)
    elif verb == "churn":
        print("> " + str(churn(table, "python", sys.argv[4], float(sys.argv[5]))), flush=True)


main()
