"""PyTorch's attention, timed as `clattn bench` times: what gpu_bench.py puts beside it. A peer is a pair: what
makes the context for its calls, and the call; making one may fail, and so may the call: whoever asks is told why and goes on."""
import contextlib
import statistics
import time

BATCH_SECONDS = 0.004  # calls back to back between two looks at the clock


def find_torch():
    """Returns (module, why not)."""
    try:
        import torch
    except Exception as error:  # a broken installation must not end the run
        return None, f"PyTorch cannot be imported: {first_line(error)}"
    if not torch.cuda.is_available():
        return None, "PyTorch has no CUDA device"
    return torch, None


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


# ---- Time


def run_batch(torch, call, count):
    start = time.perf_counter()
    for i in range(count):
        call(i)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def seconds_per_call(torch, call, budget, repeats=0):
    """The median of repetitions, each some milliseconds of calls back to back; with `repeats` these share the budget.
    `call` takes a running number."""
    run_batch(torch, call, 1)
    first = max(run_batch(torch, call, 2), 1e-6)
    length = max(BATCH_SECONDS, budget / repeats if repeats else 0)
    count = max(1, min(1000, int(length / first)))
    rounds = repeats or max(3, min(50, int(budget / (first * count))))
    return statistics.median(run_batch(torch, call, count) for _ in range(rounds))


def seconds_in_graph(torch, call, calls):
    """The same with the calls captured once and replayed, which takes Python's share away."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(0)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    graph.replay()
    torch.cuda.synchronize()
    return statistics.median(run_batch(torch, lambda _: graph.replay(), 1) for _ in range(3)) / calls


def copy_rate(torch):
    """Bytes per second of device-to-device copies, read and written."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").fill_(1)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds_per_call(torch, lambda _: target.copy_(source), 0.1)


# ---- Peers


def storage(torch, dtype):
    return {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[dtype]


def tensors(torch, case):
    """q, k, v as [B, H, N, D], in the memory layout of the case."""
    def draw(heads, length, dim):
        shape = (case.batch, length, heads, dim) if case.bshd else (case.batch, heads, length, dim)
        drawn = torch.randn(shape, device="cuda", dtype=storage(torch, case.dtype))
        return drawn.transpose(1, 2) if case.bshd else drawn
    return (draw(case.heads_q, case.q_len, case.dim_qk), draw(case.heads_kv, case.kv_len, case.dim_qk),
            draw(case.heads_kv, case.kv_len, case.dim_v))


def packed(torch, case):
    """q, k, v as [total, H, D], the rows where sequences begin, and the longest."""
    total = sum(case.seqlens)
    draw = lambda heads, dim: torch.randn((total, heads, dim), device="cuda",  # noqa: E731
                                          dtype=storage(torch, case.dtype))
    starts = [0]
    for length in case.seqlens:
        starts.append(starts[-1] + length)
    return (draw(case.heads_q, case.dim_qk), draw(case.heads_kv, case.dim_qk), draw(case.heads_kv, case.dim_v),
            torch.tensor(starts, dtype=torch.int32, device="cuda"), max(case.seqlens))


def backend_of(name):
    from torch.nn.attention import SDPBackend
    return {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}[name]


def sdpa(torch, case, name):
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    q, k, v = tensors(torch, case)
    more = {"enable_gqa": True} if case.heads_q != case.heads_kv else {}
    return lambda: sdpa_kernel(backend_of(name)), lambda _: scaled_dot_product_attention(q, k, v, is_causal=case.causal, **more)


def fa2_forward(torch, case):
    """FlashAttention-2 as PyTorch has it inside, with what its public functions do not pass on: a window."""
    q, k, v = (t.transpose(1, 2).contiguous() for t in tensors(torch, case))
    left, right = case.window
    forward = torch.ops.aten._flash_attention_forward
    return contextlib.nullcontext, lambda _: forward(
        q, k, v, None, None, case.q_len, case.kv_len, 0.0, case.causal, False,
        window_size_left=left, window_size_right=right)


def fa2_varlen(torch, case):
    q, k, v, starts, longest = packed(torch, case)
    forward = torch.ops.aten._flash_attention_forward
    return contextlib.nullcontext, lambda _: forward(q, k, v, starts, starts, longest, longest, 0.0, case.causal,
                                                       False)


def nested(torch, case, name):
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    q, k, v, starts, longest = packed(torch, case)
    jagged = [torch.nested.nested_tensor_from_jagged(t, starts, max_seqlen=longest).transpose(1, 2) for t in (q, k, v)]
    return lambda: sdpa_kernel(backend_of(name)), lambda _: scaled_dot_product_attention(*jagged, is_causal=case.causal)


def each_sequence(torch, case, name):
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    q, k, v, _, _ = packed(torch, case)
    parts = [[part.transpose(0, 1).unsqueeze(0) for part in t.split(list(case.seqlens))] for t in (q, k, v)]

    def call(_):
        for triple in zip(*parts):
            scaled_dot_product_attention(*triple, is_causal=case.causal)
    return lambda: sdpa_kernel(backend_of(name)), call


def decode(torch, case, name, how):
    """`gqa`: K and V as they are; `packed`: the query heads of a KV head as so many rows of one head, which is the
    same for a single query; both over several sets of K and V, more than the L2 cache holds."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    group = case.heads_q // case.heads_kv
    draw = lambda *shape: torch.randn(shape, device="cuda", dtype=storage(torch, case.dtype))  # noqa: E731
    q = draw(case.batch, case.heads_kv, group, case.dim_qk) if how == "packed" else \
        draw(case.batch, case.heads_q, 1, case.dim_qk)
    sets = [(draw(case.batch, case.heads_kv, case.kv_len, case.dim_qk),
             draw(case.batch, case.heads_kv, case.kv_len, case.dim_v)) for _ in range(case.sets)]
    more = {"enable_gqa": True} if how == "gqa" else {}
    return lambda: sdpa_kernel(backend_of(name)), lambda i: scaled_dot_product_attention(q, *sets[i % case.sets], **more)


PEERS = {
    "fa2": lambda torch, case: sdpa(torch, case, "fa2"),
    "cudnn": lambda torch, case: sdpa(torch, case, "cudnn"),
    "efficient": lambda torch, case: sdpa(torch, case, "efficient"),
    "fa2 window": fa2_forward,
    "fa2 varlen": fa2_varlen,
    "fa2 nested": lambda torch, case: nested(torch, case, "fa2"),
    "cudnn nested": lambda torch, case: nested(torch, case, "cudnn"),
    "cudnn each": lambda torch, case: each_sequence(torch, case, "cudnn"),
    "fa2 gqa": lambda torch, case: decode(torch, case, "fa2", "gqa"),
    "fa2 rows": lambda torch, case: decode(torch, case, "fa2", "packed"),
    "cudnn gqa": lambda torch, case: decode(torch, case, "cudnn", "gqa"),
    "cudnn rows": lambda torch, case: decode(torch, case, "cudnn", "packed"),
}


class Peers:
    """The peers of one case, made once and timed as often as asked."""

    def __init__(self, torch, names, case):
        self.torch, self.made, self.errors = torch, {}, {}
        for name in names:
            try:
                self.made[name] = PEERS[name](torch, case)
            except Exception as error:  # refused, out of memory, not in this version
                self.errors[name] = first_line(error)

    def time(self, name, budget, repeats=0, graph_calls=0):
        """Seconds of a call, in a graph with `graph_calls`; None where it fails, which `errors` then tells."""
        if name not in self.made:
            return None
        context, call = self.made[name]
        try:
            with self.torch.no_grad(), context():
                if graph_calls:
                    return seconds_in_graph(self.torch, call, graph_calls)
                return seconds_per_call(self.torch, call, budget, repeats)
        except Exception as error:
            self.errors[name + (" graph" if graph_calls else "")] = first_line(error)
            if not graph_calls:
                del self.made[name]
            with contextlib.suppress(Exception):
                self.torch.cuda.synchronize()
            return None

    def close(self):
        self.made = {}
        with contextlib.suppress(Exception):
            self.torch.cuda.empty_cache()
