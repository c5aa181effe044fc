#!/usr/bin/env python3
"""What masks save on the CPU: the least times of a causal window of 256 keys and of random lists of 10% of the key
tiles, against the call without them.

    sparsity_ratio.py path/to/clattn [--length 8192] [--rounds 3] [--loose]

The aims, on a quiet machine: the window costs at most 1.5 times its share of the multiply-adds, 10% of the tiles run
at least 5 times faster than all. --loose (CTest) bears a machine that others use: 2.2 and 3.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile


def least_time(clattn, length, options):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        command = [clattn, "bench", "--path", "cpu", "--shape", f"1,2,2,{length},{length},64"]
        command += ["--json", path] + options
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode == 3:
            print("no CPU device")
            sys.exit(77)
        done.check_returncode()
        with open(path, encoding="utf-8") as file:
            result = json.load(file)["results"][0]
        return result["time_ms_min"], result["flops"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clattn")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loose", action="store_true")
    options = parser.parse_args()
    variants = {"all": [], "window": ["--causal", "--window", "255,0"], "sparse": ["--block-sparse", "0.1"]}
    time, flops = {}, {}
    for _ in range(options.rounds):  # in turns, so that others' work meets all alike
        for name, more in variants.items():
            milliseconds, flops[name] = least_time(options.clattn, options.length, more)
            time[name] = min(time.get(name, milliseconds), milliseconds)
    window = time["window"] / time["all"] / (flops["window"] / flops["all"])
    faster = time["all"] / time["sparse"]
    most, least = (2.2, 3.0) if options.loose else (1.5, 5.0)
    print(f"N={options.length}, D=64, f32: all {time['all']:.1f} ms, window {time['window']:.2f} ms, "
          f"10% of the tiles {time['sparse']:.2f} ms")
    print(f"a causal window of 256 costs {window:.2f} times its share (at most {most})")
    print(f"10% of the key tiles run {faster:.1f} times faster (at least {least})")
    return 0 if window <= most and faster >= least else 1


if __name__ == "__main__":
    sys.exit(main())
