"""Safetensors files, right and wrong, and runs of the command; for the test scripts beside this file."""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

CLI = sys.argv[1]
failures = []


def fail(text):
    failures.append(text)
    print("FAIL", text)


def finish(name):
    print(f"{name}: {len(failures)} failures")
    sys.exit(1 if failures else 0)


def run(*arguments, environment=None, stdin=None):
    return subprocess.run([CLI, *map(str, arguments)], capture_output=True, text=True, errors="replace",
                          timeout=600, input=stdin, env={**os.environ, **(environment or {})})


def need_device():
    if run("info", "--no-cache", "--help").returncode != 0:
        sys.exit("the command does not start")
    probe = run("source", "--path", "portable", "--device", "no such device")
    if "no OpenCL device" in probe.stderr:
        print("no OpenCL device")
        sys.exit(77)


def scratch():
    return tempfile.TemporaryDirectory(prefix="clattn-cli-")


# ---- Numbers and bytes --------------------------------------------------------------------------

def bf16_bytes(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return struct.pack("<H", (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


def encode(values, dtype):
    if dtype == "BF16":
        return b"".join(map(bf16_bytes, values))
    return struct.pack(f"<{len(values)}{'f' if dtype == 'F32' else 'e'}", *values)


def decode(data, dtype):
    if dtype == "BF16":
        return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
    size = 4 if dtype == "F32" else 2
    return list(struct.unpack(f"<{len(data) // size}{'f' if dtype == 'F32' else 'e'}", data))


# ---- Files --------------------------------------------------------------------------------------

def file_bytes(header, data=b"", padding=0):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * padding
    return struct.pack("<Q", len(text)) + text + data


def write(path, tensors, metadata=None):
    """tensors: {name: (dtype, shape, bytes)}"""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    with open(path, "wb") as file:
        file.write(file_bytes(header, data))
    return path


def read(path):
    with open(path, "rb") as file:
        raw = file.read()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    data = raw[8 + length:]
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}


def size(shape):
    return math.prod(shape)


def zeros(dtype, shape):
    width = {"F32": 4, "I32": 4, "F64": 8, "I64": 8, "U8": 1, "BOOL": 1, "I8": 1}.get(dtype, 2)
    return dtype, shape, bytes(size(shape) * width)


def floats(values, shape=None):
    return "F32", shape or [len(values)], struct.pack(f"<{len(values)}f", *values)


def integers(values, shape=None):
    return "I32", shape or [len(values)], struct.pack(f"<{len(values)}i", *values)


# ---- The reference, over again and independent of the command's own ------------------------------

def attention(q, k, v, dim_v, offset=None, causal=False, window=None, scale=None, softcap=0, bias=None, slope=0,
              modify=None, allows=None, sink=-math.inf, base=math.e):
    """One head of one batch entry, as long as it is: lists of rows. Returns rows of o and lse."""
    out, lse = [], []
    offset = len(k) - len(q) if offset is None else offset
    scale = scale or 1 / math.sqrt(len(q[0])) if q else 0
    for i, row in enumerate(q):
        scores = {}
        for j, key in enumerate(k):
            p = i + offset
            if causal and j > p:
                continue
            if window and ((window[0] >= 0 and j < p - window[0]) or (window[1] >= 0 and j > p + window[1])):
                continue
            if allows and not allows(i, p, j):
                continue
            s = scale * sum(a * b for a, b in zip(row, key))
            if softcap:
                s = softcap * math.tanh(s / softcap)
            if bias:
                s += bias(i, j)
            s -= slope * abs(p - j)
            if modify:
                s = modify(s, i, p, j)
            if s > -math.inf:
                scores[j] = s
        top = max([sink, *scores.values()])
        if top == -math.inf:
            out.append([0.0] * dim_v)
            lse.append(-math.inf)
            continue
        weights = {j: math.exp(s - top) for j, s in scores.items()}
        total = sum(weights.values()) + math.exp(sink - top)
        out.append([sum(w * v[j][c] for j, w in weights.items()) / total for c in range(dim_v)])
        lse.append((top + math.log(total)) / math.log(base))
    return out, lse
