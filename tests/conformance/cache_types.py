"""What caches hold beside floats, as numpy arrays: ggml's blocks of 32 elements, whose bytes come from the package
`gguf`, and single bytes. An array of blocks has an element for each block, so its last axis is 32 times shorter."""

import gguf
import ml_dtypes
import numpy as np

BLOCK = 32
KINDS = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
GGML = {kind: gguf.GGMLQuantizationType[kind.upper()] for kind in KINDS}
# The field's name tells types of blocks of the same size apart.
BLOCKS = {kind: np.dtype([(kind, np.uint8, gguf.GGML_QUANT_SIZES[GGML[kind]][1])]) for kind in KINDS}
BYTES = {"i8": np.dtype(np.int8), "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
         "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2)}


def elements_of(dtype):
    """Of one item of an array: 32 in a block, otherwise 1."""
    return BLOCK if dtype.names else 1


def random_blocks(rng, kind, shape):
    """Random codes with scales of values up to about 1; every block of codes is a valid one."""
    blocks = rng.integers(0, 256, (*shape, BLOCKS[kind].itemsize), np.uint8)
    scales = (rng.uniform(0.5, 1, shape) / 127).astype(np.float16)
    blocks[..., :2] = scales[..., None].view(np.uint8)
    return blocks


def store(rng, kind, values):
    """float32 values as blocks; of a kind that `gguf` reads but does not write, random ones in their place."""
    shape = (*values.shape[:-1], values.shape[-1] // BLOCK)
    try:
        blocks = gguf.quants.quantize(np.ascontiguousarray(values), GGML[kind])
    except NotImplementedError:
        blocks = random_blocks(rng, kind, shape)
    return np.ascontiguousarray(blocks).reshape(-1).view(BLOCKS[kind]).reshape(shape)


def load(array):
    """float32 values of an array of any storage type, blocks included."""
    if not array.dtype.names:
        return array.astype(np.float32)
    kind = array.dtype.names[0]
    codes = np.ascontiguousarray(array)[kind]  # the shape of the array, then bytes
    values = gguf.quants.dequantize(codes.reshape(-1, array.shape[-1] * array.dtype.itemsize), GGML[kind])
    return values.reshape(*array.shape[:-1], array.shape[-1] * BLOCK)
