#!/usr/bin/env python3
"""`clattn tune`: a bounded sample on the paths that CPUs have, what its file changes, and Ctrl-C in the middle."""
import json
import os
import signal
import subprocess
import sys
import time

from cli_files import CLI, fail, finish, need_device, run, scratch

# Local memory as on small devices: on a CPU driver larger tiles take long to compile.
SAMPLES = (("cpu", [], "1,4,2,96,96,20"), ("portable", ["--local-memory", "16K"], "1,4,2,96,96,20"))
QUICK = ["--seconds", "0.02", "--dtype", "f32", "--causal"]


def entries(path):
    with open(path) as file:
        return [line for line in file.read().splitlines() if line.startswith("tile ")]


def sample(folder, path, more, shape):
    target = os.path.join(folder, f"{path}.tune")
    result = run("tune", "-o", target, "--path", path, "--shape", shape, "--candidates", "2", *QUICK, *more)
    if result.returncode != 0:
        return fail(f"tune --path {path}: {result.stderr}")
    lines = entries(target)
    if len(lines) != 1 or not lines[0].startswith(f"tile {path} prefill f32,f32,f32 32/32 lean 0: -D"):
        return fail(f"tune --path {path}: {lines}")
    if "    1  " not in result.stdout or "1 choice in" not in result.stdout:
        fail(f"tune --path {path}: {result.stdout}")
    words = ["--shape", shape, "--phase", "prefill", "--path", path, "--repeat", "1", *more]
    tuned = run("bench", *words, "--tuning", target, "-v")
    if tuned.returncode != 0 or f"{path}: tuned tiles" not in tuned.stderr:
        fail(f"bench --tuning: {tuned.stderr}")
    if path == "portable":  # a CPU driver compiles it slowly: the cpu path shows the rest
        return None
    plain = run("bench", *words, "--dtype", "f16", "--tuning", target, "-v")
    if plain.returncode != 0 or "tuned" in plain.stderr:
        fail(f"bench --tuning with another type: {plain.stderr}")
    checked = run("check", "--quick", "--path", path, "--variants", "lean", "--tuning", target, "--json", *more)
    if checked.returncode != 0 or json.loads(checked.stdout)["failed"]:
        fail(f"check --tuning: {checked.stderr}")
    return None


def interrupted(folder):
    """What was chosen before is in the file, and the command ends well."""
    target = os.path.join(folder, "interrupted.tune")
    process = subprocess.Popen([CLI, "tune", "-o", target, "--path", "cpu", "--seconds", "0.02", "--dtype", "f32", "--causal",
                                "--candidates", "2", "--shape", "1,4,2,96,96,20", "--shape", "1,4,2,96,96,60",
                                "--shape", "1,4,2,96,96,90", "--shape", "1,4,2,96,96,120", "--shape", "1,4,2,96,96,190"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not os.path.exists(target) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    if process.returncode != 0 or "interrupted" not in out:
        return fail(f"Ctrl-C: status {process.returncode}: {out} {err}")
    if not 1 <= len(entries(target)) < 5:
        fail(f"Ctrl-C: {entries(target)}")
    if run("info", "--tuning", target).returncode != 0:
        fail("Ctrl-C: the file is not whole")


need_device()
if run("source", "--path", "cpu").returncode == 2:
    print("the device does not offer path cpu")
    sys.exit(77)
with scratch() as place:
    for path, more, shape in SAMPLES:
        sample(place, path, more, shape)
    if os.name == "posix":
        interrupted(place)
finish("cli_tune")
