"""The node tests of ONNX's Attention operator (opsets 23 on), as the onnx package makes them, with its runner's own
comparison: rtol 1e-3, atol 1e-7 (bfloat16: two units in the last place).

The operator's inputs become one call: masks are a bool mask or an additive bias, broadcast by stride 0; a mask with
fewer columns than keys is continued with False or -inf; past keys are the front of a cache that the new ones are
written to; 3D inputs are views. Row 0 stands at 0 without a cache, after the past with one, and at nonpad_kv_seqlen -
q_len where lengths are given. softmax_precision asks for nothing: softmax is float32 always.
"""

import logging
import warnings

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.runner import Runner

from attention import Refused
from conformance import Report, open_attention, parse_options, path_of

INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")

# These also run on the portable path, which takes long to compile on a CPU.
PORTABLE = ("test_attention_4d", "test_attention_4d_causal_fp16",
            "test_attention_4d_causal_nonpad_attn_mask_composition")


def node_tests():
    """[(name, attributes, inputs, outputs, rtol, atol)], tensors by the names of the operator's specification."""
    np.random.seed(0)  # the package draws its data from the global generator
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        cases = collect_testcases("Attention")
        logging.disable(logging.NOTSET)
    tests = []
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type != "Attention":
            continue  # the operator written out in others: the same data again
        node = nodes[0]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        for inputs, outputs in case.data_sets:
            tests.append((case.name, attributes, named(INPUTS, node.input, inputs),
                          named(OUTPUTS, node.output, outputs), case.rtol, case.atol))
    return tests


def named(names, used, arrays):
    """An empty name in `used` is an argument left out."""
    arrays = iter(arrays)
    return {name: next(arrays) for name, use in zip(names, used) if use}


def heads_of(array, heads):
    """[batch, tokens, heads * dim] as [batch, heads, tokens, dim]; 4D as it is."""
    if array.ndim == 4:
        return array
    batch, tokens, width = array.shape
    return array.reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3)


def append(past, new):
    """A cache with room to spare that holds the past and, behind it, what is new: a view of its valid part. What
    lies beyond is NaN, which must not reach any result."""
    if past is None:
        return new
    batch, heads, length, dim = past.shape
    total = length + new.shape[2]
    cache = np.full((batch, heads, total + 5, dim), np.nan, new.dtype)
    cache[:, :, :length] = past
    cache[:, :, length:total] = new
    return cache[:, :, :total]


def mask_argument(mask, shape):
    """The operator's mask as the call's argument."""
    if mask is None:
        return {}
    missing = shape[3] - mask.shape[-1]
    if missing > 0:
        fill = np.zeros((), bool) if mask.dtype == bool else np.asarray(-np.inf, mask.dtype)
        mask = np.concatenate([mask, np.broadcast_to(fill, (*mask.shape[:-1], missing))], axis=-1)
    return {"mask" if mask.dtype == bool else "bias": np.broadcast_to(mask, shape)}


def probabilities(attention, q, k, call):
    """softmax's output and lse: attention with the identity for V."""
    batch, heads, rows, keys = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    v = np.broadcast_to(np.eye(keys, dtype=k.dtype), (batch, k.shape[1], keys, keys))
    p = np.empty((batch, heads, rows, keys), np.float32)
    lse = np.empty((batch, heads, rows), np.float32)
    attention.forward(q, k, v, p, lse, **call)
    return p, lse


def qk_matmul_output(attention, q, k, call, mode):
    """What the operator shows of its scores: after softcap (modes 0 and 1), after masks too (2), after softmax (3).
    A score is ln p + lse."""
    if mode == 3:
        return probabilities(attention, q, k, call)[0].astype(q.dtype)
    if mode != 2:
        call = {name: call[name] for name in ("scale", "softcap", "path")}
    p, lse = probabilities(attention, q, k, call)
    with np.errstate(divide="ignore"):
        return (np.log(p) + lse[..., None]).astype(q.dtype)


def run_attention(attention, path, attributes, inputs, wanted):
    """The operator's outputs, those in `wanted`."""
    q = heads_of(inputs["Q"], attributes.get("q_num_heads"))
    k = append(inputs.get("past_key"), heads_of(inputs["K"], attributes.get("kv_num_heads")))
    v = append(inputs.get("past_value"), heads_of(inputs["V"], attributes.get("kv_num_heads")))
    batch, heads, rows, keys = q.shape[0], q.shape[1], q.shape[2], k.shape[2]

    call = {"path": path, "scale": attributes.get("scale", 0.0), "softcap": attributes.get("softcap", 0.0),
            "causal": bool(attributes.get("is_causal", 0)), "position": "explicit"}
    window = (attributes.get("left_window_size", -1), attributes.get("right_window_size", -1))
    if window != (-1, -1):
        call["window"] = window
    if "nonpad_kv_seqlen" in inputs:
        call["kv_lens"] = inputs["nonpad_kv_seqlen"].astype(np.int32)
        call["q_offsets"] = call["kv_lens"] - np.int32(rows)
    elif "past_key" in inputs:
        call["offset"] = inputs["past_key"].shape[2]
    else:
        call["position"] = "top_left"
    call.update(mask_argument(inputs.get("attn_mask"), (batch, heads, rows, keys)))

    shape = (batch, rows, heads, v.shape[3]) if inputs["Q"].ndim == 3 else (batch, heads, rows, v.shape[3])
    y = np.empty(shape, q.dtype)
    attention.forward(q, k, v, y.transpose(0, 2, 1, 3) if inputs["Q"].ndim == 3 else y, **call)
    results = {"Y": y.reshape(batch, rows, -1) if inputs["Q"].ndim == 3 else y}
    results.update(present_key=k, present_value=v)
    if "qk_matmul_output" in wanted:
        results["qk_matmul_output"] = qk_matmul_output(attention, q, k, call,
                                                       attributes.get("qk_matmul_output_mode", 0))
    return [results[name] for name in wanted]


def miss_of(attention, path, test):
    """Why the test fails, None if it passes."""
    _, attributes, inputs, outputs, rtol, atol = test
    try:
        got = run_attention(attention, path, attributes, inputs, list(outputs))
        Runner.assert_similar_outputs(list(outputs.values()), got, rtol, atol)
    except (AssertionError, Refused) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return " | ".join(lines[:6])
    return None


def main():
    options = parse_options(__doc__.splitlines()[0], grid=False)
    attention = open_attention(options)
    tests = [test for test in node_tests() if options.only in test[0]]
    report = Report("ONNX Attention (onnx %s)" % onnx.__version__, len(tests))
    for test in tests:
        paths = {path_of(attention, options), path_of(attention, options, test[0] in PORTABLE)}
        misses = [(path, miss_of(attention, path, test)) for path in sorted(paths)]
        report.add(test[0], "; ".join("%s: %s" % miss for miss in misses if miss[1]))
    report.finish()


if __name__ == "__main__":
    main()
