#!/usr/bin/env python3
"""Packed and paged sequences, caches of every type, append, RoPE and decode: `run` against plain Python."""
import math
import os
import random
import struct
import sys

from cli_files import (attention, decode, encode, fail, finish, floats, integers, need_device, read, run, scratch,
                       write)

PREFILL = ["--path=cpu", "--phase=prefill"]
DECODE = ["--path=cpu", "--phase=decode"]

# ---- Cache types, from the descriptions of clattn.h ------------------------------------------------

IQ4_NL = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
BLOCK_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "iq4_nl": 18}
FILE_TYPE = {"f32": "F32", "f16": "F16", "bf16": "BF16", "i8": "I8", "f8_e4m3": "F8_E4M3", "f8_e5m2": "F8_E5M2"}
# The largest error as a part of the row's or block's largest magnitude.
ERROR = {"f32": 2.0**-23, "f16": 2.0**-11, "bf16": 2.0**-8, "i8": 0.5 / 126, "f8_e4m3": 2.0**-4, "f8_e5m2": 2.0**-3,
         "q8_0": 0.0046, "q4_0": 0.127, "q4_1": 0.069, "q5_0": 0.064, "q5_1": 0.034, "iq4_nl": 0.113}


def f8(bits, exponent_bits, bias):
    fraction_bits = 7 - exponent_bits
    sign = -1.0 if bits & 0x80 else 1.0
    exponent, fraction = (bits & 0x7F) >> fraction_bits, bits & ((1 << fraction_bits) - 1)
    if exponent_bits == 4 and bits & 0x7F == 0x7F:
        return math.nan
    if exponent_bits == 5 and exponent == 31:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * fraction * 2.0**(1 - bias - fraction_bits)
    return sign * (1 + fraction / 2.0**fraction_bits) * 2.0**(exponent - bias)


def dequantise(raw, kind, scale=1.0):
    """The bytes of one row."""
    if kind in ("f32", "f16", "bf16"):
        return decode(raw, FILE_TYPE[kind])
    if kind == "i8":
        return [scale * x for x in struct.unpack(f"<{len(raw)}b", raw)]
    if kind.startswith("f8"):
        return [scale * (f8(x, 4, 7) if kind == "f8_e4m3" else f8(x, 5, 15)) for x in raw]
    out, step = [], BLOCK_BYTES[kind]
    for at in range(0, len(raw), step):
        block = raw[at:at + step]
        d = struct.unpack("<e", block[:2])[0]
        if kind == "q8_0":
            out += [d * x for x in struct.unpack("<32b", block[2:])]
            continue
        m = struct.unpack("<e", block[2:4])[0] if kind in ("q4_1", "q5_1") else 0.0
        fifth = struct.unpack("<I", block[-20:-16])[0] if kind.startswith("q5") else 0
        codes = [block[-16 + j % 16] >> (4 * (j // 16)) & 15 | (fifth >> j & 1) << 4 for j in range(32)]
        if kind == "iq4_nl":
            out += [d * IQ4_NL[c] for c in codes]
        else:
            out += [d * (c - {"q4_0": 8, "q5_0": 16}.get(kind, 0)) + m for c in codes]
    return out


def random_row(rng, kind, dim):
    """Bytes of a row as a cache may hold it."""
    if kind in ("f32", "f16", "bf16"):
        return encode([rng.gauss(0, 1) for _ in range(dim)], FILE_TYPE[kind])
    if kind == "i8":
        return struct.pack(f"<{dim}b", *(rng.randint(-127, 127) for _ in range(dim)))
    if kind.startswith("f8"):
        largest = 0x3F if kind == "f8_e4m3" else 0x3D  # below 2
        return bytes(rng.randint(0, largest) | rng.choice([0, 0x80]) for _ in range(dim))
    row, numbers = b"", (2 if kind in ("q4_1", "q5_1") else 1)
    for _ in range(dim // 32):
        unit = {"q8_0": 1 / 64, "iq4_nl": 1 / 64, "q5_0": 1 / 8, "q5_1": 1 / 16}.get(kind, 1 / 4)
        row += struct.pack("<e", unit * rng.uniform(0.5, 1.5))
        row += struct.pack("<e", rng.uniform(-2, 0)) if numbers == 2 else b""
        row += bytes(rng.randint(0, 255) for _ in range(BLOCK_BYTES[kind] - 2 * numbers))
    return row


def file_type(kind):
    return FILE_TYPE.get(kind, "U8")


def columns(kind, dim):
    return dim // 32 * BLOCK_BYTES[kind] if kind in BLOCK_BYTES else dim


def row_bytes(kind, dim):
    return columns(kind, dim) * {"f32": 4, "f16": 2, "bf16": 2}.get(kind, 1)


# ---- Where rows lie --------------------------------------------------------------------------------

class Places:
    """Rows of all entries: padded [B,H,N], packed [total,H] or pages [blocks,page,H]."""

    def __init__(self, form, heads, lengths, capacity=0, page=0, bshd=False, rng=None):
        self.form, self.heads, self.page, self.bshd = form, heads, page, bshd
        self.starts = [sum(lengths[:b]) for b in range(len(lengths) + 1)]
        self.capacity = capacity
        if form == "padded":
            self.shape = [len(lengths), capacity, heads] if bshd else [len(lengths), heads, capacity]
        elif form == "packed":
            self.shape = [self.starts[-1], heads]
        else:
            blocks = -(-capacity // page)
            needed = [-(-n // page) for n in lengths]
            ids = list(range(sum(needed) + 2))
            rng.shuffle(ids)
            self.table = []
            for n in needed:  # entries beyond the sequence name no page
                self.table.append([ids.pop() for _ in range(n)] + [-1] * (blocks - n))
            self.shape = [sum(needed) + 2, page, heads]

    def at(self, b, h, j):
        """The number of a row."""
        if self.form == "packed":
            return (self.starts[b] + j) * self.heads + h
        if self.form == "pages":
            return (self.table[b][j // self.page] * self.page + j % self.page) * self.heads + h
        return ((b * self.capacity + j) * self.heads + h if self.bshd else (b * self.heads + h) * self.capacity + j)

    def rows(self):
        return math.prod(self.shape)


def rotate(row, position, kind, dim, base, scale):
    out, half = list(row), dim // 2
    for c in range(half):
        x, y = (c, c + half) if kind == "neox" else (2 * c, 2 * c + 1)
        angle = position * scale * base**(-2 * c / dim)
        out[x] = row[x] * math.cos(angle) - row[y] * math.sin(angle)
        out[y] = row[y] * math.cos(angle) + row[x] * math.sin(angle)
    return out


# ---- One run ---------------------------------------------------------------------------------------

def serve(name, folder, path, queries, old, new=None, heads=(4, 2), dims=(32, 32), q_form="padded", kv_form="padded",
          page=8, kinds=("f32", "f32"), given=None, scales=(None, None), rope=None, base=10000.0, rope_scale=1.0,
          rotary=0, tables=False, bshd=False, options=(), strided=False, capacity=0, emit=False, tolerance=None,
          extra=None, v_in_k=False, **semantics):
    """`queries`, `old` and `new`: rows of each entry. `kinds`: of k and v in the file; `given`: what --kv-dtype
    makes of them. `scales`: "one", "head" or "token"."""
    rng = random.Random(name)
    batch, (hq, hkv), (d, dv) = len(queries), heads, dims
    appended = new or [0] * batch
    total = [a + n for a, n in zip(old, appended)]
    capacity = capacity or max(total)
    stored = given or kinds
    q_at = Places(q_form, hq, queries, max(queries), bshd=bshd)
    kv_at = Places(kv_form, hkv, total, capacity, page, bshd, rng)
    q_rows = [[rng.gauss(0, 1) for _ in range(d)] for _ in range(q_at.rows())]
    tensors = {"q": ("F32", q_at.shape + [d], encode(sum(q_rows, []), "F32"))}
    q_rows = [decode(encode(row, "F32"), "F32") for row in q_rows]
    caches = []
    for tensor, kind, dim, scale in ("k", kinds[0], d, scales[0]), ("v", kinds[1], dv, scales[1]):
        raw = [random_row(rng, kind, dim) for _ in range(kv_at.rows())]
        tensors[tensor] = (file_type(kind), kv_at.shape + [columns(kind, dim)], b"".join(raw))
        factor = [1.0] * len(raw)
        if scale == "one":
            tensors[tensor + "_scale"] = floats([0.015625], [1])
            factor = [0.015625] * len(raw)
        elif scale == "head":
            by_head = [0.5 + 0.25 * h for h in range(hkv)]
            tensors[tensor + "_scale"] = floats(by_head)
            factor = [by_head[i % hkv if kv_form != "padded" or bshd else i // capacity % hkv] for i in range(len(raw))]
        elif scale == "token":
            factor = [rng.choice([1 / 64, 1 / 32, 1 / 128]) for _ in raw]
            tensors[tensor + "_scale"] = floats(factor, kv_at.shape)
        caches.append([dequantise(r, kind, f) for r, f in zip(raw, factor)])
    if q_form == "packed":
        tensors["cu_seqlens_q"] = integers(q_at.starts)
    elif len(set(queries)) > 1:
        tensors["q_lens"] = integers(queries)
    if kv_form == "packed":
        tensors["cu_seqlens_k"] = integers(kv_at.starts)
    else:
        tensors["kv_lens"] = integers(old)
    if kv_form == "pages":
        tensors["block_table"] = integers(sum(kv_at.table, []), [batch, len(kv_at.table[0])])
    new_rows = []
    if new:
        new_at = Places(q_form, hkv, new, max(new), bshd=bshd)
        for tensor, dim in ("k_new", d), ("v_new", dv):
            rows = [decode(encode([rng.gauss(0, 1) for _ in range(dim)], "F32"), "F32") for _ in range(new_at.rows())]
            tensors[tensor] = ("F32", new_at.shape + [dim], encode(sum(rows, []), "F32"))
            new_rows.append(rows)
    if v_in_k:  # MLA: v is the first columns of k
        tensors.pop("v"), tensors.pop("v_new", None)
        caches[1] = [row[:dv] for row in caches[0]]
    tensors.update(extra or {})
    words = list(options) + ["--lse", "--verify"]
    if given:
        words.append(f"--kv-dtype={given[0]},{given[1]}")
    elif kinds[0] in BLOCK_BYTES or kinds[1] in BLOCK_BYTES:
        words.append(f"--kv-dtype={kinds[0]},{kinds[1]}")
    if v_in_k:
        words.append(f"--v-in-k={dv}")
    turned = rotary or d
    if rope:
        words += [f"--rope={rope}"] + ([f"--rotary-dim={rotary}"] if rotary else [])
        if tables:
            angle = [[p * base**(-2 * c / turned) for c in range(turned // 2)] for p in range(max(total))]
            for tensor, f in ("rope_cos", math.cos), ("rope_sin", math.sin):
                tensors[tensor] = floats([f(x) for row in angle for x in row], [max(total), turned // 2])
        else:
            words += ([f"--rope-base={base}"] if base != 10000 else []) + \
                     ([f"--rope-scale={rope_scale}"] if rope_scale != 1 else [])
    if bshd:
        words += ["--layout=bshd"]
    if strided:
        words += ["--offset-bytes=q=64", "--offset-bytes=o=12"]
        for tensor, rows in ("q", q_at), ("o", q_at), ("k", kv_at), ("v", kv_at):
            wide = (dv if tensor in "vo" else d) + 3
            outer = rows.shape[-2] * wide * rows.shape[-1] + 17
            token, head = (rows.shape[-1] * wide + 1, wide) if bshd or rows.form != "padded" else (wide, rows.shape[-1] * wide)
            words += [f"--strides={tensor}={outer},{head},{token}"]
    if emit or given or new:
        words.append("--emit-cache")
    source, target, again = (os.path.join(folder, x) for x in ("in.st", "out.st", "again.st"))
    case = os.path.join(folder, "case.st")
    write(source, tensors)
    result = run("run", source, "-o", target, "--save-case", case, *path, *words)
    if result.returncode != 0:
        return fail(f"{name}: {result.stderr}")
    result = run("run", case, "-o", again)
    if result.returncode != 0 or read(target) != read(again):
        return fail(f"{name}: its saved case: {result.stderr or 'another result'}")
    out = read(target)

    # What attention saw: the caches as they came out, or as they went in.
    if "--emit-cache" in words:
        for i, (tensor, dim) in enumerate((("k", d), ("v", dv))[:1 if v_in_k else 2]):
            kind = stored[i]
            if out[tensor][:2] != (file_type(kind), kv_at.shape + [columns(kind, dim)]):
                return fail(f"{name}: {tensor} is {out[tensor][:2]}")
            step = row_bytes(kind, dim)
            data = out[tensor][2]
            scale = decode(out[tensor + "_scale"][2], "F32") if tensor + "_scale" in out else [1.0]
            if scales[i] == "head":
                scale = [scale[r % hkv if kv_form != "padded" or bshd else r // capacity % hkv] for r in range(kv_at.rows())]
            after = [dequantise(data[r * step:r * step + step], kind, scale[r if len(scale) > 1 else 0])
                     for r in range(kv_at.rows())]
            want = [list(row) for row in caches[i]]
            for b in range(batch):
                for n in range(appended[b]):
                    for h in range(hkv):
                        row = new_rows[i][new_at.at(b, h, n)]
                        if rope and i == 0:
                            row = rotate(row, old[b] + n, rope, turned, base, rope_scale)
                        want[kv_at.at(b, h, old[b] + n)] = row
            for r, (x, y) in enumerate(zip(after, want)):
                most = ERROR[kind] * max(map(abs, y)) + 1e-5 if given or new else 0
                if max(abs(p - q) for p, q in zip(x, y)) > most:
                    return fail(f"{name}: row {r} of {tensor}: {x[:4]} {y[:4]}")
            caches[i] = after
            if v_in_k:
                caches[1] = [row[:dv] for row in after]
    o, lse = decode(out["o"][2], "F32"), decode(out["lse"][2], "F32")
    lse_shape = [hq, q_at.starts[-1]] if q_form == "packed" else [batch, hq, max(queries)]
    if out["o"][1] != q_at.shape + [dv] or out["lse"][1] != lse_shape:
        return fail(f"{name}: shapes {out['o'][1]} {out['lse'][1]}")
    tolerance = tolerance or 3e-5
    for b in range(batch):
        for h in range(hq):
            q = [q_rows[q_at.at(b, h, i)] for i in range(queries[b])]
            if rope:
                q = [rotate(row, old[b] + i, rope, turned, base, rope_scale) for i, row in enumerate(q)]
            keys = [kv_at.at(b, h // (hq // hkv), j) for j in range(total[b])]
            want, want_lse = attention(q, [caches[0][r] for r in keys], [caches[1][r] for r in keys], dv, **semantics)
            for i in range(queries[b]):
                row = q_at.at(b, h, i)
                got = o[row * dv:row * dv + dv]
                got_lse = lse[h * q_at.starts[-1] + q_at.starts[b] + i if q_form == "packed"
                              else (b * hq + h) * max(queries) + i]
                if want_lse[i] == -math.inf:
                    if got_lse != -math.inf or any(got):
                        return fail(f"{name}: a row without keys: {got_lse} {got[:4]}")
                    continue
                error = max(abs(x - y) for x, y in zip(got, want[i]))
                if not error <= tolerance or not abs(got_lse - want_lse[i]) <= 1e-4:
                    return fail(f"{name}: entry {b} head {h} row {i}: error {error}, lse {got_lse} {want_lse[i]}")


def packed(folder):
    queries, keys = [5, 0, 9, 1], [7, 3, 9, 0]
    serve("packed", folder, PREFILL, queries, keys, q_form="packed", kv_form="packed")
    serve("packed, causal", folder, PREFILL, queries, keys, q_form="packed", kv_form="packed", options=["--causal"],
          causal=True)
    serve("packed q, padded k", folder, PREFILL, queries, keys, q_form="packed", options=["--window=2,1"], window=(2, 1))
    serve("padded q, packed k", folder, PREFILL, queries, keys, kv_form="packed", strided=True)
    serve("packed, strided", folder, PREFILL, queries, keys, q_form="packed", kv_form="packed", strided=True, dims=(32, 20))


def paged(folder):
    for page in 1, 5, 8, 16:
        serve(f"pages of {page}", folder, PREFILL, [3, 1, 4], [9, 17, 1], kv_form="pages", page=page, options=["--causal"],
              causal=True)
    serve("pages, packed q", folder, PREFILL, [3, 0, 4], [9, 17, 0], q_form="packed", kv_form="pages", page=4, strided=True)
    bias = [random.Random("bias").gauss(0, 1) for _ in range(17)]
    serve("pages, bias of the longest", folder, PREFILL, [3, 1, 4], [9, 17, 1], kv_form="pages", page=8,
          extra={"bias": floats(bias)}, bias=lambda i, j: bias[j])


def types(folder):
    for kind in BLOCK_BYTES:
        serve(f"{kind} given", folder, PREFILL, [3], [20], kinds=(kind, kind), dims=(64, 32))
    serve("i8 given", folder, PREFILL, [3, 2], [20, 11], kinds=("i8", "i8"), scales=("token", "one"))
    serve("i8 given, bshd", folder, PREFILL, [3, 2], [20, 11], kinds=("i8", "i8"), scales=("token", "token"), bshd=True)
    serve("f8 given", folder, PREFILL, [3, 2], [20, 11], kinds=("f8_e4m3", "f8_e5m2"), scales=("head", None))
    serve("mixed pages", folder, PREFILL, [3, 2], [20, 11], kinds=("q8_0", "i8"), scales=(None, "token"), kv_form="pages")
    serve("mixed packed", folder, PREFILL, [3, 2], [20, 11], kinds=("f16", "f8_e4m3"), scales=(None, "token"), q_form="packed",
          kv_form="packed")
    for pair in ("q8_0", "q4_0"), ("i8", "i8"), ("f8_e4m3", "f8_e5m2"), ("f16", "iq4_nl"):
        serve(f"{pair} made", folder, PREFILL, [3], [20], given=pair)


def append(folder):
    serve("append", folder, PREFILL, [2, 2], [5, 9], new=[2, 2], capacity=12, options=["--causal"], causal=True)
    serve("append, packed", folder, PREFILL, [2, 0, 5], [5, 9, 0], new=[2, 0, 5], capacity=12, q_form="packed")
    serve("append to pages, rope", folder, PREFILL, [2, 1, 5], [5, 9, 0], new=[2, 1, 5], q_form="packed", kv_form="pages",
          page=4, rope="neox", options=["--causal"], causal=True)
    serve("append, interleaved rope, q8_0", folder, PREFILL, [2, 3], [5, 9], new=[2, 3], given=("q8_0", "q8_0"), capacity=16,
          rope="interleaved", rotary=16, base=500.0, rope_scale=0.5)
    serve("append, tables, bshd", folder, PREFILL, [2, 2], [5, 9], new=[2, 2], capacity=11, bshd=True, rope="neox",
          tables=True, strided=True)
    serve("append, i8", folder, PREFILL, [1, 1], [5, 9], new=[1, 1], kinds=("i8", "i8"), scales=("token", "token"),
          capacity=10, kv_form="pages", page=3)


def in_k(folder):
    serve("v in k", folder, PREFILL, [3, 2], [20, 11], heads=(4, 1), dims=(48, 32), v_in_k=True, options=["--causal"], causal=True)
    serve("v in k, pages, append", folder, PREFILL, [3, 2], [20, 11], new=[3, 2], heads=(4, 1), dims=(64, 32), v_in_k=True,
          q_form="packed", kv_form="pages", page=4, given=("q8_0", "q8_0"), rope="neox", rotary=16)


def empty(folder):
    """Nothing to do, or no keys: results of the right shape all the same."""
    source, target = os.path.join(folder, "in.st"), os.path.join(folder, "out.st")

    def attempt(name, tensors, shapes, options=()):
        write(source, tensors)
        result = run("run", source, "-o", target, "--lse", "--verify", *PREFILL, *options)
        if result.returncode != 0:
            return fail(f"{name}: {result.stderr}")
        out = read(target)
        if [out["o"][1], out["lse"][1]] != list(shapes) or any(out["o"][2]):
            fail(f"{name}: {out['o'][:2]} {out['lse'][:2]}")
        if any(x != -math.inf for x in decode(out["lse"][2], "F32")):
            fail(f"{name}: lse")

    def f32(*shape):
        return "F32", list(shape), bytes(4 * math.prod(shape))

    attempt("no sequences", {"q": f32(0, 2, 4), "k": f32(0, 1, 4), "v": f32(0, 1, 4), "cu_seqlens_q": integers([0]),
                             "cu_seqlens_k": integers([0])}, ([0, 2, 4], [2, 0]))
    attempt("empty sequences", {"q": f32(0, 2, 4), "k": f32(0, 1, 4), "v": f32(0, 1, 4), "cu_seqlens_q": integers([0, 0, 0]),
                                "cu_seqlens_k": integers([0, 0, 0])}, ([0, 2, 4], [2, 0]))
    attempt("no keys", {"q": f32(3, 2, 4), "k": f32(0, 1, 4), "v": f32(0, 1, 4), "cu_seqlens_q": integers([0, 2, 3]),
                        "cu_seqlens_k": integers([0, 0, 0])}, ([3, 2, 4], [2, 3]))
    attempt("no pages", {"q": f32(2, 2, 3, 4), "k": f32(0, 8, 1, 4), "v": f32(0, 8, 1, 4), "kv_lens": integers([0, 0]),
                         "block_table": integers([], [2, 0])}, ([2, 2, 3, 4], [2, 2, 3]))
    attempt("unused pages", {"q": f32(2, 2, 3, 4), "k": f32(1, 8, 1, 4), "v": f32(1, 8, 1, 4), "kv_lens": integers([0, 0]),
                             "block_table": integers([-1, 7], [2, 1])}, ([2, 2, 3, 4], [2, 2, 3]))
    attempt("nothing new", {"q": f32(2, 2, 3, 4), "k": f32(2, 1, 8, 4), "v": f32(2, 1, 8, 4), "kv_lens": integers([0, 0]),
                            "k_new": f32(2, 1, 0, 4), "v_new": f32(2, 1, 0, 4)}, ([2, 2, 3, 4], [2, 2, 3]))


def decode_kernels(folder):
    serve("decode", folder, DECODE, [1, 1], [70, 33], options=["--splits=3"])
    serve("decode of 8, causal", folder, DECODE, [8, 3], [70, 33], heads=(6, 2), options=["--causal"], causal=True)
    serve("decode, everything", folder, DECODE, [2, 1, 3], [5, 40, 0], new=[2, 1, 3], q_form="packed", kv_form="pages", page=8,
          given=("q8_0", "q8_0"), rope="neox", options=["--causal", "--splits=2"], causal=True)


need_device()
with scratch() as place:
    for part in packed, paged, types, append, in_k, empty, decode_kernels:
        part(place)
finish("cli_serving")
