"""FlashAttention's tests of packed sequences, paged caches and decoding (tests/test_flash_attn.py of
Dao-AILab/flash-attention at commit 0251105: test_flash_attn_varlen_output, test_flash_attn_varlen_causal,
test_flash_attn_kvcache), by its rule: the largest error against float32 is at most twice that of the same computation
by whole matrices in the storage type, and 1e-5.

Varlen: sequences packed one after the other, up to 20 tokens shorter than the named lengths, one of them empty in every
other case; K and V packed likewise or in pages. Cache: new tokens are appended to caches of which each entry holds
some number of keys, rotated at their places (the first 0, 1/2 or all columns; as neighbours or as halves, by tables of
random angles), then attention over the whole by decode kernels; caches are whole or in pages, in random order, NaN
where no key is. Pages have 16 or 256 tokens. The caches and rotated q must be right to the last place of the storage
type; the error of attention is then taken over them as they are. Rotated cases are causal or local, or have one
query: otherwise the original rotates all queries to one place. The batch is smaller than there, keys end at 2048.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

import reference
from attention import Refused
from conformance import Report, open_attention, parse_options, path_of
from data import Pool, sample_few_programs
from flash_suite import DIMS, ROUND, SOFTCAP, TYPES, UNTOUCHED

PAGES = (0, 16, 256)
VARLEN_LENGTHS = ((1, 147), (113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256), (1024, 1024),
                  (1023, 1024), (1024, 1023))
CACHE_LENGTHS = ((1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048), (1, 2048), (16, 1024))
CACHE_DIMS = (32, 59, 64, 80, 96, 128, 160, 256)
SAMPLE, SAMPLE_PROGRAMS = 100, 14

# These run on the portable path, which takes long to compile on a CPU.
PORTABLE = ((64, "f16", True, 16, "decode"), (128, "bf16", False, 0, "prefill"))


@dataclass(frozen=True)
class Case:
    phase: str  # prefill: varlen; decode: cache
    dim: int
    rows: int
    keys: int
    heads_q: int
    heads_kv: int
    causal: bool
    local: bool
    alibi: bool
    softcap: bool
    page: int
    kind: str
    splits: int = 0
    new: bool = False  # keys are appended
    rope: str = "none"
    rotary: float = 0.0  # share of the columns

    @property
    def program(self):
        """What a compiled program depends on."""
        return (self.dim, self.kind, self.alibi or self.softcap, self.page, self.phase)

    @property
    def rotary_dim(self):
        return int(self.rotary * self.dim) // 16 * 16

    def __str__(self):
        return "%s,d=%d,%dx%d,heads=%d/%d%s%s%s%s%s%s%s%s,%s" % (
            {"prefill": "varlen", "decode": "cache"}[self.phase], self.dim, self.rows, self.keys, self.heads_q,
            self.heads_kv, ",causal" * self.causal, ",local" * self.local, ",alibi" * self.alibi,
            ",softcap" * self.softcap, ",page=%d" % self.page if self.page else "",
            ",splits=%d" % self.splits if self.splits else "", ",new" * self.new,
            ",%s=%g" % (self.rope, self.rotary) if self.rotary else "", self.kind)


def varlen_grid():
    masks = [(causal, local) for causal in (False, True) for local in (False, True)]
    return [Case("prefill", dim, rows, keys, heads, heads_kv, causal, local, alibi, softcap, page, kind)
            for dim in DIMS for kind in TYPES for rows, keys in VARLEN_LENGTHS for causal, local in masks
            for alibi in (False, True) for softcap in (False, True) for page in PAGES
            for heads in (4 if softcap else 6,) for heads_kv in (heads, 2, 1)]


def cache_grid():
    cases = []
    masks = [(causal, local) for causal in (False, True) for local in (False, True)]
    ropes = [("none", 0.0)] + [(rope, share) for rope in ("neox", "interleaved") for share in (0.5, 1.0)]
    for dim in CACHE_DIMS:
        for kind in TYPES:
            for rows, keys in CACHE_LENGTHS:
                for causal, local in masks:
                    for new, rope, share in [(False, "none", 0.0)] + [(True, *rope) for rope in ropes]:
                        if share and (rows > 1 and not causal and not local or int(share * dim) < 16):
                            continue
                        for alibi in False, True:
                            for splits in 0, 1:
                                for page in PAGES:
                                    for heads_kv in 6, 3, 1:
                                        cases.append(Case("decode", dim, rows, keys, 6, heads_kv, causal, local, alibi,
                                                          False, page, kind, splits, new, rope, share))
    return cases


PROGRAM_STRATA = {
    "phase, page": lambda p: p[3:], "dim": lambda p: p[0], "type": lambda p: p[1], "full": lambda p: p[2],
    "full, phase": lambda p: (p[2], p[4]),
}
CASE_STRATA = {
    "program": lambda c: c.program, "lengths": lambda c: (c.phase, c.rows, c.keys),
    "rotary": lambda c: (c.new, c.rope, c.rotary), "masks": lambda c: (c.phase, c.causal, c.local),
    "heads": lambda c: ("mha" if c.heads_q == c.heads_kv else "mqa" if c.heads_kv == 1 else "gqa"),
    "extras": lambda c: (c.alibi, c.softcap), "splits": lambda c: c.splits, "page": lambda c: c.page,
}


def call_of(pool, case, batch):
    """What all calls of the case have, and slopes or None."""
    call = {"causal": case.causal, "softcap": SOFTCAP if case.softcap else 0.0}
    if case.local:
        call["window"] = tuple(int(n) for n in pool.rng.integers(0, case.keys, 2))
    slopes = pool.rng.uniform(0, 0.3, (batch, case.heads_q)).astype(np.float32) if case.alibi else None
    return call, slopes


class Judge:
    """The rule, over the sequences of a case."""

    def __init__(self, case):
        self.round, self.error, self.naive = ROUND[case.kind], 0.0, 0.0

    def add(self, got, q, k, v, **call):
        """[heads, tokens, dim] each: one sequence."""
        q, k, v = (array[None] for array in (q, k, v))
        exact = self.round(reference.forward(q, k, v, np.float32, **call))
        naive = reference.forward(q, k, v, np.float32, self.round, **call)
        if got.size:
            self.error = max(self.error, float(np.abs(got.astype(np.float32) - exact[0]).max()))
            self.naive = max(self.naive, float(np.abs(naive - exact).max()))

    def miss(self, report, case, path):
        allowed = 2 * self.naive + 1e-5
        report.worst("error, in that of the computation by matrices, %s, %s" % (case.phase, case.kind),
                     2 * self.error / allowed)
        if self.error <= allowed:
            return None
        return "%s: error %.3g, at most %.3g allowed" % (path, self.error, allowed)


def paged(pool, case, lens, dtype):
    """(an empty cache as [pages, heads, tokens, dim], table): in pages if the case has them, else a page for each
    entry and no table. Everything is NaN. Entries of the table beyond an entry's keys name no page at all."""
    batch, page = len(lens), case.page or max(case.keys, 1)
    table = None
    pages = batch
    if case.page:
        width = -(-case.keys // page)
        used = [-(-int(n) // page) for n in lens]
        pages = sum(used) + 1
        order = iter(pool.rng.permutation(pages).astype(np.int32))
        table = np.full((batch, max(width, 1)), 1 << 30, np.int32)
        for b in range(batch):
            table[b, :used[b]] = [next(order) for _ in range(used[b])]
    cache = np.full((pages, page, case.heads_kv, case.dim), np.nan, dtype).transpose(0, 2, 1, 3)
    return cache, table


def same_layout(cache):
    """A copy whose tokens stand before heads in memory."""
    return cache.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)


def keys_of(cache, table, b, first, last):
    """[heads, last - first, dim]: keys first .. last - 1 of entry b, a copy."""
    if table is None:
        return cache[b, :, first:last].copy()
    page = cache.shape[2]
    return np.stack([cache[table[b, t // page], :, t % page] for t in range(first, last)], axis=1) \
        if last > first else cache[:0, :, 0].transpose(1, 0, 2)


def put_keys(cache, table, b, first, values):
    """values: [heads, tokens, dim]"""
    if table is None:
        cache[b, :, first:first + values.shape[1]] = values
        return
    page = cache.shape[2]
    for t in range(values.shape[1]):
        cache[table[b, (first + t) // page], :, (first + t) % page] = values[:, t]


def varlen_miss(attention, path, pool, case, report):
    dtype, batch = TYPES[case.kind], 3
    q_lens, kv_lens = ([int(n) for n in pool.rng.integers(max(1, most - 20), most + 1, batch)]
                       for most in (case.rows, case.keys))
    if pool.rng.integers(2):
        empty = int(pool.rng.integers(batch))
        q_lens[empty], kv_lens[empty] = (0, kv_lens[empty]) if pool.rng.integers(2) else (q_lens[empty], 0)
    call, slopes = call_of(pool, case, batch)
    starts_q, starts_k = (np.concatenate([[0], np.cumsum(lens)]).astype(np.int32) for lens in (q_lens, kv_lens))
    q = pool.array((1, int(starts_q[-1]) + 5, case.heads_q, case.dim), dtype).transpose(0, 2, 1, 3)
    if case.softcap:
        q *= dtype.type(SOFTCAP)
    o = np.full(q.transpose(0, 2, 1, 3).shape, UNTOUCHED, dtype).transpose(0, 2, 1, 3)
    extra = {"cu_seqlens_q": starts_q, "q_len": case.rows, "alibi_slopes": slopes}
    sequences = [[pool.array((case.heads_kv, n, case.dim), dtype) for n in kv_lens] for _ in range(2)]
    if case.page:
        k, table = paged(pool, case, kv_lens, dtype)
        v = same_layout(k)
        for cache, values in zip((k, v), sequences):
            for b in range(batch):
                put_keys(cache, table, b, 0, values[b])
        extra.update(block_table=table, kv_lens=np.array(kv_lens, np.int32), kv_len=case.keys)
    else:
        beyond = np.full((3, case.heads_kv, case.dim), np.nan, dtype)
        k, v = (np.concatenate([*(s.transpose(1, 0, 2) for s in values), beyond])[None].copy().transpose(0, 2, 1, 3)
                for values in sequences)
        extra.update(cu_seqlens_k=starts_k, kv_len=case.keys)
    attention.forward(q, k, v, o, path=path, **extra, **call)
    if np.any(o[:, :, starts_q[-1]:].astype(np.float32) != UNTOUCHED):
        return "rows beyond the last sequence were written"
    judge = Judge(case)
    for b in range(batch):
        of_b = slice(int(starts_q[b]), int(starts_q[b + 1]))
        judge.add(o[0, :, of_b], q[0, :, of_b], sequences[0][b], sequences[1][b], **call,
                  alibi=None if slopes is None else slopes[b:b + 1])
    return judge.miss(report, case, path)


def rotated(x, cos, sin, rope, rotary_dim):
    """x: [heads, tokens, dim] in float32; cos, sin: [tokens, rotary_dim / 2]."""
    out = x.copy()
    half = rotary_dim // 2
    first, second = (slice(0, half), slice(half, rotary_dim)) if rope == "neox" else \
        (slice(0, rotary_dim, 2), slice(1, rotary_dim, 2))
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def differs(got, expected, dtype):
    """Whether stored values are off by more than one place of the type, or 1e-6 where terms cancel."""
    places = float(ml_dtypes.finfo(dtype).eps)
    expected = expected.astype(np.float32)
    return not np.all(np.abs(got.astype(np.float32) - expected) <= places * np.abs(expected) + 1e-6)


def append(attention, pool, case, caches, table, lens, q):
    """Appends to both caches as the case says. Returns (rotated q, lengths after, why it is wrong)."""
    dtype, batch = TYPES[case.kind], len(lens)
    new = case.rows
    k_new, v_new = (pool.array((batch, new, case.heads_kv, case.dim), dtype).transpose(0, 2, 1, 3) for _ in range(2))
    lens_out = np.full(batch, -1, np.int32)
    rope = {}
    q_out = None
    if case.rotary:
        angle = pool.rng.uniform(0, 2 * np.pi, (case.keys, case.rotary_dim // 2)).astype(np.float32)
        q_out = np.full((batch, new, case.heads_q, case.dim), np.nan, dtype).transpose(0, 2, 1, 3)
        rope = {"q": q, "q_out": q_out, "rope": case.rope, "rotary_dim": case.rotary_dim, "rope_cos": np.cos(angle),
                "rope_sin": np.sin(angle)}
    before = [[keys_of(cache, table, b, 0, int(lens[b])) for b in range(batch)] for cache in caches]
    attention.append(k_new, v_new, *caches, np.array(lens, np.int32), kv_lens_out=lens_out, block_table=table, **rope)
    for b in range(batch):
        place = slice(int(lens[b]), int(lens[b]) + new)

        def turned(x):
            x = x[b].astype(np.float32)
            if not case.rotary:
                return x
            return rotated(x, rope["rope_cos"][place], rope["rope_sin"][place], case.rope, case.rotary_dim)

        for cache, name, old, expected in zip(caches, "kv", before, (turned(k_new), v_new[b].astype(np.float32))):
            if not np.array_equal(keys_of(cache, table, b, 0, place.start), old[b]):
                return q, lens_out, "append changed older keys of " + name
            if differs(keys_of(cache, table, b, place.start, place.stop), expected, dtype):
                return q, lens_out, "append stored a wrong " + name
        if case.rotary and differs(q_out[b], turned(q), dtype):
            return q, lens_out, "append rotated q wrongly"
    if not np.array_equal(lens_out, np.array(lens) + new):
        return q, lens_out, "append gave the lengths %s, not %s" % (lens_out, np.array(lens) + new)
    return q if q_out is None else q_out, lens_out, None


def cache_miss(attention, path, pool, case, report):
    dtype, batch = TYPES[case.kind], 2
    new = case.rows if case.new else 0
    lens = [int(n) for n in pool.rng.integers(0 if new else 1, case.keys - new + 1, batch)]
    call, slopes = call_of(pool, case, batch)
    q = pool.array((batch, case.rows, case.heads_q, case.dim), dtype).transpose(0, 2, 1, 3)
    o = np.full((batch, case.rows, case.heads_q, case.dim), UNTOUCHED, dtype).transpose(0, 2, 1, 3)
    k, table = paged(pool, case, [n + new for n in lens], dtype)
    v = same_layout(k)
    for cache in k, v:
        for b in range(batch):
            put_keys(cache, table, b, 0, pool.array((case.heads_kv, lens[b], case.dim), dtype))
    lens_out = np.array(lens, np.int32)
    if case.new:
        q, lens_out, wrong = append(attention, pool, case, (k, v), table, lens, q)
        if wrong:
            return wrong
    attention.forward(q, k, v, o, path=path, phase="decode", splits=case.splits, kv_lens=lens_out, block_table=table,
                      kv_len=case.keys, alibi_slopes=slopes, **call)
    judge = Judge(case)
    for b in range(batch):
        judge.add(o[b], q[b], *(keys_of(cache, table, b, 0, int(lens_out[b])) for cache in (k, v)), **call,
                  alibi=None if slopes is None else slopes[b:b + 1])
    return judge.miss(report, case, path)


def main():
    options = parse_options(__doc__.split(" (", maxsplit=1)[0])
    attention = open_attention(options)
    cases = [case for case in varlen_grid() + cache_grid() if options.only in str(case)]
    whole = len(cases)
    if not options.all:
        cases = sample_few_programs(cases, options.cases or SAMPLE, SAMPLE_PROGRAMS, options.seed, PROGRAM_STRATA,
                                    CASE_STRATA, PORTABLE)
    report = Report("FlashAttention, serving, %s" % ("whole grid" if options.all else "sample of %d" % whole),
                    len(cases))
    pool = Pool(options.seed, "normal")
    for case in cases:
        path = path_of(attention, options, case.program in PORTABLE, **({"phase": "decode"} if case.phase == "decode"
                                                                        else {}))
        try:
            miss = (cache_miss if case.phase == "decode" else varlen_miss)(attention, path, pool, case, report)
        except Refused as refused:
            miss = "%s: %s" % (path, refused)
        report.add(str(case), miss)
    report.finish()


if __name__ == "__main__":
    main()
