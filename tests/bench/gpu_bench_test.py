#!/usr/bin/env python3
"""gpu_bench.py on the device that there is, with small shapes and without PyTorch: every table is made, figures are
in the record, a path that the device lacks is said and passed over."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True  # nothing of a test run stays in the source tree
sys.path.insert(0, HERE)
import gpu_bench  # noqa: E402  pylint: disable=wrong-import-position

GROUPS = "forward,mma,features,varlen,decode,memory"
# The cpu path alone: on a CPU driver the other one takes long to compile.
SMALL = ["--device", "", "--no-torch", "--path", "cpu", "--tokens", "256", "--lengths", "128,256", "--length", "128",
         "--decode-shapes", "1x128", "--rounds", "1", "--measure", "0.005"]


def run(clattn, folder, *more, environment=None):
    path = os.path.join(folder, "record.json")
    done = subprocess.run([sys.executable, os.path.join(HERE, "gpu_bench.py"), clattn, "--json", path, *SMALL, *more],
                          capture_output=True, text=True, check=False, env=environment)
    with open(path, encoding="utf-8") as file:
        return done, json.load(file)


# (group, tokens, times of peers where clattn's is 1, what is judged)
JUDGED = (("forward", 8192, {"fa2": 2.0, "cudnn": 1.16}, True), ("forward", 8192, {"fa2": 2.0, "cudnn": 1.14}, False),
          ("forward", 512, {"fa2": 2.0, "cudnn": 1.01}, True), ("forward", 512, {"fa2": 0.99, "cudnn": 1.2}, False),
          ("bf16", 8192, {"cudnn": 1.14}, False), ("decode", 1, {"fa2 gqa": 1.5, "cudnn gqa": 0.98}, False),
          ("decode", 1, {"fa2 gqa": 1.5, "cudnn gqa": 1.02}, True), ("f32", 8192, {"efficient": 1.39}, False),
          ("f32", 8192, {"efficient": 1.41}, True), ("forward", 8192, {"fa2": 2.0}, None), ("sparse", 8192, {}, None))


def judge(group, tokens, peers):
    row = gpu_bench.Row(group, "", gpu_bench.Case(1, 1, 1, tokens, tokens, 64, 64))
    entry = {"clattn": {"time_ms_median": 1.0, "gbps": 0}, "peers": {name: {"ms": time} for name, time in peers.items()}}
    verdict = no_verdicts(None)
    gpu_bench.judge(verdict, row, entry)
    return entry["passes"] if bool(verdict.failed) == (entry["passes"] is False) else "not told"


def no_verdicts(torch):
    return types.SimpleNamespace(failed=[], times={}, record=types.SimpleNamespace(document={"torch": torch}))


def judge_pages(time):
    """Of a row with pages, where the one without took 1."""
    case, verdict = gpu_bench.Case(1, 1, 1, 1, 128, 64, 64), no_verdicts(None)
    for label, contiguous, took in (("without", "", 1.0), ("with", "without", time)):
        entry = {"clattn": {"time_ms_median": took}, "peers": {}}
        gpu_bench.judge(verdict, gpu_bench.Row("decode", label, case, contiguous=contiguous), entry)
    return entry["passes"]


def judge_copies(batch, cudnn, gbps):
    """Of a row of decode on a device that copies 1000 GB/s."""
    case = gpu_bench.Case(batch, 32, 8, 1, 8192, 128, 128)
    entry = {"clattn": {"time_ms_median": 1.0, "gbps": gbps}, "peers": {"cudnn gqa": {"ms": cudnn}}}
    gpu_bench.judge(no_verdicts({"copy_gbps": 1000}), gpu_bench.Row("decode", "", case), entry)
    return entry["passes"]


def judge_portable(causal, local_memory, fraction):
    case = gpu_bench.Case(1, 1, 1, 8192, 8192, 64, 64, causal=causal)
    entry = {"clattn": {"time_ms_median": 1.0, "ceiling_fraction": fraction}, "peers": {}}
    gpu_bench.judge(no_verdicts(None), gpu_bench.Row("portable", "", case, local_memory=local_memory), entry)
    return entry["passes"]


def sanitize(clattn, folder, says, status):
    """With a compute-sanitizer that says so and ends with this status: how often it ran, the status, the record."""
    tool, runs = os.path.join(folder, "compute-sanitizer"), os.path.join(folder, "runs")
    with open(tool, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\necho run >>'{runs}'\necho '========= {says}'\nexit {status}\n")
    os.chmod(tool, 0o755)
    done, record = run(clattn, folder, "--groups", "sanitizer", "--paths", "cpu",
                       environment={**os.environ, "PATH": folder + os.pathsep + os.environ["PATH"]})
    with open(runs, encoding="utf-8") as file:
        count = len(file.readlines())
    os.remove(runs)
    return count, done.returncode, record


def main():
    clattn = sys.argv[1]
    info = subprocess.run([clattn, "info"], capture_output=True, text=True, check=False)
    if "cpu          applies" not in info.stdout:
        print("no device with the cpu path")
        return 77
    wrong = [f"judged {judge(*case)}: {case}" for *case, expected in JUDGED if judge(*case) is not expected]
    wrong += [f"pages, time {time}" for time, expected in ((1.1, True), (1.2, False)) if judge_pages(time) is not expected]
    wrong += [f"copies: {case}" for *case, expected in ((16, 1.1, 960, True), (16, 1.1, 940, False), (16, 0.9, 960, False),
                                                        (8, 1.1, 500, True)) if judge_copies(*case) is not expected]
    wrong += [f"portable: {case}" for *case, expected in ((False, "", 0.67, True), (False, "", 0.66, False),
                                                          (True, "", 0.61, True), (True, "", 0.59, False),
                                                          (False, "32K", 0.5, None)) if judge_portable(*case) is not expected]
    with tempfile.TemporaryDirectory() as folder:
        done, record = run(clattn, folder, "--groups", GROUPS)
        groups = {row["group"] for row in record["rows"]}
        if groups != set(GROUPS.split(",")):
            wrong.append(f"groups: {groups}")
        empty = {row["group"] for row in record["rows"] if not row["clattn"]}
        if empty != {"mma"}:
            wrong.append(f"rows without a figure: {empty}")
        if any(row["clattn"]["time_ms_median"] <= 0 for row in record["rows"] if row["clattn"]):
            wrong.append("times that are none")
        if not all("contiguous" in row["ratios"] for row in record["rows"] if "pages" in row["label"]):
            wrong.append("pages without their contiguous row")
        if not all(row["of_plain"] > 0 for row in record["rows"] if row["group"] == "features"):
            wrong.append("features without their plain call")
        if "nvidia_mma does not apply" not in done.stdout or done.returncode not in (0, 1):
            wrong.append(f"status {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}")
        # What has failed is told by the status too.
        if (done.returncode == 1) != bool(record["failed"]):
            wrong.append(f"status {done.returncode}, failed {record['failed']}")
        if shutil.which("gnuplot"):
            plot = os.path.join(folder, "plot.svg")
            subprocess.run([sys.executable, os.path.join(HERE, "gpu_plot.py"), os.path.join(folder, "record.json"), plot],
                           check=True)
            with open(plot, encoding="utf-8") as file:
                if "clattn cpu" not in file.read():
                    wrong.append("no line of clattn in the plot")
        done, record = run(clattn, folder, "--groups", "check", "--paths", "cpu,nvidia_mma", "--jobs", "1",
                           "--check-seconds", "6")
        checks = {entry["path"]: entry for entry in record["checks"]}
        if checks["cpu"]["failed"] != 0 or not checks["cpu"]["cases"]:
            wrong.append(f"check: {checks}")
        done, record = run(clattn, folder, "--groups", "forward", "--seconds", "0.001")
        if done.returncode != 0 or not record["not_run"]:
            wrong.append(f"out of time: status {done.returncode}, {record['not_run']} {done.stdout[-300:]}")
        # One that sees no OpenCL is asked once, and fails nothing; one that finds an error fails both of its tools.
        blind = sanitize(clattn, folder, "Error: Target application terminated before first instrumented API call", 0)
        if blind[:2] != (1, 0) or blind[2]["sanitizer"] or not any(e["what"] == "sanitizer" for e in blind[2]["errors"]):
            wrong.append(f"a sanitizer that sees nothing: {blind}")
        finds = sanitize(clattn, folder, "ERROR SUMMARY: 1 error", 99)
        if finds[:2] != (2, 1) or len(finds[2]["failed"]) != 2:
            wrong.append(f"a sanitizer that finds an error: {finds}")
    for text in wrong:
        print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
