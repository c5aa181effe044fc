"""What clattn_enqueue_convert stores, against the packages that others read and write caches with: ggml's blocks by
`gguf`, 8-bit floats by `ml_dtypes`. Bytes must be equal; of IQ4_NL, which gguf reads only, values must be as near as
those of the plainest scale. A reader of the library's own (a decode or prefill call) is llama_suite's matter."""

import gguf
import numpy as np

import cache_types
from attention import BFLOAT16, Refused
from conformance import Report, open_attention, parse_options

SOURCES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": BFLOAT16}
SHAPE = (2, 3, 17, 128)
MORE_SHAPES = ((1, 1, 300, 64), (1, 2, 5, 576))
MORE_OF = ("q8_0", "q5_1", "i8")  # these are tried with all sources and shapes, the others with one
IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
VALUES = ("ordinary", "magnitudes", "quarters", "repeated", "zeros")


def numbers(rng, kind, shape):
    """f32 of a kind; what gguf has a meaning for (scales of blocks with an inverse in float32)."""
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "magnitudes":  # a power of two for each row
        x = np.ldexp(x, rng.integers(-12, 12, (*shape[:-1], 1))).astype(np.float32)
    elif kind == "quarters":  # halfway between codes, where the largest number allows
        x = np.rint(8 * x) / 4
        x[..., ::32] = rng.choice([-8, 8, 7.5, 15.5, -16, 127], x[..., ::32].shape)
    elif kind == "repeated":  # the largest magnitude several times, with both signs
        x = rng.choice(np.float32([-2.5, 2.5, 0.3, -0.7]), shape)
    elif kind == "zeros":
        x = np.where(rng.random((*shape[:-1], 1)) < 0.5, x, 0)  # no -0: gguf keeps its sign, ggml does not
        x[..., :32] = 0
    return x.astype(np.float32)


def expected_bytes(kind, x, scale):
    """What others make of x, and None where they do not write the type."""
    if kind == "i8":
        return np.rint(x * inverse(scale)).astype(np.int8)
    if kind in cache_types.BYTES:
        dtype = cache_types.BYTES[kind]
        largest = {"f8_e4m3": 448, "f8_e5m2": 57344}[kind]
        scaled = x if scale is None else x * inverse(scale)
        return np.clip(scaled, -largest, largest).astype(dtype)
    if kind == "iq4_nl":
        return None
    return gguf.quants.quantize(x, cache_types.GGML[kind])


def inverse(scale):
    """1 / scale of each row, 0 for 0."""
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)[..., None]


def plain_iq4_nl(x):
    """The largest number becomes entry -127, the others the nearest entries; as values."""
    blocks = x.reshape(-1, 32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    d = largest / -127
    scaled = np.divide(blocks, d, out=np.zeros_like(blocks), where=d != 0)
    nearest = IQ4_NL[np.abs(scaled[..., None] - IQ4_NL).argmin(axis=-1)]
    return (nearest * d.astype(np.float16).astype(np.float32)).reshape(x.shape)


def weighted_error(values, x):
    """As the encoder counts it: by x^2."""
    return float((np.square(x.astype(np.float64)) * np.square(values.astype(np.float64) - x)).sum())


def run(attention, rng, kind, source, values, shape, scaled):
    """Why the case failed, or None."""
    x = numbers(rng, values, shape).astype(SOURCES[source])
    dtype = {**cache_types.BYTES, **cache_types.BLOCKS}[kind]
    # Rows of `stored` are further apart than they are long; what lies between must stay.
    width = shape[3] // cache_types.elements_of(dtype)
    whole = np.full((*shape[:3], width + 1), 0x55, np.uint8).repeat(dtype.itemsize, axis=-1).view(dtype)
    stored = whole[..., :width]
    scale = None
    if scaled:
        scale = rng.uniform(0.1, 2, shape[:3]).astype(np.float32)  # I8's is written over
    attention.convert(x, stored, scale)

    x = x.astype(np.float32)
    if not (np.ascontiguousarray(whole[..., width:]).view(np.uint8) == 0x55).all():
        return "bytes behind a row were written"
    if kind == "i8" and not np.array_equal(scale, np.abs(x).max(axis=-1) / np.float32(127)):
        return "the scale is not the largest magnitude / 127"
    expected = expected_bytes(kind, x, scale)
    if expected is None:
        error, plain = weighted_error(cache_types.load(stored), x), weighted_error(plain_iq4_nl(x), x)
        return None if error <= plain * (1 + 1e-3) else "weighted error %g, of the plainest scale %g" % (error, plain)
    is_bytes = np.ascontiguousarray(stored).view(np.uint8).reshape(-1)
    expected = np.ascontiguousarray(expected).view(np.uint8).reshape(-1)
    wrong = np.flatnonzero(is_bytes != expected)
    if wrong.size:
        return "%d of %d bytes differ, first byte %d: 0x%02x, expected 0x%02x" % (
            wrong.size, expected.size, wrong[0], is_bytes[wrong[0]], expected[wrong[0]])
    return None


def main():
    options = parse_options(__doc__, grid=False)
    attention = open_attention(options)
    cases = []
    for kind in (*cache_types.KINDS, *cache_types.BYTES):
        more = kind in MORE_OF
        programs = [("f32", SHAPE)] + more * ([(source, SHAPE) for source in ("f16", "bf16")] +
                                              [("f32", shape) for shape in MORE_SHAPES])
        scaled = (True,) if kind == "i8" else (False, True) if kind in cache_types.BYTES else (False,)
        cases += [(kind, source, values, shape, is_scaled) for source, shape in programs for values in VALUES
                  for is_scaled in scaled]
    names = ["%s from %s, %s %s%s" % (kind, source, values, "x".join(map(str, shape)), ", scaled" * scaled)
             for kind, source, values, shape, scaled in cases]
    chosen = [(name, case) for name, case in zip(names, cases) if options.only in name]
    report = Report("cache types", len(chosen))
    rng = np.random.default_rng(1)
    for name, case in chosen:
        try:
            report.add(name, run(attention, rng, *case))
        except Refused as error:
            report.add(name, str(error))
    report.finish()


main()
