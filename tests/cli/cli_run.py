#!/usr/bin/env python3
"""Results of `run` against a reference in plain Python; saved cases; the JSON of `bench`; `source`."""
import json
import math
import os
import random
import sys

from cli_files import attention, decode, encode, fail, finish, need_device, read, run, scratch, write

DATA = sys.argv[2]
PATH = "cpu"  # the other one is compared with the reference by `clattn check`


def rows_of(values, shape, bshd):
    """values of a tensor -> {(b, h): [row, ...]}"""
    b_count, d = shape[0], shape[3]
    heads, tokens = (shape[2], shape[1]) if bshd else (shape[1], shape[2])

    def at(b, h, i):
        row = (b * tokens + i) * heads + h if bshd else (b * heads + h) * tokens + i
        return values[row * d:(row + 1) * d]

    return {(b, h): [at(b, h, i) for i in range(tokens)] for b in range(b_count) for h in range(heads)}


def compare(name, folder, dtype="F32", dims=(2, 4, 2, 9, 13, 20, 24), bshd=False, options=(), bias_shape=None,
            kinds=None, **semantics):
    """One run of random tensors; dims: B, Hq, Hkv, Nq, Nk, D, Dv."""
    b, hq, hkv, nq, nk, d, dv = dims
    kinds = kinds or [dtype] * 3
    rng = random.Random(name)
    tensors, values = {}, {}

    def add(tensor, kind, shape):
        raw = encode([rng.gauss(0, 1) for _ in range(math.prod(shape))], kind)
        tensors[tensor] = (kind, shape, raw)
        values[tensor] = decode(raw, kind)

    def shape(heads, tokens, dim):
        return [b, tokens, heads, dim] if bshd else [b, heads, tokens, dim]

    add("q", kinds[0], shape(hq, nq, d))
    add("k", kinds[1], shape(hkv, nk, d))
    add("v", kinds[2], shape(hkv, nk, dv))
    if bias_shape is not None:
        add("bias", "F32", bias_shape)
    source, target = os.path.join(folder, "in.st"), os.path.join(folder, "out.st")
    write(source, tensors)
    layout = ["--layout", "bshd"] if bshd else []
    result = run("run", source, "-o", target, "--lse", "--path", PATH, *layout, *options)
    if result.returncode != 0:
        return fail(f"{name}: {result.stderr}")
    outputs = read(target)
    q, k, v = (rows_of(values[t], tensors[t][1], bshd) for t in "qkv")
    o_type, o_shape, o_data = outputs["o"]
    lse_type, lse_shape, lse_data = outputs["lse"]
    if o_shape != shape(hq, nq, dv) or lse_shape != [b, hq, nq] or lse_type != "F32":
        return fail(f"{name}: shapes {o_shape} {lse_shape}")
    o = rows_of(decode(o_data, o_type), o_shape, bshd)
    lse = decode(lse_data, "F32")
    tolerance = {"F32": 2e-5, "F16": 4e-3, "BF16": 3e-2}[o_type]
    for (batch, head), got in o.items():
        def bias(i, j):
            full = [1] * (4 - len(bias_shape)) + list(bias_shape)
            index = 0
            for place, length in zip((batch, head, i, j), full):
                index = index * length + (place if length > 1 else 0)
            return values["bias"][index]

        key = (batch, head // (hq // hkv))
        want, want_lse = attention(q[batch, head], k[key], v[key], bias=bias if bias_shape is not None else None,
                                   **semantics)
        for i in range(nq):
            got_lse = lse[(batch * hq + head) * nq + i]
            if want_lse[i] == -math.inf:
                if got_lse != -math.inf or any(got[i]):
                    return fail(f"{name}: row {i} without keys: {got_lse} {got[i][:4]}")
                continue
            error = max(abs(x - y) for x, y in zip(got[i], want[i]))
            if not error <= tolerance or not abs(got_lse - want_lse[i]) <= 1e-4:
                return fail(f"{name}: batch {batch} head {head} row {i}: error {error}, lse {got_lse} {want_lse[i]}")


def results(folder):
    compare("plain", folder)
    compare("f16", folder, "F16")
    compare("bf16", folder, "BF16")
    compare("mixed", folder, kinds=["F32", "F16", "BF16"], options=["--out-dtype", "f16"])
    compare("bshd", folder, bshd=True, options=["--causal"], causal=True)
    compare("bottom right", folder, dims=(1, 2, 1, 9, 5, 8, 8), options=["--causal"], causal=True)
    compare("top left", folder, options=["--causal=top-left"], causal=True, offset=0)
    compare("offset", folder, options=["--causal", "--offset", "-3"], causal=True, offset=-3)
    compare("window", folder, options=["--window", "2,1"], window=(2, 1))
    compare("window top left", folder, options=["--causal=top-left", "--window", "2,-1"], causal=True, offset=0,
            window=(2, -1))
    compare("window offset", folder, options=["--window=-1,0", "--offset=2"], window=(-1, 0), offset=2)
    compare("scale", folder, options=["--scale", "-0.7"], scale=-0.7)
    compare("softcap", folder, options=["--softcap", "1.5"], softcap=1.5)
    for shape in [13], [1], [9, 13], [9, 1], [4, 1, 13], [2, 1, 1, 1], [2, 4, 9, 13], [1, 4, 1, 1]:
        compare(f"bias {shape}", folder, bias_shape=shape, options=["--softcap", "3"], softcap=3)
    compare("strides", folder, options=["--strides", "q=1000,231,25", "--strides", "k=777,300,21", "--offset-bytes",
                                        "v=12", "--offset-bytes", "o=20", "--strides", "o=5000,1200,33",
                                        "--strides", "lse=100,11,1"])
    compare("bias strides", folder, bias_shape=[9, 13], options=["--strides", "bias=0,0,50,3"])
    compare("one row", folder, dims=(1, 1, 1, 1, 1, 1, 1))


def empty(folder):
    source, target = os.path.join(folder, "in.st"), os.path.join(folder, "out.st")
    for b, nq, nk in (0, 3, 4), (1, 0, 4), (2, 3, 0), (0, 0, 0):
        write(source, {"q": ("F32", [b, 2, nq, 4], bytes(b * 2 * nq * 16)),
                       "k": ("F32", [b, 1, nk, 4], bytes(b * nk * 16)),
                       "v": ("F32", [b, 1, nk, 6], bytes(b * nk * 24))})
        result = run("run", source, "-o", target, "--lse", "--path", PATH)
        if result.returncode != 0:
            fail(f"empty {b} {nq} {nk}: {result.stderr}")
            continue
        outputs = read(target)
        if outputs["o"][1] != [b, 2, nq, 6] or any(outputs["o"][2]):
            fail(f"empty {b} {nq} {nk}: o {outputs['o'][:2]}")
        if any(x != -math.inf for x in decode(outputs["lse"][2], "F32")):
            fail(f"empty {b} {nq} {nk}: lse")


def saved_cases(folder):
    real = os.path.join(DATA, "minilm_layer0.safetensors")
    case, again = os.path.join(folder, "case.st"), os.path.join(folder, "again.st")
    first, second = os.path.join(folder, "first.st"), os.path.join(folder, "second.st")
    options = ["--causal=top-left", "--window", "40,-1", "--softcap=3", "--scale", "0.25", "--lse", "--path", PATH,
               "--out-dtype", "f32", "--strides", "k=50000,4000,35", "--offset-bytes", "q=6", "--local-memory", "32K"]
    if run("run", real, "-o", first, "--save-case", case, *options).returncode != 0:
        return fail("save-case")
    result = run("run", case, "--verify")
    if result.returncode != 0 or "passed" not in result.stdout:
        fail(f"a saved case alone: {result.stderr}")
    run("run", case, "-o", second, "--save-case", again)
    if read(first) != read(second):
        fail("a saved case gives other results")
    with open(case, "rb") as a, open(again, "rb") as b:
        if a.read() != b.read():
            fail("a saved case saves itself otherwise")
    for layer in 0, 3, 5:
        result = run("run", os.path.join(DATA, f"minilm_layer{layer}.safetensors"), "-o", first, "--verify",
                     "--path", PATH)
        if result.returncode != 0:
            fail(f"layer {layer}: {result.stderr}")
    result = run("run", real, "-o", first, "--repeat", "3", "--json", "--path", PATH)
    if result.returncode != 0 or json.loads(result.stdout)["time_ms_median"] <= 0:
        fail(f"--repeat: {result.stderr}")
    result = run("run", real, "-o", os.path.join(folder, "no", "out.st"), "--path", PATH)
    if result.returncode != 1 or len(result.stderr.splitlines()) != 1:
        fail(f"a folder that is not there: {result.returncode} {result.stderr}")
    # What is no regular file may not be replaced.
    if os.path.exists("/dev/null"):
        run("run", real, "-o", "/dev/null", "--path", PATH)
        if os.path.isfile("/dev/null"):
            fail("/dev/null was replaced")


def bench(folder):
    target = os.path.join(folder, "bench.json")
    result = run("bench", "--shape", "1,4,2,96,80,40:24", "--causal", "--path", PATH, "--naive", "--repeat", "3",
                 "--json", target)
    if result.returncode != 0 or result.stderr:
        return fail(f"bench: {result.stderr}")
    with open(target) as file:
        report = json.load(file)
    if list(report) != ["schema_version", "library", "device", "driver", "results"] or report["schema_version"] != 1:
        fail(f"bench: {list(report)}")
    keys = ["op", "dtype", "batch", "heads_q", "heads_kv", "q_len", "kv_len", "head_dim", "head_dim_v", "causal",
            "path", "time_ms_median", "time_ms_min", "flops", "bytes", "tflops", "gbps", "ceiling_fraction", "tiles",
            "splits", "peak_bytes", "features"]
    if [r["path"] for r in report["results"]] != [PATH, "naive"] or any(list(r) != keys for r in report["results"]):
        return fail(f"bench: {report['results']}")
    flash, naive = report["results"]
    pairs = sum(max(0, i + 80 - 96 + 1) for i in range(96))
    if flash["flops"] != 2 * 4 * pairs * 64 or naive["flops"] != flash["flops"]:
        fail(f"bench: flops {flash['flops']}")
    if flash["peak_bytes"] != 4 * (4 * 96 * 40 + 2 * 80 * 64 + 4 * 96 * 24):
        fail(f"bench: peak {flash['peak_bytes']}")
    if naive["peak_bytes"] - flash["peak_bytes"] != 4 * 4 * 96 * 80:
        fail(f"bench: naive peak {naive['peak_bytes']}")


def source():
    result = run("source", "--path", PATH, "--dtype", "f16", "--head-dim", "80", "--bias", "--causal")
    lines = result.stdout.splitlines()
    if result.returncode != 0 or not lines or not lines[0].startswith("// options: ") or "__kernel" not in result.stdout:
        fail(f"source: {result.stderr} {lines[:1]}")


def info():
    result = run("info", "--json")
    if result.returncode != 0:
        return fail(f"info: {result.stderr}")
    report = json.loads(result.stdout)
    if len(report["plans"]) != 6 or not any(d["chosen"] for d in report["devices"]):
        fail(f"info: {report}")


need_device()
if run("source", "--path", PATH).returncode == 2:
    print(f"the device does not offer path {PATH}")
    sys.exit(77)
with scratch() as place:
    results(place)
    empty(place)
    saved_cases(place)
    bench(place)
source()
info()
finish("cli_run")
