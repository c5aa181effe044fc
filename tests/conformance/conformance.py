"""What the suites share: their options, the report, and what happens when packages are missing."""

import argparse
import os
import sys
import time


def parse_options(description, grid=True):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--library", required=True, help="libclattn.so")
    parser.add_argument("--header", required=True, help="clattn.h")
    parser.add_argument("--device", default=os.environ.get("CLATTN_DEVICE", ""),
                        help="part of a platform's or device's name (default: the first device)")
    parser.add_argument("--path", help="run every case on this path (default: most on the first that fits the device, "
                        "some on portable)")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    if grid:
        parser.add_argument("--all", action="store_true", help="the whole grid, not a sample")
        parser.add_argument("--cases", type=int, help="size of the sample")
        parser.add_argument("--seed", type=int, default=1, help="of the data and the sample (default: %(default)s)")
    return parser.parse_args()


def open_attention(options):
    from attention import Attention
    from opencl import OpenCLError
    try:
        return Attention(options.header, options.library, options.device)
    except OpenCLError as error:
        leave_without(str(error))


def leave_without(what):
    """The suite cannot run: a failure where it must (CI), otherwise CTest's mark of a skipped test."""
    print("conformance: " + what)
    sys.exit(1 if os.environ.get("CLATTN_CONFORMANCE_REQUIRE") == "1" else 77)


def path_of(attention, options, portable=False, **plan):
    """The path of a case; `portable`: unless the options say otherwise, the portable one. `plan`: what the path must
    take, as Attention.has_path has it."""
    if options.path or portable:
        return options.path or "portable"
    return "cpu" if attention.has_path("cpu", **plan) else "portable" if plan else "auto"


MISSES_SHOWN = 200


class Report:
    """Counts, shows progress, and says at the end how many passed."""

    def __init__(self, title, total):
        self.title, self.total = title, total
        self.done, self.misses, self.figures = 0, [], {}
        self.start = self.shown = time.monotonic()

    def add(self, name, miss):
        """`miss`: why the case failed, None if it passed."""
        self.done += 1
        if miss:
            self.misses.append(name)
            if len(self.misses) <= MISSES_SHOWN:
                print("MISS %s: %s" % (name, miss), flush=True)
        now = time.monotonic()
        if now - self.shown >= 30:
            self.shown = now
            left = (now - self.start) / self.done * (self.total - self.done)
            print("%s: %d of %d done, %d missed, %.0f s left" % (self.title, self.done, self.total, len(self.misses),
                                                                 left), flush=True)

    def worst(self, what, value):
        """Remembers the largest value of a figure, for the summary."""
        self.figures[what] = max(value, self.figures.get(what, 0.0))

    def finish(self):
        if len(self.misses) > MISSES_SHOWN:
            print("and %d more" % (len(self.misses) - MISSES_SHOWN))
        for what in sorted(self.figures):
            print("worst %s: %.3g" % (what, self.figures[what]))
        print("%s: %d of %d (%.0f s)" % (self.title, self.done - len(self.misses), self.total,
                                         time.monotonic() - self.start))
        sys.exit(1 if self.misses or self.done != self.total or self.total == 0 else 0)
