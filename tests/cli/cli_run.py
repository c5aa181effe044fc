#!/usr/bin/env python3
"""Results of `run` against a reference in plain Python; saved cases; the JSON of `bench`; `source`."""
import json
import math
import os
import random
import shutil
import sys

from cli_files import (attention, decode, encode, fail, finish, floats, integers, need_device, read, run, scratch,
                       write, zeros)

DATA = sys.argv[2]
PATH = "cpu"  # the other one is compared with the reference by `clattn check`
KERNELS = ["--path", PATH, "--phase=prefill"]  # those of decode: cli_serving.py


def rows_of(values, shape, bshd):
    """values of a tensor -> {(b, h): [row, ...]}"""
    b_count, d = shape[0], shape[3]
    heads, tokens = (shape[2], shape[1]) if bshd else (shape[1], shape[2])

    def at(b, h, i):
        row = (b * tokens + i) * heads + h if bshd else (b * heads + h) * tokens + i
        return values[row * d:(row + 1) * d]

    return {(b, h): [at(b, h, i) for i in range(tokens)] for b in range(b_count) for h in range(heads)}


def element(values, shape, place):
    """Of a tensor that is aligned right and repeated where it is 1 long."""
    index = 0
    for at, length in zip(place[len(place) - len(shape):], shape):
        index = index * length + (at if length > 1 else 0)
    return values[index]


def compare(name, folder, dtype="F32", dims=(2, 4, 2, 9, 13, 20, 24), bshd=False, options=(), bias_shape=None,
            kinds=None, extra=None, meaning=None, q_lens=None, kv_lens=None, **semantics):
    """One run of random tensors; dims: B, Hq, Hkv, Nq, Nk, D, Dv. `extra` are further tensors, and `meaning` gives
    what they are to attention() for a batch entry and a head."""
    b, hq, hkv, nq, nk, d, dv = dims
    kinds = kinds or [dtype] * 3
    rng = random.Random(name)
    tensors, values = dict(extra or {}), {}

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
    if q_lens:
        tensors["q_lens"] = integers(q_lens)
    if kv_lens:
        tensors["kv_lens"] = integers(kv_lens)
    source, target = os.path.join(folder, "in.st"), os.path.join(folder, "out.st")
    case, again = os.path.join(folder, "case.st"), os.path.join(folder, "again.st")
    write(source, tensors)
    layout = ["--layout", "bshd"] if bshd else []
    result = run("run", source, "-o", target, "--lse", *KERNELS, "--save-case", case, *layout, *options,
                 "--verify")
    if result.returncode != 0:
        return fail(f"{name}: {result.stderr}")
    result = run("run", case, "-o", again)
    if result.returncode != 0 or read(target) != read(again):
        return fail(f"{name}: its saved case: {result.stderr or 'another result'}")
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
        more = dict(semantics)
        if bias_shape is not None:
            more["bias"] = lambda i, j: element(values["bias"], bias_shape, (batch, head, i, j))
        if meaning:
            more.update(meaning(batch, head, dict(more)))
        key = (batch, head // (hq // hkv))
        rows = q_lens[batch] if q_lens else nq
        keys = kv_lens[batch] if kv_lens else nk
        want, want_lse = attention(q[batch, head][:rows], k[key][:keys], v[key][:keys], dv, **more)
        for i in range(nq):
            got_lse = lse[(batch * hq + head) * nq + i]
            if i >= rows:
                if got_lse != 0 or any(got[i]):
                    return fail(f"{name}: row {i} beyond the length {rows}: {got_lse} {got[i][:4]}")
                continue
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


def masks(folder):
    rng = random.Random("masks")
    for n, shape in enumerate(([13], [9, 1], [9, 13], [4, 1, 13], [2, 1, 1, 13], [2, 4, 9, 13])):
        kind, true = ("BOOL", 1) if n % 2 else ("U8", 200)
        values = [rng.choice([0, true]) for _ in range(math.prod(shape))]
        compare(f"mask {shape} {kind}", folder, extra={"mask": (kind, shape, bytes(values))},
                meaning=lambda b, h, _: {"allows": lambda i, p, j: element(values, shape, (b, h, i, j))})
    values = [0] * 13 + [1] * 13 * 8  # a row that sees nothing
    allows = {"allows": lambda i, p, j: values[i * 13 + j]}
    mask = {"mask": ("BOOL", [9, 13], bytes(values))}
    compare("mask with an empty row", folder, extra=mask, **allows)
    compare("mask strides", folder, extra=mask, **allows,
            options=["--strides", "mask=0,0,41,3", "--offset-bytes", "mask=5", "--causal=top-left"], causal=True, offset=0)


def by_head(folder):
    sinks, slopes, scales = [0.5, -2.0, 4.0, -math.inf], [0.5, 0.25, -0.125, 0.0], [1.0, 0.0, -0.5, 2.0]
    compare("sinks", folder, extra={"sinks": floats(sinks)}, meaning=lambda b, h, _: {"sink": sinks[h]})
    compare("sinks, rows without keys", folder, extra={"sinks": floats(sinks)}, options=["--window=1,1", "--offset=60"],
            window=(1, 1), offset=60, meaning=lambda b, h, _: {"sink": sinks[h]})
    compare("alibi", folder, extra={"alibi_slopes": floats(slopes)}, options=["--causal"], causal=True,
            meaning=lambda b, h, _: {"slope": slopes[h]})
    both = slopes + [2 * x for x in slopes]
    compare("alibi by batch", folder, extra={"alibi_slopes": floats(both, [2, 4])},
            meaning=lambda b, h, _: {"slope": both[4 * b + h]})
    compare("standard alibi", folder, options=["--alibi-max-bias=8"], meaning=lambda b, h, _: {"slope": 2.0 ** (-2 * (h + 1))})
    # Three heads: 2^(-m (h+1) / 2) for two of them, and 2^(-m/4) for the last one.
    compare("standard alibi, 3 heads", folder, dims=(1, 3, 1, 5, 7, 8, 8), options=["--alibi-max-bias", "4"],
            meaning=lambda b, h, _: {"slope": [0.25, 0.0625, 0.5][h]})
    compare("bias head scale", folder, bias_shape=[9, 13], extra={"bias_head_scale": floats(scales)},
            meaning=lambda b, h, so_far: {"bias": lambda i, j: scales[h] * so_far["bias"](i, j)})
    compare("base 2", folder, options=["--lse-base", "2"], base=2)
    compare("base e", folder, options=["--lse-base=e"])


def by_entry(folder):
    dims = (4, 4, 2, 9, 13, 20, 24)
    q_lens, kv_lens, offsets = [9, 0, 5, 1], [13, 7, 0, 6], [4, 0, -3, 12]
    compare("kv lens", folder, dims=dims, kv_lens=kv_lens)
    compare("kv lens, causal", folder, dims=dims, kv_lens=kv_lens, options=["--causal"], causal=True)
    compare("q lens", folder, dims=dims, q_lens=q_lens, options=["--causal"], causal=True)
    compare("lens, bshd", folder, "F16", dims=dims, q_lens=q_lens, kv_lens=kv_lens, bshd=True,
            options=["--causal=top-left"], causal=True, offset=0)
    compare("offsets", folder, dims=dims, extra={"offsets": integers(offsets)}, options=["--causal"], causal=True,
            meaning=lambda b, h, _: {"offset": offsets[b]})
    compare("offsets, lens, window", folder, dims=dims, extra={"offsets": integers(offsets)}, q_lens=q_lens,
            kv_lens=kv_lens, options=["--window", "3,2"], window=(3, 2), meaning=lambda b, h, _: {"offset": offsets[b]})


def key_tiles(folder):
    # Query tiles of 4 rows, key tiles of 5 keys; an empty list, entries out of order, and -1 and 9, which name none.
    count, index = [2, 0, 3], [2, 0, 1, 0, 1, 2, 9, -1, 1]

    def listed(i, j):
        return j // 5 in index[i // 4 * 3:i // 4 * 3 + count[i // 4]]

    compare("tiles", folder, options=["--tiles", "4,5"], allows=lambda i, p, j: listed(i, j),
            extra={"tiles_count": integers(count, [1, 1, 3]), "tiles_index": integers(index, [1, 1, 3, 3])})
    heads = [1, 1, 1, 1]
    which = [0, 1, 2, 0]
    compare("tiles by head", folder, options=["--tiles=100,5"], meaning=lambda b, h, _: {"allows": lambda i, p, j: j // 5 == which[h]},
            extra={"tiles_count": integers(heads, [1, 4, 1]), "tiles_index": integers(which, [1, 4, 1, 1])})


def mods(folder):
    compare("score_mod", folder, options=["--score-mod=score * 0.5f - values.y * (float)(key % 3)", "--user-values=0,0.75"],
            modify=lambda s, i, p, j: s * 0.5 - 0.75 * (j % 3))
    compare("mask_mod", folder, options=["--mask-mod=(query + key) % 2 == 0"], allows=lambda i, p, j: (i + j) % 2 == 0)
    table = [0.5, -1.0, 0.25]
    text = ("/* \"quoted\", 'single', \\backslash, \ttab, \u00e4 */\n"
            "const __global float *table = (const __global float *)user;\n"
            "if (key == 4)\n    return -INFINITY;\n"
            "return score + table[(position + key + batch) % 3] * (float)head_q;")
    compare("both, with a buffer", folder, extra={"user": floats(table)},
            options=["--causal", f"--score-mod={text}", "--mask-mod=head_kv == 0 || key != 2"], causal=True,
            meaning=lambda b, h, _: {"allows": lambda i, p, j: h // 2 == 0 or j != 2, "modify": lambda s, i, p, j:
                                     -math.inf if j == 4 else s + table[(p + j + b) % 3] * h})


def together(folder):
    rng = random.Random("together")
    q_lens, kv_lens, offsets = [9, 6], [13, 11], [4, -2]
    sinks, slopes, scales = [0.5, -2.0, 4.0, -1.0], [0.5, 0.25, -0.125, 0.0], [1.0, 0.0, -0.5, 2.0]
    mask = [rng.choice([0, 1, 1]) for _ in range(9 * 13)]
    index = [0, 2, 1, 0]
    extra = {"mask": ("BOOL", [9, 13], bytes(mask)), "sinks": floats(sinks), "alibi_slopes": floats(slopes),
             "bias_head_scale": floats(scales), "offsets": integers(offsets),
             "tiles_count": integers([2, 2], [1, 1, 2]), "tiles_index": integers(index, [1, 1, 2, 2])}
    compare("together", folder, extra=extra, bias_shape=[4, 1, 13], q_lens=q_lens, kv_lens=kv_lens, softcap=2, base=2,
            causal=True, window=(7, -1),
            options=["--softcap=2", "--causal", "--window=7,-1", "--lse-base=2", "--tiles=5,5"],
            meaning=lambda b, h, so_far: {
                "sink": sinks[h], "slope": slopes[h], "offset": offsets[b],
                "bias": lambda i, j: scales[h] * so_far["bias"](i, j),
                "allows": lambda i, p, j: mask[i * 13 + j] and j // 5 in index[i // 5 * 2:i // 5 * 2 + 2]})


def empty(folder):
    source, target = os.path.join(folder, "in.st"), os.path.join(folder, "out.st")
    for b, nq, nk in (0, 3, 4), (1, 0, 4), (2, 3, 0), (0, 0, 0):
        plain = {"q": zeros("F32", [b, 2, nq, 4]), "k": zeros("F32", [b, 1, nk, 4]), "v": zeros("F32", [b, 1, nk, 6])}
        tiles = (nq + 1) // 2
        extra = {"mask": zeros("BOOL", [nq, nk]), "bias": zeros("F32", [b, 1, 1, nk]), "sinks": floats([1.5, -2]),
                 "bias_head_scale": zeros("F32", [2]), "alibi_slopes": zeros("F32", [b, 2]), "q_lens": integers([nq] * b),
                 "kv_lens": integers([nk] * b), "offsets": integers([0] * b), "user": zeros("U8", [0]),
                 "tiles_count": zeros("I32", [1, 1, tiles]), "tiles_index": zeros("I32", [1, 1, tiles, 0])}
        for tensors, options, lse in ((plain, [], [-math.inf] * 2),
                                      ({**plain, **extra}, ["--tiles=2,2", "--mask-mod=key < 9"], [1.5, -2])):
            write(source, tensors)
            result = run("run", source, "-o", target, "--lse", "--verify", *KERNELS, *options)
            if result.returncode != 0:
                fail(f"empty {b} {nq} {nk}: {result.stderr}")
                continue
            outputs = read(target)
            if outputs["o"][1] != [b, 2, nq, 6] or any(outputs["o"][2]):
                fail(f"empty {b} {nq} {nk}: o {outputs['o'][:2]}")
            if decode(outputs["lse"][2], "F32") != [x for x in lse for _ in range(nq)] * b:
                fail(f"empty {b} {nq} {nk}: lse")


def saved_cases(folder):
    real = os.path.join(DATA, "minilm_layer0.safetensors")
    case, again = os.path.join(folder, "case.st"), os.path.join(folder, "again.st")
    first, second = os.path.join(folder, "first.st"), os.path.join(folder, "second.st")
    options = ["--causal=top-left", "--window", "40,-1", "--softcap=3", "--scale", "0.25", "--lse", *KERNELS,
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
                     *KERNELS)
        if result.returncode != 0:
            fail(f"layer {layer}: {result.stderr}")
    result = run("run", real, "-o", first, "--repeat", "3", "--json", *KERNELS)
    if result.returncode != 0 or json.loads(result.stdout)["time_ms_median"] <= 0:
        fail(f"--repeat: {result.stderr}")
    result = run("run", real, "-o", os.path.join(folder, "no", "out.st"), *KERNELS)
    if result.returncode != 1 or len(result.stderr.splitlines()) != 1:
        fail(f"a folder that is not there: {result.returncode} {result.stderr}")
    # What is no regular file may not be replaced.
    if os.path.exists("/dev/null"):
        run("run", real, "-o", "/dev/null", *KERNELS)
        if os.path.isfile("/dev/null"):
            fail("/dev/null was replaced")


def cache(folder):
    """Compiled programs go to --cache-dir; to the user's folder too, but for PoCL, which keeps them itself."""
    asked, home = os.path.join(folder, "asked"), os.path.join(folder, "home")
    os.mkdir(home)
    for options, kept in (["--cache-dir", asked], asked), ([], os.path.join(home, "clattn")), (["--no-cache"], None):
        before = len(os.listdir(home))
        result = run("bench", "--shape", "1,1,1,20,20,16", "--path", PATH, "--repeat", "1", *options,
                     environment={"XDG_CACHE_HOME": home})
        is_kept = kept is not None and os.path.isdir(kept) and len(os.listdir(kept)) > 0
        is_pocl = "Portable Computing Language" in run("info").stdout
        if result.returncode != 0 or is_kept != (kept == asked or (kept is not None and not is_pocl)):
            fail(f"cache {options}: {is_kept} {result.stderr}")
        if kept is None and len(os.listdir(home)) != before:
            fail(f"cache {options}: {os.listdir(home)}")


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
            "splits", "peak_bytes", "features", "plan_ms"]
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


def decode_bench(folder):
    """The bytes of K and V, what was asked for, and more than one shape in one run."""
    target = os.path.join(folder, "bench.json")
    result = run("bench", "--shape", "2,4,2,1,70,64", "--shape", "1,4,2,3,70,64", "--kv-dtype", "q8_0,f16", "--page-size",
                 "16", "--splits", "3", "--sets", "2", "--repeat", "1", "--path", PATH, "--json", target)
    if result.returncode != 0:
        return fail(f"bench, decode: {result.stderr}")
    with open(target) as file:
        first, second = json.load(file)["results"]
    asked = {"op": "decode", "dtype": "f16", "dtype_k": "q8_0", "dtype_v": "f16", "phase": "decode", "page_size": 16,
             "splits": 3, "sets": 2, "path": PATH, "features": ["kv-lens", "block-table"]}
    for name, value in asked.items():
        if first[name] != value or second[name] != value:
            fail(f"bench, decode: {name} is {first[name]} and {second[name]}, not {value}")
    if (first["batch"], first["q_len"], second["batch"], second["q_len"]) != (2, 1, 1, 3):
        fail("bench, decode: shapes")
    if first["bytes"] != 2 * 2 * 70 * (64 // 32 * 34 + 64 * 2) or second["bytes"] * 2 != first["bytes"]:
        fail(f"bench, decode: bytes {first['bytes']} and {second['bytes']}")
    if first["flops"] != 2 * 2 * 4 * 70 * 128 or min(first["latency_ms"], first["enqueue_us"], first["gbps"]) <= 0:
        fail(f"bench, decode: {first}")


def sparse_bench(folder):
    target = os.path.join(folder, "bench.json")

    def measure(*options):
        result = run("bench", "--shape", "1,2,1,300,500,16", "--path", PATH, "--repeat", "1", "--json", target, *options)
        if result.returncode != 0:
            fail(f"bench {options}: {result.stderr}")
            return {"flops": 0, "features": []}
        with open(target) as file:
            return json.load(file)["results"][0]

    def pairs(seen):
        return sum(1 for i in range(300) for j in range(500) if seen(i + 200, j))

    full = measure()
    if full["flops"] != 2 * 2 * 300 * 500 * 32 or full["features"]:
        fail(f"bench: {full['flops']} {full['features']}")
    window = measure("--window", "100,-1", "--causal")
    if window["flops"] != 2 * 2 * 32 * pairs(lambda p, j: p - 100 <= j <= p) or window["features"] != ["causal", "window"]:
        fail(f"bench --window: {window['flops']} {window['features']}")
    if measure("--block-sparse", "1")["flops"] != full["flops"]:
        fail("bench --block-sparse 1: something is missing")
    half = measure("--block-sparse", "0.5", "--causal")
    if not 0.3 < half["flops"] / measure("--causal")["flops"] < 0.8 or half["features"] != ["causal", "key-tiles"]:
        fail(f"bench --block-sparse 0.5: {half['flops']} {half['features']}")


def line_bench():
    """Line after line in one process; what is wrong with one does not end the others."""
    shape = "--shape 1,4,2,60,90,16 --phase prefill --seconds 0.01 --repeat 1 --path " + PATH
    lines = [f"{shape} --causal --layout bshd --softcap 3 --alibi-max-bias 8 --sinks --lens --lse", f"{shape} --casual",
             f"{shape} --seqlens 5,0,70 --causal --dtype f16", "", f"{shape} --json x", f"{shape} --naive",
             f"{shape} --naive --dtype f16", "--shape 2,2,1,1,64,16 --repeat 1 --path " + PATH]
    result = run("bench", "--lines", stdin="\n".join(lines))
    answers = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    if result.returncode != 0 or [a["status"] for a in answers] != [0, 2, 0, 2, 0, 0, 0]:
        return fail(f"bench --lines: {result.returncode} {result.stderr} {[a['status'] for a in answers]}")
    full, packed, naive, naive_f16, decode = [answers[i]["results"] for i in (0, 2, 4, 5, 6)]
    if full[0]["features"] != ["causal", "softcap", "alibi", "sinks", "q-lens", "kv-lens", "lse"]:
        fail(f"bench --lines: {full[0]['features']}")
    if full[0]["flops"] != 4 * 4 * 16 * sum(i + 31 for i in range(60)) or full[0]["plan_ms"] <= 0:
        fail(f"bench --lines: {full[0]}")
    if packed[0]["flops"] != 4 * 4 * 16 * (15 + 70 * 71 / 2) or (packed[0]["batch"], packed[0]["q_len"]) != (3, 70):
        fail(f"bench --seqlens: {packed[0]}")
    if packed[0]["features"] != ["causal", "cu-seqlens-q", "cu-seqlens-k"]:
        fail(f"bench --seqlens: {packed[0]['features']}")
    if [r["path"] for r in naive] != [PATH, "naive"] or [r["dtype"] for r in naive_f16] != ["f16", "f16"]:
        fail(f"bench --lines: naive {naive} {naive_f16}")
    if decode[0]["op"] != "decode":
        fail(f"bench --lines: decode {decode}")


def plot(folder):
    if not shutil.which("gnuplot"):
        return print("no gnuplot: no plot")
    target = os.path.join(folder, "rate's.svg")
    result = run("bench", "--shape", "1,2,1,65,80,16", "--shape", "1,2,1,130,160,16", "--path", PATH, "--naive", "--repeat",
                 "1", "--plot", target)
    if result.returncode != 0 or result.stderr:
        return fail(f"bench --plot: {result.returncode} {result.stderr}")
    with open(target) as file:
        picture = file.read()
    for word in "</svg>", f"{PATH} f32 D=16", "naive f32 D=16", "keys", "operations for a byte", "FLOP/s", "multiply-adds in f32":
        if word not in picture:
            fail(f"bench --plot: no '{word}'")
    return None


def source():
    result = run("source", "--path", PATH, "--dtype", "f16", "--head-dim", "80", "--bias", "--causal")
    lines = result.stdout.splitlines()
    if result.returncode != 0 or not lines or not lines[0].startswith("// options: ") or "__kernel" not in result.stdout:
        fail(f"source: {result.stderr} {lines[:1]}")
    everything = ["--" + name for name in (
        "causal", "window", "softcap", "bias=f16", "bias-head-scale", "mask", "alibi", "sinks", "q-lens", "kv-lens",
        "q-offsets", "key-tiles", "lse", "lse-base-2", "score-mod=score * 0.123f", "mask-mod=key != 456")]
    everything += ["--block-table", "--page-size=8", "--cu-seqlens-q", "--kv-dtype=q8_0,i8", "--status", "--batch-invariant"]
    result = run("source", "--path", PATH, *everything)
    if result.returncode != 0 or "0.123f" not in result.stdout or "key != 456" not in result.stdout:
        fail(f"source {everything}: {result.stderr}")


def info():
    result = run("info", "--json")
    if result.returncode != 0:
        return fail(f"info: {result.stderr}")
    report = json.loads(result.stdout)
    if [p["phase"] for p in report["plans"]] != ["prefill"] * 6 + ["decode"] * 6 or not any(d["chosen"] for d in report["devices"]):
        fail(f"info: {report}")


need_device()
if run("source", "--path", PATH).returncode == 2:
    print(f"the device does not offer path {PATH}")
    sys.exit(77)
with scratch() as place:
    results(place)
    masks(place)
    by_head(place)
    by_entry(place)
    key_tiles(place)
    mods(place)
    together(place)
    empty(place)
    saved_cases(place)
    cache(place)
    bench(place)
    decode_bench(place)
    sparse_bench(place)
    plot(place)
line_bench()
source()
info()
finish("cli_run")
