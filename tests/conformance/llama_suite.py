"""llama.cpp's grid of FLASH_ATTN_EXT (test_flash_attn_ext in tests/test-backend-ops.cpp, at commit 0054f92) and its
error: the squared error over the sum of squares.

As there: q is f32 and o is f32 with heads and tokens exchanged; K and V are views of buffers twice as long (here NaN
beyond), or V the front of K's rows (576/512); the mask is f16 with values -1 to 1 and, over a fifth of it, blocks of 64
rows by 128 keys that are 0 or -inf, one for all heads; ALiBi multiplies it by a slope for each head; sinks are -10 to
10. Beyond that grid, the f32 and bf16 types of K and V that it has for head dims 64 and 72 are run for all, and head
dim 112 is added. Left out: what differs only in the precision asked for (all sums are float32).

A second grid has all the types that ggml has for K and V, and a few that differ, in prefill and decode kernels, whole
or in pages of 16 keys: of the first grid, the head dims that blocks of 32 allow. Bytes of quantised types come from
the package gguf; results are held against attention over the values that it reads back from them.
"""

from dataclasses import dataclass, replace

import numpy as np

import cache_types
import reference
from attention import BFLOAT16, Refused
from conformance import Report, open_attention, parse_options, path_of
from data import Pool, sample_few_programs

FLOATS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": BFLOAT16}
TYPES = {**FLOATS, **cache_types.BLOCKS}
MIXED = (("q8_0", "q4_0"), ("f16", "q8_0"), ("q4_0", "f32"), ("q5_1", "iq4_nl"))
LIMIT = 5e-4
# Ours, where nothing is rounded to a storage type on the way: f32, and these paths. The limit above is for types of K
# and V that lose much; an error of one per cent in the scores is far below it.
LIMIT_F32 = 1e-10
F32_PATHS = ("cpu", "portable")
SAMPLE, SAMPLE_PROGRAMS = 120, 10
SAMPLE_CACHES, SAMPLE_CACHES_PROGRAMS = 24, 6
PAGE = 16

# These run on the portable path, which takes long to compile on a CPU.
PORTABLE = ((64, 64, "f32", "f32", "prefill", False, True, True, 8.0, 0.0),
            (128, 128, "f16", "f16", "prefill", False, True, False, 0.0, 10.0))
PORTABLE_CACHES = ((64, 64, "q4_0", "q4_0", "prefill", True, True, True, 8.0, 0.0),
                   (128, 128, "q8_0", "q8_0", "decode", True, True, False, 0.0, 10.0),
                   (96, 96, "q5_1", "iq4_nl", "decode", False, True, True, 0.0, 0.0))

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
    phase: str = "prefill"
    paged: bool = False

    @property
    def program(self):
        """What a compiled program depends on."""
        return (self.dim_k, self.dim_v, self.type_k, self.type_v, self.phase, self.paged, *self.features)

    @property
    def features(self):
        return (self.mask, self.sinks, self.max_bias, self.softcap)

    def __str__(self):
        return "d=%d/%d,heads=%dx%d,batch=%d,kv=%d,rows=%d%s%s%s%s,%s/%s%s%s%s" % (
            self.dim_k, self.dim_v, self.heads_kv, self.group, self.batch, self.keys, self.rows,
            ",mask" * self.mask, ",sinks" * self.sinks, ",max_bias=%g" % self.max_bias if self.max_bias else "",
            ",softcap=%g" % self.softcap if self.softcap else "", self.type_k, self.type_v,
            ",permuted" * self.permuted, ",decode" if self.phase == "decode" else "", ",paged" * self.paged)


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
                                        for kind in FLOATS:
                                            for permuted in False, True:
                                                if permuted and (not mask or max_bias or softcap or keys != 512):
                                                    continue
                                                cases.append(Case(dim_k, dim_v, heads_kv, group, batch, keys, rows,
                                                                  mask, sinks, max_bias, softcap, kind, kind,
                                                                  permuted))
    return cases


def cache_grid():
    """The shapes and features of the first grid with other types, phases and pages."""
    types = [(kind, kind) for kind in TYPES] + list(MIXED)
    cases = []
    for case in grid():
        if case.type_k != "f16" or case.dim_k % cache_types.BLOCK or case.dim_v % cache_types.BLOCK:
            continue
        for type_k, type_v in types:
            for phase in "prefill", "decode":
                for paged in False, True:
                    if (phase, type_k, type_v, paged) in (("prefill", kind, kind, False) for kind in FLOATS):
                        continue  # the first grid has it
                    cases.append(replace(case, type_k=type_k, type_v=type_v, phase=phase, paged=paged))
    return cases


PROGRAM_STRATA = {
    "dims, types, softcap": lambda p: (*p[:4], p[9]), "features": lambda p: p[6:],
    "dims and features": lambda p: p[:2] + p[6:], "types and features": lambda p: p[2:4] + p[6:],
}
CACHE_PROGRAM_STRATA = {
    "types": lambda p: p[2:4], "phase and pages": lambda p: p[4:6], "types, phase, pages": lambda p: p[2:6],
    "dims": lambda p: p[:2], "features": lambda p: p[6:],
}
CASE_STRATA = {
    "program": lambda c: c.program, "group": lambda c: (c.heads_kv, c.group), "keys": lambda c: c.keys,
    "rows": lambda c: c.rows, "batch": lambda c: c.batch, "permuted": lambda c: c.permuted,
    "shape": lambda c: (c.keys, c.rows),
}


def stored(pool, shape, kind):
    """A new array of values -1 to 1 in a type of K and V."""
    if kind in FLOATS:
        return pool.array(shape, TYPES[kind])
    return cache_types.store(pool.rng, kind, pool.array(shape, np.float32))


def all_ones(shape, dtype):
    """An array of nothing but set bits: NaN, or blocks whose scale is NaN."""
    return np.full((*shape, dtype.itemsize), 0xFF, np.uint8).view(dtype).reshape(shape)


def tensor(pool, case, kind, heads, tokens, dim, in_longer_buffer):
    """[batch, heads, tokens, dim] in the case's layout; if in_longer_buffer, in one with twice the rows (permuted:
    twice the heads)."""
    rows = (heads, tokens) if not case.permuted else (tokens, heads)
    values = stored(pool, (case.batch, *rows, dim), kind)
    if in_longer_buffer:
        buffer = all_ones((case.batch, rows[0], 2 * rows[1], values.shape[3]), values.dtype)
        buffer[:, :, :rows[1]] = values
        values = buffer[:, :, :rows[1]]
    return values.transpose(0, 2, 1, 3) if case.permuted else values


def in_pages(array, table):
    """[batch, heads, tokens, dim] as [pages, heads, PAGE, dim], tokens before heads in memory. Page table[b, n] holds
    tokens n * PAGE on of entry b; the rest of the last, and pages that no entry has, are NaN."""
    batch, heads, tokens, dim = array.shape
    pool = all_ones((int(table.max()) + 2, PAGE, heads, dim), array.dtype)
    for b in range(batch):
        for n, page in enumerate(table[b]):
            part = array[b, :, n * PAGE:(n + 1) * PAGE].transpose(1, 0, 2)
            pool[page, :part.shape[0]] = part
    return pool.transpose(0, 2, 1, 3)


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
    q = tensor(pool, case, "f32", heads, case.rows, case.dim_k, False)
    k = tensor(pool, case, case.type_k, case.heads_kv, case.keys, case.dim_k, True)
    if (case.dim_k, case.dim_v) == (576, 512) and case.type_k == case.type_v:
        v = k[..., :case.dim_v // cache_types.elements_of(k.dtype)]
    else:
        v = tensor(pool, case, case.type_v, case.heads_kv, case.keys, case.dim_v, True)
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
    exact = reference.forward(q, cache_types.load(k), cache_types.load(v), softcap=case.softcap, **expected)
    if case.paged:
        pages = -(-case.keys // PAGE)
        table = pool.rng.permutation(case.batch * pages).astype(np.int32).reshape(case.batch, pages)
        extra.update(block_table=table, kv_lens=np.full(case.batch, case.keys, np.int32), kv_len=case.keys)
        k, v = in_pages(k, table), in_pages(v, table)
    attention.forward(q, k, v, o, softcap=case.softcap, path=path, phase=case.phase, **extra)
    return float(np.sum((o - exact) ** 2) / np.sum(exact ** 2))


def whole_or_sample(options):
    """(cases, how many there are to choose from)"""
    grids = ((grid(), options.cases or SAMPLE, SAMPLE_PROGRAMS, PROGRAM_STRATA, PORTABLE),
             (cache_grid(), options.cases or SAMPLE_CACHES, SAMPLE_CACHES_PROGRAMS, CACHE_PROGRAM_STRATA,
              PORTABLE_CACHES))
    chosen, whole = [], 0
    for cases, count, programs, strata, forced in grids:
        cases = [case for case in cases if options.only in str(case)]
        whole += len(cases)
        chosen += cases if options.all else sample_few_programs(cases, count, programs, options.seed, strata,
                                                                CASE_STRATA, forced)
    return chosen, whole


def main():
    options = parse_options(__doc__.split(" (", maxsplit=1)[0])
    attention = open_attention(options)
    cases, whole = whole_or_sample(options)
    report = Report("llama.cpp FLASH_ATTN_EXT, %s" % ("whole grid" if options.all else "sample of %d" % whole),
                    len(cases))
    pool = Pool(options.seed, "uniform")
    for case in cases:
        path = path_of(attention, options, case.program in PORTABLE + PORTABLE_CACHES,
                       **({"phase": case.phase} if case.phase != "prefill" else {}))
        in_f32 = case.type_k == case.type_v == "f32" or path in F32_PATHS
        try:
            error = nmse_of(attention, path, pool, case)
            report.worst("NMSE, %s/%s, %s" % (case.type_k, case.type_v, case.phase), error)
            limit = LIMIT_F32 if in_f32 else LIMIT
            miss = None if error <= limit else "%s: NMSE %.3g, at most %.3g allowed" % (path, error, limit)
        except Refused as refused:
            miss = "%s: %s" % (path, refused)
        report.add(str(case), miss)
    report.finish()


if __name__ == "__main__":
    main()
