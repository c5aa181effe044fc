#!/usr/bin/env python3
"""TFLOP/s against N from a record of gpu_bench.py, clattn's paths beside its peers, by gnuplot.

    gpu_plot.py RECORD.json PLOT    from the groups forward and mma; PLOT ends in .svg or .png

A panel for each head dim, full and causal.
"""
import json
import re
import subprocess
import sys

PEERS = {"cudnn": "cuDNN", "fa2": "FlashAttention-2"}
LABEL = re.compile(r"f16 D=(\d+) +(full|causal) +N=(\d+)")


def lines_of(record):
    """{(head dim, mask): {name of a line: {N: TFLOP/s}}}"""
    panels = {}
    for row in record["rows"]:
        label = LABEL.fullmatch(row["label"])
        if row["group"] not in ("forward", "mma") or not label or not row["clattn"]:
            continue
        panel = panels.setdefault((int(label[1]), label[2]), {})
        mine = row["clattn"]
        times = {"clattn " + mine["path"]: mine["time_ms_median"]}
        if row["group"] == "forward":
            times.update({PEERS[name]: peer["ms"] for name, peer in row["peers"].items() if name in PEERS})
        for name, milliseconds in times.items():
            panel.setdefault(name, {})[int(label[3])] = mine["flops"] * 1e-9 / milliseconds
    return panels


def program_of(record, panels, path):
    """What gnuplot is told."""
    names = sorted({name for panel in panels.values() for name in panel})
    device = next(device["name"] for device in record["device"]["devices"] if device["chosen"])
    most = max(rate for panel in panels.values() for line in panel.values() for rate in line.values())
    lengths = sorted({n for panel in panels.values() for line in panel.values() for n in line})
    terminal = "svg background '#ffffff'" if path.endswith(".svg") else "png"
    text = [f"set terminal {terminal} size 900,640 font 'sans,12' noenhanced\nset output '{path}'",
            f"set multiplot layout 2,{max(1, (len(panels) + 1) // 2)} title 'f16 forward, TFLOP/s against N  ({device})'",
            f"set yrange [0:{most * 1.1}]\nset logscale x 2\nset xrange [{lengths[0] / 1.3}:{lengths[-1] * 1.3}]\nset grid",
            f"set xtics ({', '.join(map(str, lengths))})"]
    for i, (name, line) in enumerate(sorted(panels.items())):
        key = "set key bottom right" if i == len(panels) - 1 else "unset key"
        text.append(f"set title 'D = {name[0]}, {name[1]}'\n{key}")
        for j, series in enumerate(names):
            points = "\n".join(f"{n} {rate:.1f}" for n, rate in sorted(line.get(series, {}).items()))
            text.append(f"$line{j} << end\n{points or 'NaN NaN'}\nend")
        text.append("plot " + ", ".join(f"$line{j} using 1:2 with linespoints linewidth 2 pointtype 7 pointsize 0.5 "
                                        f"linecolor {j + 1} title '{series}'" for j, series in enumerate(names)))
    return "\n".join(text) + "\n"


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        record = json.load(file)
    panels = lines_of(record)
    if not panels:
        raise SystemExit(f"{sys.argv[1]}: no figures of the groups forward and mma")
    subprocess.run(["gnuplot"], input=program_of(record, panels, sys.argv[2]), text=True, check=True)


if __name__ == "__main__":
    main()
