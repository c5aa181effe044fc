"""FlashAttention's grids of the forward pass (tests/test_flash_attn.py of Dao-AILab/flash-attention at commit 0251105:
test_flash_attn_output, test_flash_attn_varlen_output, test_flash_attn_causal, without dropout), and its rule: the
largest error against float32 is at most twice that of the same computation by whole matrices in the storage type, and
1e-5; results of both kinds are rounded to the storage type.

As there: normal deviates, q times softcap where there is one; tokens before heads in memory, K and V in every other
case interleaved in one tensor; slopes of 0 to 0.3 for each batch entry and head; windows of 0 to kv_len - 1 on each side.
Padded cases have lengths up to 20 less than the tensors', NaN beyond, and rows of o beyond must stay as they are. The
batch is smaller than there: 2, or 1 from 1000 keys on.
"""

from dataclasses import dataclass

import numpy as np

import reference
from attention import BFLOAT16, Refused
from conformance import Report, open_attention, parse_options, path_of
from data import Pool, sample_few_programs

TYPES = {"f16": np.dtype(np.float16), "bf16": BFLOAT16}
DIMS = (32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256)
LENGTHS = ((1, 147), (1, 339), (113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256), (1024, 1024),
           (1023, 1024), (1024, 1023), (2048, 2048))
CAUSAL_LENGTHS = ((1, 239), (3, 799), (127, 512), (127, 513), (113, 203), (128, 217), (113, 211), (108, 256),
                  (256, 512), (1023, 1024))
SAMPLE, SAMPLE_PROGRAMS = 90, 34
SOFTCAP = 50.0
UNTOUCHED = 77.0  # what rows that must not be written hold

# These run on the portable path, which takes long to compile on a CPU.
PORTABLE = ((64, "f16", True, True, True, False, True), (128, "f16", False, False, False, False, False))


@dataclass(frozen=True)
class Case:
    dim: int
    rows: int
    keys: int
    heads_q: int
    heads_kv: int
    causal: bool
    local: bool
    alibi: bool
    softcap: bool
    padded: bool
    kind: str
    interleaved: bool

    @property
    def program(self):
        """What a compiled program depends on."""
        return (self.dim, self.kind, self.causal, self.local, self.alibi, self.softcap, self.padded)

    @property
    def batch(self):
        return 1 if self.keys >= 1000 else 2

    def __str__(self):
        return "d=%d,%dx%d,heads=%d/%d%s%s%s%s%s%s,%s" % (
            self.dim, self.rows, self.keys, self.heads_q, self.heads_kv, ",causal" * self.causal, ",local" * self.local,
            ",alibi" * self.alibi, ",softcap" * self.softcap, ",padded" * self.padded,
            ",interleaved" * self.interleaved, self.kind)


def grid():
    cases = []
    switches = [[bool(bits >> n & 1) for n in range(5)] for bits in range(32)]
    for dim in DIMS:
        for kind in TYPES:
            for rows, keys in LENGTHS:
                for causal, local, alibi, softcap, padded in switches:
                    heads = 4 if softcap else 6
                    for heads_kv in heads, 2, 1:
                        cases.append(Case(dim, rows, keys, heads, heads_kv, causal, local, alibi, softcap, padded, kind,
                                          len(cases) % 2 == 1))
            for longer in CAUSAL_LENGTHS:
                for rows, keys in longer, longer[::-1]:
                    for local in False, True:
                        cases.append(Case(dim, rows, keys, 9, 9, True, local, False, False, False, kind,
                                          len(cases) % 2 == 1))
    return cases


PROGRAM_STRATA = {
    "dim": lambda p: p[0], "dim and type": lambda p: p[:2], "features": lambda p: p[2:],
    "causal, local": lambda p: p[2:4], "alibi": lambda p: p[4], "softcap": lambda p: p[5], "padded": lambda p: p[6],
}
CASE_STRATA = {
    "program": lambda c: c.program, "lengths": lambda c: (c.rows, c.keys),
    "heads": lambda c: ("mha" if c.heads_q == c.heads_kv else "mqa" if c.heads_kv == 1 else "gqa"),
    "dim": lambda c: c.dim, "interleaved": lambda c: c.interleaved,
}


def round_f16(array):
    return array.astype(np.float16).astype(np.float32)


def round_bf16(array):
    """To nearest even; for finite values and infinities."""
    bits = array.view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) & np.uint32(0xFFFF0000)).view(np.float32)


ROUND = {"f16": round_f16, "bf16": round_bf16}


def lengths_of(pool, case):
    """(q_lens, kv_lens) of a padded case."""
    return [pool.rng.integers(max(1, most - 20), most + 1, case.batch).astype(np.int32)
            for most in (case.rows, case.keys)]


def miss_of(attention, path, pool, case, report):
    """Why the case fails, None if it passes."""
    dtype, batch = TYPES[case.kind], case.batch
    call = {"causal": case.causal, "softcap": SOFTCAP if case.softcap else 0.0}
    if case.local:
        call["window"] = tuple(int(n) for n in pool.rng.integers(0, case.keys, 2))
    slopes = pool.rng.uniform(0, 0.3, (batch, case.heads_q)).astype(np.float32) if case.alibi else None
    q_lens, kv_lens = lengths_of(pool, case) if case.padded else (None, None)

    q = pool.array((batch, case.rows, case.heads_q, case.dim), dtype).transpose(0, 2, 1, 3)
    if case.softcap:
        q *= dtype.type(SOFTCAP)
    if case.interleaved:
        both = pool.array((batch, case.keys, 2, case.heads_kv, case.dim), dtype)
        k, v = (both[:, :, n].transpose(0, 2, 1, 3) for n in range(2))
    else:
        k, v = (pool.array((batch, case.keys, case.heads_kv, case.dim), dtype).transpose(0, 2, 1, 3) for _ in range(2))
    o = np.full((batch, case.rows, case.heads_q, case.dim), UNTOUCHED, dtype).transpose(0, 2, 1, 3)
    unwritten = np.zeros((batch, 1, case.rows, 1), bool)
    if case.padded:
        for b in range(batch):
            q[b, :, q_lens[b]:] = np.nan
            k[b, :, kv_lens[b]:] = np.nan
            v[b, :, kv_lens[b]:] = np.nan
            unwritten[b, :, q_lens[b]:] = True

    try:
        attention.forward(q, k, v, o, path=path, alibi_slopes=slopes, q_lens=q_lens, kv_lens=kv_lens, **call)
    except Refused as refused:
        return str(refused)
    got = o.astype(np.float32)
    if not np.all(np.where(unwritten, got == UNTOUCHED, True)):
        return "rows beyond the length were written"
    got = np.where(unwritten, 0, got)
    call.update(alibi=slopes, q_lens=q_lens, kv_lens=kv_lens)
    exact = ROUND[case.kind](reference.forward(q, k, v, np.float32, **call))
    naive = reference.forward(q, k, v, np.float32, ROUND[case.kind], **call)
    error, allowed = np.abs(got - exact).max(), 2 * np.abs(naive - exact).max() + 1e-5
    report.worst("error, in that of the computation by matrices, " + case.kind, 2 * error / allowed)
    return None if error <= allowed else "%s: error %.3g, at most %.3g allowed" % (path, error, allowed)


def main():
    options = parse_options(__doc__.split(" (", maxsplit=1)[0])
    attention = open_attention(options)
    cases = [case for case in grid() if options.only in str(case)]
    whole = len(cases)
    if not options.all:
        cases = sample_few_programs(cases, options.cases or SAMPLE, SAMPLE_PROGRAMS, options.seed, PROGRAM_STRATA,
                                    CASE_STRATA, PORTABLE)
    report = Report("FlashAttention, %s" % ("whole grid" if options.all else "sample of %d" % whole), len(cases))
    pool = Pool(options.seed, "normal")
    for case in cases:
        path = path_of(attention, options, case.program in PORTABLE)
        report.add(str(case), miss_of(attention, path, pool, case, report))
    report.finish()


if __name__ == "__main__":
    main()
