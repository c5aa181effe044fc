#!/usr/bin/env python3
"""clattn's decode on a GPU beside PyTorch's attention and the device's copy bandwidth, in one run.

    gpu_decode.py path/to/clattn [--device SEL] [--types f16,q8_0,f8_e4m3] [--splits 1,4,16,64] [--json FILE]

One query row for each sequence, 32 query heads, 8 KV heads, head dim 128, K and V of f16 and of quantised types,
contiguous and in pages of 16. Rates are GB/s of K and V read once, whatever a library reads. Every call takes the next
of several sets of K and V, more than the L2 cache holds; a figure is the mean of at least 100 calls enqueued back to
back, by the wall clock, and the median of three of these. `graph` columns replay the calls as a CUDA graph, which
takes Python's share away. --splits also times each number of splits. What fails is reported and passed over; figures
are written to FILE as they come. Without PyTorch, or without CUDA under it, its columns stay empty. Nothing about the
GPU's settings is touched.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HEADS_Q, HEADS_KV, HEAD_DIM, PAGE = 32, 8, 128, 16
SHAPES = "1x8192,1x65536,16x8192,64x4096"  # batch x keys
CALLS, ROUNDS, ROUND_BYTES = 100, 3, 512 << 20


def kv_bytes(batch, length):
    """Of f16 K and V."""
    return batch * HEADS_KV * length * HEAD_DIM * 2 * 2


# ---- clattn


def bench_clattn(options, shapes, kv_dtype, page, splits=0):
    """Returns (document of `clattn bench`, error)."""
    command = [options.clattn, "bench", "--dtype", "f16", "--phase", "decode"]
    for batch, length in shapes:
        command += ["--shape", f"{batch},{HEADS_Q},{HEADS_KV},1,{length},{HEAD_DIM}"]
    command += ["--kv-dtype", kv_dtype] if kv_dtype != "f16" else []
    command += ["--page-size", str(page)] if page else []
    command += ["--splits", str(splits)] if splits else []
    command += ["--device", options.device] if options.device else []
    command += ["--path", options.path] if options.path else []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        try:
            done = subprocess.run(command + ["--json", path], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=options.timeout, check=False)
            with open(path, encoding="utf-8") as file:
                return json.load(file), None
        except subprocess.TimeoutExpired:
            return None, f"no result within {options.timeout} s"
        except (OSError, ValueError):
            return None, (done.stderr.strip().splitlines() or ["exit status %d" % done.returncode])[-1][:300]


def results_of_clattn(options, kv_dtype, page, splits=0):
    """{shape: result or error text}, and the device as the command tells it. All shapes in one process; if that
    fails, each in one of its own, so that one shape does not hide the others."""
    document, error = bench_clattn(options, options.shapes, kv_dtype, page, splits)
    if document:
        found = {(r["batch"], r["kv_len"]): r for r in document["results"]}
        return {shape: found.get(shape, "does not fit") for shape in options.shapes}, document["device"]
    results, device = {}, None
    for shape in options.shapes:
        document, error = bench_clattn(options, [shape], kv_dtype, page, splits)
        results[shape] = (document["results"] or ["does not fit"])[0] if document else error
        device = document["device"] if document else device
    return results, device


# ---- PyTorch


def find_torch():
    """Returns (module, why not)."""
    try:
        import torch
    except Exception as error:  # a broken installation must not end the run
        return None, f"PyTorch cannot be imported: {error}"
    if not torch.cuda.is_available():
        return None, "PyTorch has no CUDA device"
    return torch, None


def seconds_per_call(torch, call, sets):
    """`call` takes the number of a set. The median of ROUNDS means."""
    for i in range(2 * sets):
        call(i % sets)
    torch.cuda.synchronize()
    means = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for i in range(CALLS):
            call(i % sets)
        torch.cuda.synchronize()
        means.append((time.perf_counter() - start) / CALLS)
    return statistics.median(means)


def seconds_in_graph(torch, call, sets):
    """The same with the calls captured once and replayed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(sets):
            call(i)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS):
            call(i % sets)
    graph.replay()
    torch.cuda.synchronize()
    means = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        means.append((time.perf_counter() - start) / CALLS)
    return statistics.median(means)


def copy_rate(torch):
    """Bytes per second of device-to-device copies, read and written."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").fill_(1)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds_per_call(torch, lambda _: target.copy_(source), 1)


def peers_of():
    """(name, backend, how K and V are given). `gqa`: as they are; `packed`: the query heads of a KV head as so many
    rows of one head, which is the same for a single query without a causal bound; `expanded`: K and V repeated in
    memory beforehand."""
    from torch.nn.attention import SDPBackend
    return [(f"{name} {how}", getattr(SDPBackend, attribute), how)
            for name, attribute in (("fa2", "FLASH_ATTENTION"), ("cudnn", "CUDNN_ATTENTION"))
            if hasattr(SDPBackend, attribute) for how in ("gqa", "packed", "expanded")]


def time_peer(torch, backend, how, batch, length):
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    group, size = HEADS_Q // HEADS_KV, kv_bytes(batch, length)
    sets = max(2, -(-ROUND_BYTES // size))
    draw = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.float16)  # noqa: E731
    q = draw(batch, HEADS_KV, group, HEAD_DIM) if how == "packed" else draw(batch, HEADS_Q, 1, HEAD_DIM)
    pairs = [(draw(batch, HEADS_KV, length, HEAD_DIM), draw(batch, HEADS_KV, length, HEAD_DIM)) for _ in range(sets)]
    if how == "expanded":
        pairs = [tuple(t.repeat_interleave(group, dim=1) for t in pair) for pair in pairs]
    gqa = {"enable_gqa": True} if how == "gqa" else {}

    def call(i):
        scaled_dot_product_attention(q, *pairs[i], **gqa)

    with torch.no_grad(), sdpa_kernel(backend):
        seconds = seconds_per_call(torch, call, sets)
        result = {"sets": sets, "ms": seconds * 1e3, "gbps": size / seconds * 1e-9}
        try:
            seconds = seconds_in_graph(torch, call, sets)
            result.update(graph_ms=seconds * 1e3, graph_gbps=size / seconds * 1e-9)
        except Exception as error:  # not every backend can be captured
            result["graph_error"] = first_line(error)
            torch.cuda.synchronize()
    return result


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def bench_peer(torch, backend, how, batch, length):
    """{"ms", "gbps", "graph_ms", "graph_gbps"}, or {"error"}."""
    try:
        return time_peer(torch, backend, how, batch, length)
    except Exception as error:  # refused by the backend, out of memory
        return {"error": first_line(error)}
    finally:
        torch.cuda.empty_cache()


# ---- The run


class Record:
    """What is known so far, written after every addition."""

    def __init__(self, path):
        self.path, self.document = path, {"clattn": [], "splits": [], "peers": [], "errors": []}

    def add(self, part, value):
        self.document[part].append(value)
        self.write()

    def set(self, name, value):
        self.document[name] = value
        self.write()

    def write(self):
        if self.path:
            with open(self.path, "w", encoding="utf-8") as file:
                json.dump(self.document, file, indent=1)


def run_clattn(options, record):
    print(f"\nclattn, GB/s of K and V (f16 q; splits), share of its own copy rate\n{'types':10}{'':12}" +
          "".join(f"{f'({b},{n})':>22}" for b, n in options.shapes), flush=True)
    for kv_dtype in options.types.split(","):
        for page in (0, PAGE):
            results, device = results_of_clattn(options, kv_dtype, page)
            cells = ""
            for shape in options.shapes:
                result = results[shape]
                if isinstance(result, str):
                    record.add("errors", {"what": f"clattn {kv_dtype} page {page} {shape}", "why": result})
                    cells += f"{'-':>22}"
                else:
                    record.add("clattn", result)
                    cells += f"{result['gbps']:9.0f} ({result['splits']:3d}) {100 * result['ceiling_fraction']:4.0f}%  "
            if device and "device" not in record.document:
                record.set("device", device)
            print(f"{kv_dtype:10}{f'page {page}' if page else 'contiguous':12}{cells}", flush=True)
    if record.document.get("device"):
        print("clattn's ceilings: copy %.0f GB/s, read %.0f GB/s" % (
            record.document["device"]["copy_gbps"], record.document["device"].get("read_gbps", 0)))
    for name, key in (("single call, us", "latency_ms"), ("host per call, us", "enqueue_us")):
        row = [r for r in record.document["clattn"] if r["dtype_k"] == "f16" and not r["page_size"]]
        print(f"{name:22}" + "".join(f"{r[key] * (1e3 if key.endswith('ms') else 1):18.1f}    " for r in row))


def run_splits(options, record):
    print(f"\nclattn by splits, f16 contiguous, GB/s\n{'splits':10}" +
          "".join(f"{f'({b},{n})':>14}" for b, n in options.shapes), flush=True)
    for splits in (int(text) for text in options.splits.split(",")):
        results, _ = results_of_clattn(options, "f16", 0, splits)
        for shape, result in results.items():
            if isinstance(result, str):
                record.add("errors", {"what": f"clattn splits {splits} {shape}", "why": result})
            else:
                record.add("splits", {"asked": splits, **result})
        print(f"{splits:<10}" + "".join(f"{'-' if isinstance(results[s], str) else '%.0f' % results[s]['gbps']:>14}"
                                        for s in options.shapes), flush=True)


def run_torch(options, record):
    torch, why = find_torch()
    if not torch:
        record.add("errors", {"what": "PyTorch", "why": why})
        print("\n" + why)
        return
    try:
        rate = copy_rate(torch)
        record.set("torch", {"version": torch.__version__, "device": torch.cuda.get_device_name(),
                             "copy_gbps": rate * 1e-9})
        print(f"\nPyTorch {torch.__version__}, {torch.cuda.get_device_name()}: copy {rate * 1e-9:.0f} GB/s")
        peers = peers_of()
    except Exception as error:
        record.add("errors", {"what": "PyTorch", "why": first_line(error)})
        print(f"\nPyTorch: {first_line(error)}")
        return
    print(f"GB/s of K and V, f16: calls, and in a graph\n{'backend':22}" +
          "".join(f"{f'({b},{n})':>22}" for b, n in options.shapes), flush=True)
    for name, backend, how in peers:
        cells = ""
        for batch, length in options.shapes:
            result = bench_peer(torch, backend, how, batch, length)
            record.add("peers", {"name": name, "batch": batch, "kv_len": length, **result})
            if "error" in result:
                record.add("errors", {"what": f"PyTorch {name} {(batch, length)}", "why": result["error"]})
            graph = f"{result['graph_gbps']:.0f}" if "graph_gbps" in result else "-"
            cells += f"{'-':>22}" if "error" in result else f"{result['gbps']:13.0f} {graph:>8}"
        print(f"{name:22}{cells}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clattn")
    parser.add_argument("--device", default="")
    parser.add_argument("--path", default="", help="as for clattn bench")
    parser.add_argument("--shapes", default=SHAPES, help="batch x keys (default: %(default)s)",
                        type=lambda text: [tuple(map(int, shape.split("x"))) for shape in text.split(",")])
    parser.add_argument("--types", default="f16,q8_0,f8_e4m3", help="of K and V (default: %(default)s)")
    parser.add_argument("--splits", default="", help="also time these numbers of splits, as 1,8,64")
    parser.add_argument("--timeout", type=int, default=120, help="seconds for one run of clattn (default: %(default)s)")
    parser.add_argument("--no-torch", action="store_true", help="clattn alone")
    parser.add_argument("--json", help="write all figures to this file, as they come")
    options = parser.parse_args()
    record = Record(options.json)
    run_clattn(options, record)
    if not options.no_torch:
        run_torch(options, record)
    if options.splits:
        run_splits(options, record)
    for error in record.document["errors"]:
        print(f"failed: {error['what']}: {error['why']}")
    return 0 if record.document["clattn"] else 1


if __name__ == "__main__":
    sys.exit(main())
