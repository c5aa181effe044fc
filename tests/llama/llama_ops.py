"""The plug-in against ggml's CPU backend, case by case: llama.cpp's test-backend-ops.

    llama_ops.py --work FOLDER attention [--part I/N] [--all [--journal FILE]] [--only REGEX]
    llama_ops.py --work FOLDER rows

`attention` is FLASH_ATTN_EXT: a sample, or with --all the whole grid. `rows` is all of SET_ROWS and CPY. Fails if a
case fails, if fewer cases than stated here ran, if a value that the sample must have is in none of them, or if an
attention is refused that the list OUTSIDE does not name."""

import argparse
import collections
import csv
import os
import re
import sys
import time
from dataclasses import dataclass
from functools import cached_property

import plugin

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "conformance"))
from data import sample  # noqa: E402

ATTENTION, ROWS, COPY = "FLASH_ATTN_EXT", "SET_ROWS", "CPY"

# Types of K and V that clattn has under ggml's names, all of which it must take; the grid has two more.
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
OUTSIDE = (("types of K or V that clattn does not have", lambda case: not case.types <= set(CACHE_TYPES)),)

SAMPLE, WORK = 480, 1 << 30  # cases; the most multiply-adds of one of them
LEAST = {ROWS: 175, COPY: 51}
SEED = 1

# What the sample has, whatever is drawn.
DIMS = ((40, 40), (64, 64), (65, 67), (72, 72), (80, 80), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256),
        (320, 256), (512, 512), (576, 512))
TYPES = (*((name, name) for name in CACHE_TYPES), ("q8_0", "q4_0"), ("q4_0", "f16"), ("f16", "f32"))
COVER = {"types of K and V": TYPES, "head dims": DIMS, "mask": (0, 1), "sinks": (0, 1), "ALiBi": (False, True),
         "softcap": (False, True), "no feature, type": ("f32", "f16", "bf16", "q8_0", "q4_0"),
         "permuted": (False, True), "view": (0, 1), "V in K, type": ("f16", "q8_0"), "group": (1, 4, 8, 12, 16, 20, 32),
         "batch": (1, 3), "rows": (1, 3, 32, 75), "keys": (113, 512, 1024)}


@dataclass(frozen=True)
class Case:
    op: str
    text: str  # as test-backend-ops names it

    def __str__(self):
        return "%s(%s)" % (self.op, self.text)

    @cached_property
    def values(self):
        return dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,]*)", self.text))

    def number(self, name):
        return int(float(self.values[name]))

    @cached_property
    def types(self):
        return {self.values["type_K"], self.values["type_V"]}

    @cached_property
    def dims(self):
        return self.number("hsk"), self.number("hsv")

    @cached_property
    def repeat(self):
        return tuple(map(int, re.findall(r"\d+", self.values["nr23"])))

    @cached_property
    def features(self):
        return (self.number("mask"), self.number("sinks"), float(self.values["max_bias"]) > 0,
                float(self.values["logit_softcap"]) > 0)

    @cached_property
    def program(self):
        """What a compiled program depends on."""
        kind = "lean" if not any(self.features) else "masked" if self.features[0] else "without a mask"
        return (*self.dims, self.values["type_K"], self.values["type_V"], kind, self.number("v_is_view_of_k"))

    @cached_property
    def work(self):
        group, batch = self.repeat
        return (self.number("nb") * self.number("kv") * self.number("nh") * group * batch * sum(self.dims))

    @cached_property
    def marks(self):
        group, batch = self.repeat
        mask, sinks, alibi, softcap = self.features
        type_k = self.values["type_K"]
        return {"types of K and V": (type_k, self.values["type_V"]), "head dims": self.dims, "mask": mask,
                "sinks": sinks, "ALiBi": alibi, "softcap": softcap,
                "no feature, type": None if any(self.features) else type_k,
                "permuted": self.values["permute"] != "[0,1,2,3]", "view": self.number("kv_view"),
                "V in K, type": type_k if self.number("v_is_view_of_k") else None, "group": group, "batch": batch,
                "rows": self.number("nb"), "keys": self.number("kv")}


def grid(device, op):
    """All cases of an operation, and the reason of each that the plug-in refuses."""
    done = device.run("test-backend-ops", "support", "-o", op, "-b", plugin.DEVICE, "--output", "csv")
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    cases, refused = [], []
    for row in csv.DictReader(lines):
        case = Case(row["op_name"], row["op_params"])
        cases.append(case)
        if row["supported"] != "1":
            refused.append(case)
    reasons = re.findall(r"^clattn: %s not supported: (.*)$" % op, done.stderr, re.MULTILINE)
    if done.returncode != 0 or not cases or len(reasons) != len(refused):
        print(done.stdout[-2000:], done.stderr[-4000:], sep="\n")
        raise SystemExit("llama_ops: the cases of %s were not listed: code %d, %d cases, %d refused, %d reasons"
                         % (op, done.returncode, len(cases), len(refused), len(reasons)))
    return cases, dict(zip(refused, reasons))


def chunks(cases, most):
    """As many as fit in one argument of a command."""
    part, size = [], 0
    for case in cases:
        if part and (len(part) == most or size + len(str(case)) > 100000):
            yield part
            part, size = [], 0
        part.append(case)
        size += len(str(case)) + 1
    if part:
        yield part


RESULT = re.compile(r"^(.*?)\b(%s)\((.*)\): *(OK|FAIL|not supported.*?) *$" % "|".join((ATTENTION, ROWS, COPY)))


def run(device, op_filter, *more):
    """What became of each case: "OK", or what was printed instead."""
    done = device.run("test-backend-ops", "test", "-o", op_filter, "-b", plugin.DEVICE, *more)
    results = {}
    for line in done.stdout.splitlines():
        found = RESULT.match(re.sub(r"\x1b\[[0-9;]*m", "", line))
        if found:
            before, op, text, status = found.groups()
            results[Case(op, text)] = status if status == "OK" else (before.strip() + " " + status).strip()
    stats = re.search(r"^clattn: %s: (.*)$" % plugin.DEVICE, done.stderr, re.MULTILINE)
    print(stats.group(1) if stats else "the plug-in did nothing", flush=True)
    failed = any(status == "FAIL" or status.endswith(" FAIL") for status in results.values())
    if done.returncode != 0 and not failed:
        print(done.stdout[-2000:], done.stderr[-4000:], sep="\n")
        raise SystemExit("llama_ops: test-backend-ops ended with code %d" % done.returncode)
    return results


def sample_of(cases):
    """Cases of few programs that have all that COVER names: compiling takes longer than running."""
    programs = collections.defaultdict(list)
    for case in cases:
        programs[case.program].append(case)
    covers = {program: {mark for case in those for mark in case.marks.items() if mark[1] in COVER[mark[0]]}
              for program, those in programs.items()}
    covered, chosen = set(), []
    while len(chosen) < len(programs):
        best = max(sorted(programs.keys() - chosen),
                   key=lambda program: (len(covers[program] - covered), len(programs[program])))
        if covers[best] <= covered and sum(len(programs[program]) for program in chosen) >= SAMPLE:
            break
        covered |= covers[best]
        chosen.append(best)
    marks = {"program": lambda case: case.program, "view": lambda case: case.marks["view"]}
    marks.update({name: (lambda case, name=name: case.marks[name]) for name in COVER})
    return sample([case for program in chosen for case in programs[program]], SAMPLE, SEED, marks)


def check_refused(refused):
    """Prints the refused cases by reason; complaints."""
    counts, wrong = collections.Counter(), []
    for case, reason in refused.items():
        names = [name for name, applies in OUTSIDE if applies(case)]
        counts[(names or ["MUST NOT BE REFUSED"])[0], reason] += 1
        if not names:
            wrong.append("refused: %s: %s" % (case, reason))
    for (name, reason), count in counts.most_common():
        print("    %5d refused, %s: %s" % (count, name, reason))
    return wrong


def check_sample(cases):
    wrong = []
    for name, values in COVER.items():
        absent = set(values) - {case.marks[name] for case in cases}
        if absent:
            wrong.append("no case of %s %s" % (name, sorted(absent)))
    if len(cases) < SAMPLE:
        wrong.append("a sample of only %d cases, fewer than %d" % (len(cases), SAMPLE))
    return wrong


class Journal:
    """What became of cases, kept in a file as soon as it is known; without a name, in memory alone."""

    def __init__(self, name):
        self.name, self.results = name, {}
        if name and os.path.exists(name):
            with open(name, encoding="utf-8") as file:
                for line in file:
                    text, status = line.rstrip("\n").split("\t")
                    self.results[Case(ATTENTION, text)] = status

    def add(self, results):
        self.results.update(results)
        if self.name:
            with open(self.name, "a", encoding="utf-8") as file:
                file.writelines("%s\t%s\n" % (case.text, status) for case, status in results.items())


def attention(device, args):
    """Runs cases of attention. What became of them, and complaints."""
    cases, refused = grid(device, ATTENTION)
    print("%s: %d of %d cases taken" % (ATTENTION, len(cases) - len(refused), len(cases)))
    wrong = check_refused(refused)

    taken = [case for case in cases if case not in refused]
    if args.only:
        taken = [case for case in taken if re.search(args.only, case.text)]
    elif args.all:
        taken.sort(key=lambda case: case.program)
    else:
        taken = sample_of([case for case in taken if case.work <= WORK])
        wrong += check_sample(taken)
    part, parts = args.part
    mine = set(sorted({case.program for case in taken})[part - 1::parts])
    taken = [case for case in taken if case.program in mine]

    journal = Journal(args.journal)
    waiting = [case for case in taken if case not in journal.results]
    for chunk in chunks(waiting, 50 if args.journal else len(waiting)):
        start = time.time()
        journal.add(run(device, ",".join(map(str, chunk)), "-p", "^hsk="))
        if args.journal:
            print("%d of %d, %.0f s" % (len(journal.results), len(taken), time.time() - start), flush=True)
    wrong += ["not run: %s" % case for case in taken if case not in journal.results]
    return {case: journal.results[case] for case in taken if case in journal.results}, wrong


def rows_and_copies(device):
    results = run(device, "%s,%s" % (ROWS, COPY))
    taken = {case: status for case, status in results.items() if not status.startswith("not supported")}
    for op in (ROWS, COPY):
        print("%s: %d of %d cases taken" % (op, sum(case.op == op for case in taken),
                                            sum(case.op == op for case in results)))
    # The writes that a cache needs.
    wrong = []
    have = {(case.values["type_src"], case.values["type_dst"]) for case in taken if case.op == ROWS}
    for missing in sorted({("f32", name) for name in CACHE_TYPES} - have):
        wrong.append("no SET_ROWS of %s into %s" % missing)
    for op in (ROWS, COPY):
        ran = sum(case.op == op for case in taken)
        if ran < LEAST[op]:
            wrong.append("only %d cases of %s were taken, fewer than %d" % (ran, op, LEAST[op]))
    return taken, wrong


def part_of(text):
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError
    return part, parts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    plugin.options(parser)
    parser.add_argument("what", choices=("attention", "rows"))
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="I/N", help="a share of the programs")
    parser.add_argument("--all", action="store_true", help="the whole grid of attention")
    parser.add_argument("--journal", help="file that keeps what became of each attention; those are not run again")
    parser.add_argument("--only", metavar="REGEX", help="cases of attention whose parameters match, nothing else")
    args = parser.parse_args()
    device = plugin.Plugin(args.work)

    results, wrong = attention(device, args) if args.what == "attention" else rows_and_copies(device)
    for op in (ATTENTION, ROWS, COPY):
        statuses = [status for case, status in results.items() if case.op == op]
        if statuses:
            print("%s: %d of %d right" % (op, statuses.count("OK"), len(statuses)))
    wrong += ["%s: %s" % (case, status) for case, status in results.items() if status != "OK"]
    for complaint in wrong[:40]:
        print("WRONG " + complaint)
    if len(wrong) > 40:
        print("and %d more" % (len(wrong) - 40))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
