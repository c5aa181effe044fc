"""llama.cpp's grid of FLASH_ATTN_EXT (test_flash_attn_ext in tests/test-backend-ops.cpp, at commit 0054f92) with the
float types of K and V, and its error: the squared error over the sum of squares.

As there: q is f32 and o is f32 with heads and tokens exchanged; K and V are views of buffers twice as long (here NaN
beyond), or V the front of K's rows (576/512); the mask is f16 with values -1 to 1 and, over a fifth of it, blocks of 64
rows by 128 keys that are 0 or -inf, one for all heads; ALiBi multiplies it by a slope for each head; sinks are -10 to
10. Beyond that grid, the f32 and bf16 types of K and V that it has for head dims 64 and 72 are run for all, and head
dim 112 is added. Left out: what differs only in the precision asked for (all sums are float32), quantised types.
"""

from dataclasses import dataclass

import numpy as np

import reference
from attention import BFLOAT16, Refused
from conformance import Report, open_attention, parse_options, path_of
from data import Pool, sample_few_programs

TYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": BFLOAT16}
LIMIT = 5e-4
# Ours, where nothing is rounded to a storage type on the way: f32, and these paths. The limit above is for types of K
# and V that lose much; an error of one per cent in the scores is far below it.
LIMIT_F32 = 1e-10
F32_PATHS = ("cpu", "portable")
SAMPLE, SAMPLE_PROGRAMS = 640, 50

# These run on the portable path, which takes long to compile on a CPU.
PORTABLE = ((64, 64, "f32", "f32", True, True, 8.0, 0.0), (128, 128, "f16", "f16", True, False, 0.0, 10.0))

DIMS = ((40, 40), (64, 64), (72, 72), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128), (192, 192), (256, 256),
        (320, 256), (512, 512), (576, 512))


@dataclass(frozen=True)
class Case:
    dim_k: int
    dim_v: int
    heads_kv: int
    group: int  # query heads of a KV head
    batch: int
    keys: int
    rows: int
    mask: bool
    sinks: bool
    max_bias: float
    softcap: float
    type_k: str
    type_v: str
    permuted: bool  # tokens before heads in memory

    @property
    def program(self):
        """What a compiled program depends on."""
        return (self.dim_k, self.dim_v, self.type_k, self.type_v, *self.features)

    @property
    def features(self):
        return (self.mask, self.sinks, self.max_bias, self.softcap)

    def __str__(self):
        return "d=%d/%d,heads=%dx%d,batch=%d,kv=%d,rows=%d%s%s%s%s,%s/%s%s" % (
            self.dim_k, self.dim_v, self.heads_kv, self.group, self.batch, self.keys, self.rows,
            ",mask" * self.mask, ",sinks" * self.sinks, ",max_bias=%g" % self.max_bias if self.max_bias else "",
            ",softcap=%g" % self.softcap if self.softcap else "", self.type_k, self.type_v,
            ",permuted" * self.permuted)


def groups_of(dim_k, heads_kv):
    extra = {128: (12,), 192: (8, 16)}.get(dim_k, ())
    if heads_kv == 1:
        extra = {320: (32,), 576: (20,)}[dim_k]
    return (1, 4, *extra)


def grid():
    cases = [Case(64, 64, 4, 1, 1, 96, 2, True, False, 0.0, 0.0, "f16", "f32", False)]
    for dim_k, dim_v in DIMS:
        for mask, max_bias in (True, 0.0), (True, 8.0), (False, 0.0):
            for sinks in True, False:
                for softcap in (0.0, 10.0) if dim_k == 128 else (0.0,):
                    for heads_kv in (1, 4) if dim_k in (320, 576) else (4,):
                        for batch in (1, 3) if dim_k <= 64 else (1,):
                            for group in groups_of(dim_k, heads_kv):
                                for keys in (113, 512, 1024) if group == 1 else (512,):
                                    for rows in 1, 3, 32, 75:
                                        for kind in TYPES:
                                            for permuted in False, True:
                                                if permuted and (not mask or max_bias or softcap or keys != 512):
                                                    continue
                                                cases.append(Case(dim_k, dim_v, heads_kv, group, batch, keys, rows,
                                                                  mask, sinks, max_bias, softcap, kind, kind,
                                                                  permuted))
    return cases


PROGRAM_STRATA = {
    "dims, types, softcap": lambda p: (*p[:4], p[7]), "features": lambda p: p[4:],
    "dims and features": lambda p: p[:2] + p[4:], "types and features": lambda p: p[2:],
}
CASE_STRATA = {
    "program": lambda c: c.program, "group": lambda c: (c.heads_kv, c.group), "keys": lambda c: c.keys,
    "rows": lambda c: c.rows, "batch": lambda c: c.batch, "permuted": lambda c: c.permuted,
    "shape": lambda c: (c.keys, c.rows),
}


def tensor(pool, case, dtype, heads, tokens, dim, in_longer_buffer):
    """[batch, heads, tokens, dim] in the case's layout; if in_longer_buffer, in one with twice the rows (permuted:
    twice the heads)."""
    rows = (heads, tokens) if not case.permuted else (tokens, heads)
    values = pool.array((case.batch, *rows, dim), dtype)
    if in_longer_buffer:
        buffer = np.full((case.batch, rows[0], 2 * rows[1], dim), np.nan, dtype)
        buffer[:, :, :rows[1]] = values
        values = buffer[:, :, :rows[1]]
    return values.transpose(0, 2, 1, 3) if case.permuted else values


def mask_of(pool, case):
    """[batch, 1, rows, keys]"""
    values = pool.array((case.batch, 1, case.rows, case.keys), np.float16)
    for _ in range(int(0.2 * values.size / (128 * 64))):
        b, row, key = (int(pool.rng.integers(n)) for n in (case.batch, case.rows, case.keys))
        values[b, 0, row:row + 64, key:key + 128] = -np.inf if pool.rng.integers(2) else 0
    return values


def nmse_of(attention, path, pool, case):
    """The error of one case."""
    heads = case.heads_kv * case.group
    q = tensor(pool, case, np.float32, heads, case.rows, case.dim_k, False)
    k = tensor(pool, case, TYPES[case.type_k], case.heads_kv, case.keys, case.dim_k, True)
    if (case.dim_k, case.dim_v) == (576, 512) and case.type_k == case.type_v:
        v = k[..., :case.dim_v]
    else:
        v = tensor(pool, case, TYPES[case.type_v], case.heads_kv, case.keys, case.dim_v, True)
    extra = {}
    if case.mask:
        extra["bias"] = np.broadcast_to(mask_of(pool, case), (case.batch, heads, case.rows, case.keys))
    if case.sinks:
        extra["sinks"] = np.broadcast_to(pool.array((1, heads), np.float32) * np.float32(10), (case.batch, heads))
    expected = dict(extra)
    if case.max_bias:
        slopes = np.broadcast_to(reference.alibi_slopes(heads, case.max_bias), (case.batch, heads))
        extra["bias_head_scale"] = np.broadcast_to(attention.alibi_slopes(heads, case.max_bias), (case.batch, heads))
        expected["bias_head_scale"] = slopes
    o = np.full((case.batch, case.rows, heads, case.dim_v), np.nan, np.float32).transpose(0, 2, 1, 3)
    attention.forward(q, k, v, o, softcap=case.softcap, path=path, **extra)
    exact = reference.forward(q, k, v, softcap=case.softcap, **expected)
    return float(np.sum((o - exact) ** 2) / np.sum(exact ** 2))


def main():
    options = parse_options(__doc__.split(" (", maxsplit=1)[0])
    attention = open_attention(options)
    cases = [case for case in grid() if options.only in str(case)]
    whole = len(cases)
    if not options.all:
        cases = sample_few_programs(cases, options.cases or SAMPLE, SAMPLE_PROGRAMS, options.seed, PROGRAM_STRATA,
                                    CASE_STRATA, PORTABLE)
    report = Report("llama.cpp FLASH_ATTN_EXT, %s" % ("whole grid" if options.all else "sample of %d" % whole),
                    len(cases))
    pool = Pool(options.seed, "uniform")
    for case in cases:
        path = path_of(attention, options, case.program in PORTABLE)
        in_f32 = case.type_k == case.type_v == "f32" or path in F32_PATHS
        try:
            error = nmse_of(attention, path, pool, case)
            report.worst("NMSE, %s/%s" % (case.type_k, case.type_v), error)
            limit = LIMIT_F32 if in_f32 else LIMIT
            miss = None if error <= limit else "%s: NMSE %.3g, at most %.3g allowed" % (path, error, limit)
        except Refused as refused:
            miss = "%s: %s" % (path, refused)
        report.add(str(case), miss)
    report.finish()


if __name__ == "__main__":
    main()
