"""The reference for canonical JSON, ids and shards.

Prints three parts with `--` between them: for each input line the SHA-256 and the canonical text;
then pairs of lines, a value of its own in a form that is not canonical and its canonical text; then
targets with their id, a shard count and the shard.
"""

import hashlib
import json
import math
import random
import struct
import sys


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


for line in sys.stdin:
    text = canonical(json.loads(line))
    print(hashlib.sha256(text.encode("ascii")).hexdigest(), text)
print("--")

draw = random.Random(325)


def number():
    kind = draw.randrange(4)
    if kind == 0:
        return draw.randrange(-(2**70), 2**70)
    if kind == 1:
        return draw.random() * 2e9
    while True:
        (value,) = struct.unpack("<d", draw.randbytes(8))
        if math.isfinite(value):
            return value


def character():
    low, high = draw.choice([(0, 0x1F), (0x20, 0x7F), (0x80, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)])
    return chr(draw.randint(low, high))


def string():
    return "".join(character() for _ in range(draw.randrange(7)))


def value(depth):
    kind = draw.randrange(8 if depth else 5)
    if kind < 2:
        return number()
    if kind < 4:
        return string()
    if kind == 4:
        return draw.choice([None, True, False])
    if kind == 5:
        return [value(depth - 1) for _ in range(draw.randrange(5))]
    return {string(): value(depth - 1) for _ in range(draw.randrange(6))}


for _ in range(300):
    drawn = {"v": value(4), string(): value(3)}
    print(json.dumps(drawn, ensure_ascii=False))
    print(canonical(drawn))
print("--")

for _ in range(64):
    target = draw.randint(1, 2 ** draw.randint(1, 64) - 1)
    name = hashlib.sha256(f"target:{target}".encode("ascii")).hexdigest()
    count = draw.randint(1, 1000)
    print(target, name, count, f"{int(name[:8], 16) % count:03d}")
