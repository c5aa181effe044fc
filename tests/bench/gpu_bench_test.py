#!/usr/bin/env python3
"""gpu_bench.py on the device that there is, with small shapes and without PyTorch: every table is made, figures are
in the record, a path that the device lacks is said and passed over."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
GROUPS = "forward,mma,features,varlen,decode,memory"
# The cpu path alone: on a CPU driver the other one takes long to compile.
SMALL = ["--device", "", "--no-torch", "--path", "cpu", "--tokens", "256", "--lengths", "128,256", "--length", "128",
         "--decode-shapes", "1x128", "--rounds", "1", "--measure", "0.005"]


def run(clattn, folder, *more):
    path = os.path.join(folder, "record.json")
    done = subprocess.run([sys.executable, os.path.join(HERE, "gpu_bench.py"), clattn, "--json", path, *SMALL, *more],
                          capture_output=True, text=True, check=False)
    with open(path, encoding="utf-8") as file:
        return done, json.load(file)


def main():
    clattn = sys.argv[1]
    info = subprocess.run([clattn, "info"], capture_output=True, text=True, check=False)
    if "cpu          applies" not in info.stdout:
        print("no device with the cpu path")
        return 77
    wrong = []
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
    for text in wrong:
        print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
