#!/usr/bin/env python3
"""clattn on a GPU beside PyTorch's attention (FlashAttention-2, cuDNN, memory-efficient), in one run.

    gpu_bench.py [path/to/clattn] [--device NVIDIA] [--groups check,forward,decode] [--seconds 280] [--json FILE]

Without a path to the command, it is built first, in a temporary folder. Groups are run in the order in which
`--list` names them; `--seconds` ends the run in good order: what was not reached is said. Every figure is a median
over rounds, and within a round clattn and its peers take turns on the same shape. TFLOP/s count 2 * pairs * (D + Dv)
for each head, pairs being those of query and key that may see each other: 4*B*H*N*N*D, half of it when causal. Rates
of decode are GB/s of K and V read once. A ratio is the peer's time by clattn's: above 1, clattn is faster. Where a
ratio is asked for, the row says ok or FAILS.

Paths, backends and versions that are not there leave their columns empty, and the reasons are listed at the end;
figures are written to FILE as they come. Nothing about the GPU's settings is touched. Exit status 1: a check failed or
a ratio was missed.
"""
import argparse
import atexit
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
from gpu_clattn import Clattn, Refused  # noqa: E402
from gpu_torch import Peers, copy_rate, find_torch, first_line  # noqa: E402

MODEL_DIM = 2048  # heads * head dim
PAGE = 16
SET_BYTES = 512 << 20  # of K and V over all sets: more than the L2 cache holds
VARLEN = (4000, 3100, 2500, 1900, 1500, 1000, 800, 600, 400, 250, 134, 100, 100)  # 16384 tokens

# What is asked for: the peer's time by clattn's, at least ("best": the fastest peer's); or clattn's time by that of its
# plain call, at most.
REQUIRED = {"forward": ("cudnn", 1.15), "mma": ("fa2", 1.2), "features": ("plain", 1.1), "bf16": ("cudnn", 1.15),
            "f32": ("efficient", 1.4), "naive": ("naive", 4.0)}
REQUIRED.update({group: ("best", 1.0) for group in ("layout", "dims", "gqa", "window", "varlen", "decode")})
REQUIRED_SHORT = {"forward": ("best", 1.0)}  # of fewer tokens than these
REQUIRED_PAGED = ("contiguous", 0.9)  # the time without pages by that with them, at least
REQUIRED_LONG = ("copies", 0.95)  # the rate of decode, with SET_BYTES of K and V or more, by that of copies
REQUIRED_PORTABLE = {False: ("multiply-adds", 0.665), True: ("multiply-adds", 0.6)}  # the rate by their ceiling, if causal
SHORT = 2048
ONCE = ("sustained", "naive", "memory")  # groups without rounds: what takes long, or is no matter of time


@dataclasses.dataclass
class Case:
    """A shape, as clattn and its peers are both asked."""
    batch: int
    heads_q: int
    heads_kv: int
    q_len: int
    kv_len: int
    dim_qk: int
    dim_v: int
    dtype: str = "f16"
    causal: bool = False
    bshd: bool = False
    window: tuple = ()
    seqlens: tuple = ()
    sets: int = 1

    def kv_bytes(self):
        """Of K and V, 16-bit."""
        return 2 * self.batch * self.heads_kv * self.kv_len * (self.dim_qk + self.dim_v)

    def words(self):
        dims = f"{self.dim_qk}" if self.dim_qk == self.dim_v else f"{self.dim_qk}:{self.dim_v}"
        words = ["--shape", f"{self.batch},{self.heads_q},{self.heads_kv},{self.q_len},{self.kv_len},{dims}",
                 "--dtype", self.dtype]
        words += ["--causal"] if self.causal else []
        words += ["--layout", "bshd"] if self.bshd else []
        words += ["--window", "%d,%d" % self.window] if self.window else []
        words += ["--seqlens", ",".join(map(str, self.seqlens))] if self.seqlens else []
        return words


@dataclasses.dataclass
class Row:
    """A row of a table: one case of clattn's, and what it is compared with."""
    group: str
    label: str
    case: Case
    more: tuple = ()    # further words for clattn
    peers: tuple = ()
    plain: bool = False   # also compare with clattn's time without `more`
    unit: str = "TFLOP/s"
    local_memory: str = ""
    graph: bool = False
    contiguous: str = ""  # pages: the label of the row without, which comes before


# ---- The tables


def square(options, length, dim, causal, **more):
    heads = max(1, MODEL_DIM // dim)
    return Case(max(1, options.tokens // length), heads, heads, length, length, dim, dim, causal=causal, **more)


def squares(options, lengths):
    """The cells most tables have: head dims 64 and 128, full and causal, these lengths."""
    for dim in (64, 128):
        for causal in (False, True):
            for length in lengths:
                if length <= options.tokens:
                    yield dim, causal, length, f"D={dim:<3} {'causal' if causal else 'full':6} N={length}"


def forward_rows(options):
    for dim, causal, length, label in squares(options, options.lengths):
        yield Row("forward", "f16 " + label, square(options, length, dim, causal), peers=("fa2", "cudnn"))


def bf16_rows(options):
    for dim, causal, length, label in squares(options, [n for n in options.lengths if n >= options.lengths[-1] // 8]):
        yield Row("bf16", "bf16 " + label, square(options, length, dim, causal, dtype="bf16"), peers=("fa2", "cudnn"))


def mma_rows(options):
    for dim, causal, length, label in squares(options, [n for n in options.lengths if n >= options.lengths[-1] // 8]):
        yield Row("mma", "f16 " + label, square(options, length, dim, causal), ("--path", "nvidia_mma"),
                  peers=("fa2",))


def layout_rows(options):
    for dim, causal, length, label in squares(options, [options.length]):
        yield Row("layout", "[B,N,H,D] " + label, square(options, length, dim, causal, bshd=True),
                  peers=("fa2", "cudnn"))


def dims_rows(options):
    n, batch = options.length, max(1, options.tokens // options.length)
    for dim_qk, dim_v, heads in ((96, 96, 21), (256, 256, 8), (192, 128, 16)):
        for causal in (False, True):
            label = f"D={dim_qk}{'' if dim_qk == dim_v else f'/{dim_v}'} {'causal' if causal else 'full':6} N={n}"
            yield Row("dims", label, Case(batch, heads, heads, n, n, dim_qk, dim_v, causal=causal),
                      peers=("fa2", "cudnn"))


def gqa_rows(options):
    n = options.length
    yield Row("gqa", f"32/8 heads D=128 causal N={n}",
              Case(max(1, options.tokens // n), 32, 8, n, n, 128, 128, causal=True), peers=("fa2", "cudnn"))


def window_rows(options):
    n = options.tokens
    for dim in (64, 128):
        case = square(options, n, dim, True, window=(min(1023, n // 2), 0))
        yield Row("window", f"D={dim} causal, window {case.window[0] + 1}, N={n}", case, peers=("fa2 window",))


def varlen_rows(options):
    scale = options.tokens / sum(VARLEN)
    seqlens = tuple(max(1, int(n * scale)) for n in VARLEN)
    for dim in (64, 128):
        for causal in (False, True):
            case = square(options, options.tokens, dim, causal, seqlens=seqlens)
            yield Row("varlen", f"D={dim} {'causal' if causal else 'full':6} {len(seqlens)} sequences", case,
                      peers=("fa2 varlen", "fa2 nested", "cudnn nested", "cudnn each"))


def decode_case(options, batch, length):
    case = Case(batch, 32, 8, 1, length, 128, 128)
    case.sets = max(2, -(-SET_BYTES * options.tokens // 16384 // case.kv_bytes()))
    return case


def decode_rows(options):
    for types in options.kv_types.split(","):
        for page in (0, PAGE):
            for batch, length in options.decode_shapes:
                more = ("--phase", "decode") + (("--kv-dtype", types) if types != "f16" else ())
                more += ("--page-size", str(page)) if page else ()
                peers = () if page or types != "f16" else ("fa2 gqa", "fa2 rows", "cudnn gqa", "cudnn rows")
                label = f"{types} {{:11}} ({batch},{length})"
                yield Row("decode", label.format(f"pages of {page}" if page else "contiguous"),
                          decode_case(options, batch, length), more, peers, unit="GB/s", graph=True,
                          contiguous=label.format("contiguous") if page else "")
    for splits in filter(None, options.splits.split(",")):
        for batch, length in options.decode_shapes:
            yield Row("decode", f"f16 {splits:>3} splits ({batch},{length})", decode_case(options, batch, length),
                      ("--phase", "decode", "--splits", splits), unit="GB/s")


def f32_rows(options):
    for dim, causal, length, label in squares(options, [options.length]):
        yield Row("f32", "f32 " + label, square(options, length, dim, causal, dtype="f32"), peers=("efficient",))


def portable_rows(options):
    for local in ("", "32K"):
        for dtype in ("f16", "f32"):
            for dim, causal, length, label in squares(options, [options.length]):
                yield Row("portable", f"{dtype} {local or 'all':4} {label}",
                          square(options, length, dim, causal, dtype=dtype), ("--path", "portable"),
                          local_memory=local)


def naive_rows(options):
    for dim, causal, length, label in squares(options, [options.length]):
        yield Row("naive", "f16 " + label, square(options, length, dim, causal), ("--naive",))


def features_rows(options):
    n = options.length
    for dim in (64, 128):
        for causal in (False, True):
            name = f"D={dim} {'causal' if causal else 'full':6}"
            case = square(options, n, dim, causal)
            for feature, words in (("window", ("--window", f"{n},{n}")), ("softcap", ("--softcap", "30")),
                                   ("alibi", ("--alibi-max-bias", "8")), ("sinks", ("--sinks",)),
                                   ("lengths", ("--lens",)), ("lse", ("--lse",))):
                yield Row("features", f"{name} {feature}", case, words, plain=True)


def sparse_rows(options):
    for dtype, dim in (("f16", 64), ("f16", 128), ("f32", 64)):
        for name, causal, words in (("10% of key tiles", False, ("--block-sparse", "0.1")),
                                    ("all key tiles", False, ("--block-sparse", "1")),
                                    ("causal, window 256", True, ("--window", "255,0"))):
            yield Row("sparse", f"{dtype} D={dim} {name}", square(options, options.length, dim, causal, dtype=dtype),
                      words, plain=True)


def memory_rows(options):
    for length in (2048, 8192, 32768, 131072):
        if length <= 8 * options.tokens:
            yield Row("memory", f"B=1 H=1 D=64 N={length}", Case(1, 1, 1, length, length, 64, 64))


def sustained_rows(options):
    for dim, causal, length, label in squares(options, [options.length]):
        yield Row("sustained", f"f16 {label}, 1 s", square(options, length, dim, causal), peers=("fa2", "cudnn"))


TABLES = {"forward": forward_rows, "mma": mma_rows, "features": features_rows, "bf16": bf16_rows,
          "layout": layout_rows, "dims": dims_rows, "gqa": gqa_rows, "window": window_rows, "varlen": varlen_rows,
          "decode": decode_rows, "f32": f32_rows, "sustained": sustained_rows, "portable": portable_rows,
          "naive": naive_rows, "sparse": sparse_rows, "memory": memory_rows}


# ---- The record


class Record:
    """What is known so far, written after every addition."""

    def __init__(self, path):
        self.path = path
        self.document = {"device": None, "torch": None, "checks": [], "rows": [], "plans": [], "sanitizer": [],
                         "errors": [], "not_run": []}

    def add(self, part, value):
        self.document[part].append(value)
        self.write()

    def error(self, what, why):
        self.add("errors", {"what": what, "why": why})

    def write(self):
        if self.path:
            with open(self.path + ".part", "w", encoding="utf-8") as file:
                json.dump(self.document, file, indent=1)
            os.replace(self.path + ".part", self.path)


class Run:
    def __init__(self, options):
        self.options, self.record = options, Record(options.json)
        self.end = time.monotonic() + options.seconds
        self.torch, why = (None, "not asked for") if options.no_torch else find_torch()
        if not self.torch:
            self.record.error("PyTorch", why)
        self.commands = {}
        self.times = {}  # of rows, by their labels
        self.failed = []

    def left(self):
        return self.end - time.monotonic()

    def command(self, local_memory=""):
        if local_memory not in self.commands:
            more = ["--device", self.options.device] if self.options.device else []
            more += ["--local-memory", local_memory] if local_memory else []
            self.commands[local_memory] = Clattn(self.options.clattn, more, self.options.timeout)
        return self.commands[local_memory]

    def select(self):
        return ["--device", self.options.device] if self.options.device else []

    def close(self):
        for command in self.commands.values():
            command.close()


# ---- One row


def time_clattn(run, row, more):
    """The results of one turn; raises Refused."""
    options, words = run.options, row.case.words() + list(more)
    if options.path and "--path" not in words:
        words += ["--path", options.path]
    words += ["--seconds", "1", "--repeat", "1"] if row.group == "sustained" else ["--seconds", str(options.measure)]
    return run.command(row.local_memory).measure(words)


def take_turns(run, row, entry, peers):
    """Fills the entry with the medians over rounds in which clattn, its plain call and its peers take turns."""
    options, sustained = run.options, row.group == "sustained"
    results, times, plain, peer_times = None, [], [], {name: [] for name in row.peers}
    for _ in range(1 if row.group in ONCE else options.rounds):
        try:
            results = time_clattn(run, row, row.more)
            times.append(results[0]["time_ms_median"])
            if row.plain:
                plain.append(time_clattn(run, row, ())[0]["time_ms_median"])
        except Refused as error:
            run.record.error(f"clattn, {row.group}: {row.label}", str(error))
            break
        for name in row.peers if peers else ():
            seconds = peers.time(name, 1.0 if sustained else options.measure, 1 if sustained else 0)
            if seconds:
                peer_times[name].append(seconds * 1e3)
    for name, milliseconds in peer_times.items():
        if milliseconds:
            entry["peers"][name] = {"ms": statistics.median(milliseconds), "rounds": milliseconds}
    if times:
        entry["clattn"] = {**results[0], "time_ms_median": statistics.median(times), "rounds": times}
        if len(results) > 1:
            entry["naive"] = results[1]
    if plain:
        entry["plain_ms"] = statistics.median(plain)


def measure_row(run, row):
    """What goes to the record."""
    entry = {"group": row.group, "label": row.label, "words": " ".join(row.case.words() + list(row.more)),
             "clattn": None, "peers": {}}
    if not run.torch or not row.peers:
        take_turns(run, row, entry, None)
        return entry
    peers = Peers(run.torch, row.peers, row.case)
    take_turns(run, row, entry, peers)
    for name in entry["peers"] if row.graph else ():
        seconds = peers.time(name, 0, graph_calls=50)
        entry["peers"][name].update({"graph_ms": seconds * 1e3} if seconds else {})
    for name, why in peers.errors.items():
        run.record.error(f"{name}, {row.group}: {row.label}", why)
    peers.close()
    return entry


def rate(entry, milliseconds):
    """In the unit of the row."""
    amount = entry["clattn"]["bytes"] * 1e-6 if entry["clattn"]["op"] == "decode" else entry["clattn"]["flops"] * 1e-9
    return amount / milliseconds


def required(row):
    if row.contiguous:
        return [REQUIRED_PAGED]
    if row.group == "portable":
        return [] if row.local_memory else [REQUIRED_PORTABLE[row.case.causal]]
    table = REQUIRED_SHORT if row.case.q_len < SHORT and row.group in REQUIRED_SHORT else REQUIRED
    bounds = [table[row.group]] if row.group in table else []
    return bounds + [REQUIRED_LONG] * (row.group == "decode" and row.case.kv_bytes() >= SET_BYTES)


def judge(run, row, entry):
    """Adds ratios and whether they are what is asked for."""
    mine = entry["clattn"] and entry["clattn"]["time_ms_median"]
    entry["ratios"] = {name: peer["ms"] / mine for name, peer in entry["peers"].items()} if mine else {}
    if mine and "plain_ms" in entry:
        entry["of_plain"] = mine / entry["plain_ms"]
    if mine and "naive" in entry:
        entry["ratios"]["naive"] = entry["naive"]["time_ms_median"] / mine
    if entry["ratios"]:
        entry["ratios"]["best"] = min(entry["ratios"].values())
    if mine:
        run.times[row.label] = mine
        if row.contiguous in run.times:
            entry["ratios"]["contiguous"] = run.times[row.contiguous] / mine
        if row.group == "decode" and run.record.document["torch"]:
            entry["ratios"]["copies"] = entry["clattn"]["gbps"] / run.record.document["torch"]["copy_gbps"]
        if row.group == "portable":
            entry["ratios"]["multiply-adds"] = entry["clattn"]["ceiling_fraction"]
    entry["required"] = required(row)
    verdicts = [judge_one(run, row, entry, *bound) for bound in entry["required"]]
    known = [verdict for verdict in verdicts if verdict is not None]
    entry["passes"] = all(known) if known else None


def judge_one(run, row, entry, peer, bound):
    """Whether a ratio is as asked for; None if it is not known."""
    value = entry.get("of_plain") if peer == "plain" else entry["ratios"].get(peer)
    if value is None:
        return None
    passes = value <= bound if peer == "plain" else value >= bound
    if not passes:
        run.failed.append(f"{row.group}: {row.label}: {value:.3f}, asked for "
                          f"{'at most' if peer == 'plain' else 'at least'} {bound} of {peer}")
    return passes


def print_row(row, entry):
    if not entry["clattn"]:
        print(f"{row.label:44}{'-':>9}", flush=True)
        return
    result = entry["clattn"]
    text = f"{row.label:44}{rate(entry, result['time_ms_median']):9.1f}"
    for name in row.peers:
        peer = entry["peers"].get(name)
        graph = f" ({rate(entry, peer['graph_ms']):.0f})" if peer and "graph_ms" in peer else ""
        text += f"  {name} {rate(entry, peer['ms']):.1f}{graph} x{entry['ratios'][name]:.2f}" if peer else f"  {name} -"
    if "of_plain" in entry:
        text += f"  time of plain {entry['of_plain']:.3f}"
    if "contiguous" in entry["ratios"]:
        text += f"  of contiguous x{entry['ratios']['contiguous']:.2f}"
    for name in "copies", "multiply-adds":
        if name in entry["ratios"]:
            text += f"  {entry['ratios'][name]:.3f} of {name}"
    if "naive" in entry:
        text += f"  naive {rate(entry, entry['naive']['time_ms_median']):.1f} " \
                f"x{entry['naive']['time_ms_median'] / result['time_ms_median']:.1f}"
    if row.group in ("memory", "naive"):
        text += f"  {result['peak_bytes'] / 2**20:.1f} MiB"
        text += f", naive {entry['naive']['peak_bytes'] / 2**20:.1f} MiB" if "naive" in entry else ""
    if entry.get("passes") is not None:
        text += "  ok" if entry["passes"] else "  FAILS"
    splits = f", {result['splits']} splits" if result["op"] == "decode" else ""
    print(f"{text}  [{result['path']} {result['tiles']}{splits}]", flush=True)


def run_table(run, group):
    rows = list(TABLES[group](run.options))
    print(f"\n{group}, {rows[0].unit if rows else ''}", flush=True)
    for i, row in enumerate(rows):
        if run.left() < 1:
            run.record.add("not_run", f"{group}: the last {len(rows) - i} of {len(rows)} rows")
            print(f"  out of time: {len(rows) - i} rows not run")
            return
        entry = measure_row(run, row)
        judge(run, row, entry)
        run.record.add("rows", entry)
        print_row(row, entry)


# ---- Checks, plans, sanitizer


CHECKED_VARIANTS = ("full", "lean", "dims", "sequences", "pages", "mods")


def run_check(run):
    """`clattn check` of each path, its groups beside each other: the host's reference takes most of the time."""
    options = run.options
    print("\ncheck", flush=True)
    folder = options.cases or tempfile.mkdtemp(prefix="clattn-cases-")
    waiting = [(path, variants) for path in options.paths.split(",") for variants in CHECKED_VARIANTS]
    running = []
    end = time.monotonic() + options.check_seconds
    while waiting or running:
        while waiting and len(running) < options.jobs:
            path, variants = waiting.pop(0)
            command = [options.clattn, "check", "--path", path, "--variants", variants, "--json",
                       "--seed", str(options.seed), "--repeat", "2", "--save-cases", folder] + run.select()
            command += ["--phase", options.check_phase] if options.check_phase else []
            command += ["--seconds", str(max(0.1, min(end, run.end) - time.monotonic()))]
            # pylint: disable=consider-using-with
            out = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, text=True)
            running.append((path, variants, process, out, time.monotonic()))
        time.sleep(0.05)
        for job in [job for job in running if job[2].poll() is not None or run.left() < -options.timeout]:
            running.remove(job)
            finish_check(run, *job)
        if min(end, run.end) < time.monotonic() and waiting:
            run.record.add("not_run", "check: " + ", ".join(f"{p} {v}" for p, v in waiting))
            waiting = []


def finish_check(run, path, variants, process, out, begin):
    late = process.poll() is None
    if late:
        process.kill()
    process.wait()
    out.seek(0)
    text = out.read()
    out.close()
    try:
        report = json.loads(text[text.index("{"):text.rindex("}") + 1])
    except ValueError:
        report = {}
    reason = "it hangs" if late else (text.strip().splitlines() or ["no output"])[-1][:300] if not report else ""
    entry = {"path": path, "variants": variants, "seconds": time.monotonic() - begin, "cases": report.get("cases"),
             "failed": report.get("failed"), "failures": report.get("failures", []), "reason": reason,
             "complete": report.get("complete"), "worst": max((g["worst"] for g in report.get("groups", [])), default=None)}
    run.record.add("checks", entry)
    line = f"{path:14}{variants:10}"
    if reason:
        print(f"{line}  {reason}", flush=True)
        if process.returncode != 2:  # 2: the device does not offer the path
            run.failed.append(f"check: {path} {variants}: {reason}")
        return
    print(f"{line}{report['cases']:7} cases, {report['failed']} failed, worst {entry['worst'] or 0:.2f} of what is allowed, "
          f"{entry['seconds']:.0f} s{'' if report['complete'] else ': out of time'}", flush=True)
    if not report["complete"]:
        run.record.add("not_run", f"check: the rest of {path} {variants}")
    for failure in report["failures"][:5]:
        print(f"    {failure['case']}: {failure['reason']}")
    if report["failed"]:
        run.failed.append(f"check: {path} {variants}: {report['failed']} of {report['cases']} cases")


def run_plans(run):
    """The time of the first plan: nothing compiled before; then with the library's cache."""
    print("\nplan, ms of clattn_plan_create", flush=True)
    for dtype, dim in (("f16", 64), ("f16", 128), ("f32", 128)):
        case = square(run.options, min(512, run.options.tokens), dim, True, dtype=dtype)
        words = case.words() + ["--repeat", "1"] + (["--path", run.options.path] if run.options.path else [])
        with tempfile.TemporaryDirectory() as folder:
            found = {}
            # The driver has a cache of its own.
            environment = {**os.environ, "CUDA_CACHE_DISABLE": "1", "POCL_KERNEL_CACHE": "0"}
            for name in "compiled", "from cache":
                command = Clattn(run.options.clattn, ["--cache-dir", folder] + run.select(), run.options.timeout,
                                 environment)
                try:
                    found[name] = command.measure(words)[0]["plan_ms"]
                except Refused as error:
                    run.record.error(f"plan {dtype} D={dim}", str(error))
                command.close()
        run.record.add("plans", {"dtype": dtype, "dim": dim, **found})
        print(f"{dtype} D={dim:<3}" + "".join(f"  {name} {value:.0f}" for name, value in found.items()), flush=True)


def run_sanitizer(run):
    """compute-sanitizer on small shapes, where it can be had. It knows CUDA; whether it sees OpenCL programs is its
    driver's matter, so that what it says is reported, and only errors that it counts are failures."""
    print("\nsanitizer", flush=True)
    for tool in "memcheck", "racecheck":
        for path in run.options.paths.split(","):
            if run.left() < 5:
                run.record.add("not_run", f"sanitizer: {tool} {path}")
                continue
            command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "99", run.options.clattn, "check", "--quick",
                       "--path", path, "--variants", "lean", "--no-cache"] + run.select()
            try:
                done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                                      timeout=min(run.options.timeout, run.left()))
            except FileNotFoundError:
                print("compute-sanitizer is not installed")
                run.record.error("sanitizer", "compute-sanitizer is not installed")
                return
            except subprocess.TimeoutExpired:
                print(f"{tool:10} {path:14} no result in time", flush=True)
                run.record.error(f"sanitizer {tool} {path}", "no result in time")
                continue
            lines = [line.lstrip("= ") for line in (done.stdout + done.stderr).splitlines() if line.startswith("====")]
            if any("before first instrumented API call" in line for line in lines):
                print("compute-sanitizer does not see OpenCL programs here (cl/README.md says how to show it one)")
                run.record.error("sanitizer", "compute-sanitizer does not see OpenCL programs")
                return
            summary = next((line for line in reversed(lines) if "SUMMARY" in line), lines[-1] if lines else "no report")
            run.record.add("sanitizer", {"tool": tool, "path": path, "status": done.returncode, "summary": summary,
                                         "lines": lines[:200]})
            print(f"{tool:10} {path:14} status {done.returncode}: {summary}", flush=True)
            for line in lines[:6] if done.returncode == 99 else ():
                print(f"    {line}")
            if done.returncode == 99:
                run.failed.append(f"sanitizer: {tool} {path}: {summary}")


GROUPS = {"check": run_check, **{name: None for name in TABLES}, "plan": run_plans, "sanitizer": run_sanitizer}


# ---- The run


def build_command():
    """Builds the command from this source tree; returns its path."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    folder = tempfile.mkdtemp(prefix="clattn-build-")
    atexit.register(shutil.rmtree, folder, True)
    configure = ["cmake", "-S", root, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", "-DCLATTN_TESTS=OFF",
                 "-DCLATTN_SHARED=OFF"]
    for command in configure, ["cmake", "--build", folder, "--parallel", "--target", "clattn_cli"]:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return os.path.join(folder, "src", "cli", "clattn")


def describe_machine(run):
    done = subprocess.run([run.options.clattn, "info", "--json"] + run.select(), stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, check=False)
    try:
        run.record.document["device"] = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"clattn info: {(done.stderr.strip().splitlines() or ['no output'])[-1]}") from None
    text = subprocess.run([run.options.clattn, "info"] + run.select(), stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, check=False).stdout
    print(text, flush=True)
    if not run.torch:
        return
    try:
        copied = copy_rate(run.torch)
        run.record.document["torch"] = {"version": run.torch.__version__, "copy_gbps": copied * 1e-9,
                                        "cudnn": run.torch.backends.cudnn.version(),
                                        "device": run.torch.cuda.get_device_name()}
        print(f"PyTorch {run.torch.__version__}, cuDNN {run.torch.backends.cudnn.version()}, "
              f"{run.torch.cuda.get_device_name()}: copies {copied * 1e-9:.0f} GB/s", flush=True)
    except Exception as error:
        run.record.error("PyTorch", first_line(error))
        run.torch = None


def numbers(text):
    return sorted(int(part) for part in text.split(","))


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clattn", nargs="?", help="the built command (default: build it)")
    parser.add_argument("--device", default="NVIDIA", help="as for clattn (default: %(default)s; '' is clattn's choice)")
    parser.add_argument("--groups", default=",".join(GROUPS), help="which to run (default: all)")
    parser.add_argument("--list", action="store_true", help="name the groups and end")
    parser.add_argument("--seconds", type=float, default=3600, help="for the whole run (default: %(default)s)")
    parser.add_argument("--json", help="write all figures to this file, as they come")
    parser.add_argument("--rounds", type=int, default=3, help="turns of clattn and its peers (default: %(default)s)")
    parser.add_argument("--measure", type=float, default=0.1, help="seconds of one turn (default: %(default)s)")
    parser.add_argument("--path", default="", help="for rows that name none (default: the library's choice)")
    parser.add_argument("--tokens", type=int, default=16384, help="batch * length (default: %(default)s)")
    parser.add_argument("--lengths", type=numbers, default="512,1024,2048,8192,16384", help="default: %(default)s")
    parser.add_argument("--length", type=int, default=8192, help="of tables with one length (default: %(default)s)")
    parser.add_argument("--decode-shapes", default="1x8192,1x65536,16x8192,64x4096", help="batch x keys: %(default)s",
                        type=lambda text: [tuple(map(int, shape.split("x"))) for shape in text.split(",")])
    parser.add_argument("--kv-types", default="f16", help="of K and V in decode, as f16,q8_0 (default: %(default)s)")
    parser.add_argument("--splits", default="", help="also time these numbers of splits, as 1,8,64")
    parser.add_argument("--paths", default="nvidia_wgmma,nvidia_mma,portable",
                        help="of the checks (default: %(default)s)")
    parser.add_argument("--check-seconds", type=float, default=3600, help="for the checks (default: %(default)s)")
    parser.add_argument("--check-phase", default="prefill", help="prefill, decode, or '' for both (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the checks' inputs")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) - 2), help="checks beside each other")
    parser.add_argument("--cases", help="folder for failing cases (default: a temporary one)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one answer (default: %(default)s)")
    parser.add_argument("--no-torch", action="store_true", help="clattn alone")
    options = parser.parse_args()
    unknown = [name for name in options.groups.split(",") if name not in GROUPS]
    if unknown:
        parser.error(f"--groups: {', '.join(unknown)}: expected some of {', '.join(GROUPS)}")
    return options


def print_errors(errors):
    """Each reason once, with what it was first given for."""
    first = {}
    for error in errors:
        first.setdefault(error["why"], []).append(error["what"])
    for why, what in first.items():
        print(f"no figure: {what[0]}{f' and {len(what) - 1} more' if len(what) > 1 else ''}: {why}")


def main():
    options = read_options()
    if options.list:
        print("\n".join(GROUPS))
        return 0
    options.clattn = os.path.abspath(options.clattn) if options.clattn else build_command()
    run = Run(options)
    try:
        describe_machine(run)
        for group in GROUPS:
            if group not in options.groups.split(","):
                continue
            if run.left() < 1:
                run.record.add("not_run", group)
            elif GROUPS[group]:
                GROUPS[group](run)
            else:
                run_table(run, group)
    finally:
        run.close()
        run.record.document["failed"] = run.failed
        run.record.write()
    print()
    print_errors(run.record.document["errors"])
    for text in run.record.document["not_run"]:
        print(f"not run: {text}")
    for text in run.failed:
        print(f"FAILED: {text}")
    print(f"{len(run.failed)} failed" if run.failed else "all that was run is as asked for")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
