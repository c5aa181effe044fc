"""Random tensors, cheaply: slices of pools that are drawn and converted once."""

import numpy as np

POOL = 1 << 24


class Pool:
    """uniform: -1 to 1; normal: deviation 1."""

    def __init__(self, seed, kind):
        self.rng = np.random.default_rng(seed)
        draw = {"uniform": lambda: self.rng.uniform(-1, 1, POOL), "normal": lambda: self.rng.standard_normal(POOL)}
        self.values = draw[kind]().astype(np.float32)
        self.converted = {}

    def array(self, shape, dtype):
        """A new array that owns its memory."""
        dtype = np.dtype(dtype)
        if dtype not in self.converted:
            self.converted[dtype] = self.values.astype(dtype)
        size = int(np.prod(shape))
        assert size < POOL
        start = int(self.rng.integers(POOL - size))
        out = np.empty(shape, dtype)
        out.reshape(-1)[:] = self.converted[dtype][start:start + size]
        return out


def sample(cases, count, seed, strata):
    """`count` of the cases, the same for the same seed. Each value of each of `strata` gets its turn: next is a case
    whose value of the first of them has been drawn least, then that of the second, and so on."""
    rng = np.random.default_rng(seed)
    waiting = [cases[i] for i in rng.permutation(len(cases))]
    drawn, picked = {}, []
    marks = {case: [(name, mark(case)) for name, mark in strata.items()] for case in waiting}
    while waiting and len(picked) < count:
        best = min(range(len(waiting)), key=lambda i: [drawn.get(m, 0) for m in marks[waiting[i]]])
        case = waiting.pop(best)
        picked.append(case)
        for mark in marks[case]:
            drawn[mark] = drawn.get(mark, 0) + 1
    return picked


def sample_few_programs(cases, count, programs, seed, program_strata, case_strata, forced):
    """A sample of `programs` compiled programs, and `count` cases of these and of the programs that are `forced`:
    compiling takes longer than running."""
    chosen = set(sample(sorted({case.program for case in cases}), programs, seed, program_strata)) | set(forced)
    return sample([case for case in cases if case.program in chosen], count, seed, case_strata)
