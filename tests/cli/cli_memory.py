#!/usr/bin/env python3
"""Long sequences need memory for their tensors and nothing else: counted by the fake-device layer.

    cli_memory.py CLATTN DATA_FOLDER LAYER
"""
import json
import os
import random
import struct
import sys

from cli_files import CLI, fail, finish, need_device, read, run, scratch, write

LAYER = sys.argv[3]
HEAD_DIM = 64


def repeated_rows(count, generator):
    """Random rows; they repeat after a prime number of them, which nothing here is a multiple of."""
    rows = [struct.pack(f"<{HEAD_DIM}f", *(generator.gauss(0, 1) for _ in range(HEAD_DIM))) for _ in range(997)]
    return b"".join(rows[i % 997] for i in range(count))


def measure(folder, q_len, kv_len, options, limit):
    generator = random.Random(1)
    column = [generator.gauss(0, 1) for _ in range(HEAD_DIM)]
    source = write(os.path.join(folder, "in"), {
        "q": ("F32", [1, 1, q_len, HEAD_DIM], repeated_rows(q_len, generator)),
        "k": ("F32", [1, 1, kv_len, HEAD_DIM], repeated_rows(kv_len, generator)),
        "v": ("F32", [1, 1, kv_len, HEAD_DIM], struct.pack(f"<{HEAD_DIM}f", *column) * kv_len)})
    target, report = os.path.join(folder, "out"), os.path.join(folder, "report")
    result = run("run", source, "-o", target, *options,
                 environment={"OPENCL_LAYERS": LAYER, "CLATTN_FAKE_REPORT": report})
    if result.returncode != 0:
        return fail(f"N={kv_len}: status {result.returncode}: {result.stderr[-500:]}")
    with open(report, encoding="utf-8") as file:
        peak = json.load(file)["memory_peak"]
    print(f"q_len {q_len}, kv_len {kv_len}: {peak / 2**20:.1f} MiB of device memory at the peak")
    if not 0 < peak < limit:
        fail(f"q_len {q_len}, kv_len {kv_len}: {peak} bytes; expected less than {limit}")
    # All rows of v are the same, so every row of o is that row, whatever the weights.
    o = struct.unpack(f"<{q_len * HEAD_DIM}f", read(target)["o"][2])
    worst = max(abs(x - column[i % HEAD_DIM]) for i, x in enumerate(o))
    if not worst < 1e-4:
        fail(f"q_len {q_len}, kv_len {kv_len}: o is off by {worst}")


need_device()
print(CLI)
with scratch() as folder:
    measure(folder, 32768, 32768, [], 64e6)
    measure(folder, 64, 131072, ["--causal"], 80e6)
finish("cli_memory")
