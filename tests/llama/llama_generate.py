"""Whole models in stock llama.cpp, with their attention in the plug-in and without: the same tokens?

    llama_generate.py --work FOLDER MODEL [--memory device]

MODEL is one of models.py. Each run of RUNS decodes greedily twice, once on ggml's CPU backend alone. Fails if a token
differs, if the smallest margin of a choice is not well above the largest difference of logits (the tokens would say
little then), or if attention or the writing of its cache was not the plug-in's."""

import argparse
import os
import re
import sys

import models
import plugin

# Scenario (of greedy.c), types of K and V, and "no-flash": llama.cpp computes attention in steps, which the plug-in
# leaves to the CPU backend, in the plug-in's buffers.
RUNS = {
    "llama": (("plain", "f16", "f16"), ("sequences", "f16", "f16"), ("unified", "f16", "f16"),
              ("state", "f16", "f16"), ("fork", "f16", "f16"), ("shift", "f16", "f16"), ("plain", "f32", "f32"),
              ("plain", "bf16", "bf16"), ("plain", "f16", "f16", "no-flash")),
    "llama-quantised": (("plain", "q8_0", "q8_0"), ("sequences", "q8_0", "q8_0"), ("state", "q8_0", "q8_0"),
                        ("fork", "q8_0", "q8_0"), ("shift", "q8_0", "q8_0"), ("plain", "q4_0", "q4_0"),
                        ("state", "q8_0", "q4_0"), ("plain", "q5_1", "iq4_nl"), ("plain", "q8_0", "f16")),
    "gemma2": (("plain", "f16", "f16"), ("sequences", "f16", "f16"), ("unified", "f16", "f16"),
               ("state", "f16", "f16"), ("fork", "f16", "f16"), ("shift", "f16", "f16"), ("plain", "q8_0", "q8_0")),
    "bloom": (("plain", "f16", "f16"), ("sequences", "f16", "f16"), ("fork", "f16", "f16"),
              ("shift", "f16", "f16"), ("plain", "q8_0", "q8_0")),
    "gpt-oss": (("plain", "f16", "f16"), ("sequences", "f16", "f16"), ("state", "f16", "f16"),
                ("shift", "f16", "f16"), ("plain", "q8_0", "q8_0")),
}
ABOVE = 2.0  # smallest margin over largest difference
VARIED = 5  # different tokens in a run: a model that repeats itself shows little


def decode(device, path, run, loaded):
    """What greedy printed: (sequence, token) and (best, second) of each choice; and what it logged."""
    done = device.run("greedy", path, plugin.DEVICE if loaded else "none", *run, loaded=loaded)
    if done.returncode != 0:
        print(done.stderr[-6000:])
        raise SystemExit("llama_generate: greedy %s %s ended with code %d" % (path, " ".join(run), done.returncode))
    lines = [line.split() for line in done.stdout.splitlines()]
    return [tuple(map(int, line[:2])) for line in lines], [tuple(map(float, line[2:])) for line in lines], done.stderr


def compare(device, path, run):
    """Prints one line. Complaints."""
    tokens, logits, _ = decode(device, path, run, loaded=False)
    found, found_logits, log = decode(device, path, run, loaded=True)
    margin = min(best - second for best, second in logits)
    same = sum(a == b for a, b in zip(tokens, found))
    difference = max((max(abs(a - x), abs(b - y)) for (a, b), (x, y), token, other
                      in zip(logits, found_logits, tokens, found) if token == other), default=float("inf"))
    counts = re.search(r"(\d+) attention ops, (\d+) row writes", log)
    attention, rows = map(int, counts.groups()) if counts else (0, 0)
    print("%-10s %-5s %-6s %-8s %3d of %3d tokens, margin %.2e, difference %.2e, %4d attention, %4d row writes"
          % (run[0], run[1], run[2], "".join(run[3:]), same, len(tokens), margin, difference, attention, rows))
    wrong = []
    if found != tokens:
        wrong.append("tokens differ")
    if len({token for _, token in tokens}) < VARIED:
        wrong.append("fewer than %d different tokens" % VARIED)
    if margin < ABOVE * difference:
        wrong.append("a margin of %.2e is not well above a difference of %.2e" % (margin, difference))
    if "no-flash" in run:
        if attention:
            wrong.append("attention in the plug-in without FLASH_ATTN_EXT")
    elif not attention or not rows:
        wrong.append("attention or its cache was not in the plug-in")
    return ["%s: %s" % (" ".join(run), complaint) for complaint in wrong]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    plugin.options(parser)
    parser.add_argument("model", choices=sorted(RUNS))
    parser.add_argument("--memory", choices=("shared", "device"), default="shared",
                        help="device: as if the device had memory of its own")
    args = parser.parse_args()
    device = plugin.Plugin(args.work, args.memory)
    folder = os.path.join(args.work, "models")
    os.makedirs(folder, exist_ok=True)
    path = models.MODELS[args.model](os.path.join(folder, args.model + ".gguf"))
    wrong = []
    for run in RUNS[args.model]:
        if args.memory == "device" and run[0] == "shift":
            continue  # rotates the cache where it lies, which only the CPU backend does
        wrong += compare(device, path, run)
    for complaint in wrong:
        print("WRONG " + complaint)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
