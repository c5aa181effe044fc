#!/usr/bin/env python3
"""clattn on a GPU beside PyTorch's attention (FlashAttention-2, cuDNN, memory-efficient), in one run.

    gpu_bench.py path/to/clattn [--device SEL] [--length 8192] [--json FILE]

First `clattn check` must pass on the device; then every row is timed. TFLOP/s count 4*B*H*N*N*D, half of it
when causal, on [B, H, N, D] contiguous tensors with H*D = 2048 and B*N = 16384. Without PyTorch, or
without CUDA under it, its columns stay empty. A second table shows what masks save: a causal window of 256
keys and random lists of 10% of the 128 x 128 key tiles, in time and against their share of the work. Nothing
about the GPU's settings is touched.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

MODEL_DIM, TOKENS = 2048, 16384


def clattn(arguments, **options):
    return subprocess.run(arguments, check=True, text=True, **options)


def bench_clattn(options, dtype, head_dim, causal, local_memory=0, more=()):
    heads, batch = MODEL_DIM // head_dim, max(1, TOKENS // options.length)
    shape = f"{batch},{heads},{heads},{options.length},{options.length},{head_dim}"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        command = [options.clattn, "bench", "--shape", shape, "--dtype", dtype, "--json", path]
        command += ["--device", options.device] if options.device else []
        command += ["--causal"] if causal else []
        command += more
        command += ["--local-memory", str(local_memory)] if local_memory else []
        clattn(command, stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def torch_backends():
    """(name, backend) pairs that can be tried, or nothing."""
    try:
        import torch
        from torch.nn.attention import SDPBackend
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    return [("fa2", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION),
            ("efficient", SDPBackend.EFFICIENT_ATTENTION)]


def bench_torch(options, backend, dtype, head_dim, causal):
    """TFLOP/s, or None where the backend refuses the case."""
    import torch
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    storage = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[dtype]
    heads, batch = MODEL_DIM // head_dim, max(1, TOKENS // options.length)
    shape = (batch, heads, options.length, head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=storage) for _ in range(3))
    times = []
    try:
        with sdpa_kernel(backend):
            for _ in range(8):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                scaled_dot_product_attention(q, k, v, is_causal=causal)
                end.record()
                torch.cuda.synchronize()
                times.append(start.elapsed_time(end))
    except RuntimeError:
        return None
    flops = 4 * batch * heads * options.length**2 * head_dim * (0.5 if causal else 1)
    return flops / statistics.median(times[2:]) / 1e9


def bench_sparse(options):
    """Rows of the second table. The rate counts allowed pairs alone: what it falls by is the price of edges."""
    rows = []
    print(f"\n{'dtype':6}{'D':>4}  {'masks':22}{'ms':>9}{'of dense':>10}{'rate of dense':>15}")
    for dtype, head_dim in (("f16", 64), ("f16", 128), ("f32", 64)):
        for name, causal, more in (("causal, window 256", True, ["--window", "255,0"]),
                                   ("10% of key tiles", False, ["--block-sparse", "0.1"]),
                                   ("all key tiles", False, ["--block-sparse", "1"])):
            dense = bench_clattn(options, dtype, head_dim, causal)["results"][0]
            sparse = bench_clattn(options, dtype, head_dim, causal, more=more)["results"][0]
            print(f"{dtype:6}{head_dim:4}  {name:22}{sparse['time_ms_median']:9.3f}"
                  f"{sparse['time_ms_median'] / dense['time_ms_median']:10.3f}"
                  f"{sparse['tflops'] / dense['tflops']:15.3f}", flush=True)
            rows.append({"masks": name, "dense": dense, "sparse": sparse})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clattn")
    parser.add_argument("--device", default="")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--json", help="also write all figures to this file")
    parser.add_argument("--quick-check", action="store_true", help="check a few programs only")
    options = parser.parse_args()
    select = ["--device", options.device] if options.device else []
    clattn([options.clattn, "info"] + select)
    clattn([options.clattn, "check"] + (["--quick"] if options.quick_check else []) + select)

    backends = torch_backends()
    cases = [(dtype, head_dim, causal, local) for local in (0, 32768) for dtype in ("f16", "f32", "bf16")
             for head_dim in (64, 128) for causal in (False, True) if not (local and dtype == "bf16")]
    rows = []
    print(f"\nTFLOP/s, N={options.length}")
    print(f"{'dtype':6}{'D':>4} {'':7}{'local':>8}{'clattn':>9}" +
          "".join(f"{name:>11}" for name, _ in backends) + "  tiles")
    for dtype, head_dim, causal, local in cases:
        document = bench_clattn(options, dtype, head_dim, causal, local)
        result = document["results"][0]
        peers = {} if local else {name: bench_torch(options, backend, dtype, head_dim, causal)
                                  for name, backend in backends}
        print(f"{dtype:6}{head_dim:4} {'causal' if causal else 'full':7}"
              f"{f'{local // 1024} KiB' if local else 'all':>8}{result['tflops']:9.1f}" +
              "".join(f"{peers[name]:11.1f}" if peers.get(name) else f"{'-':>11}"
                      for name, _ in backends) + f"  {result['tiles']}", flush=True)
        rows.append({"local_memory": local, "peers": peers, **document})
    sparse = bench_sparse(options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"dense": rows, "sparse": sparse}, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
