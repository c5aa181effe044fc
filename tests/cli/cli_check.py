#!/usr/bin/env python3
"""`clattn check --quick`: everything passes, and a second run, its programs in the cache, is quick."""
import json
import time

from cli_files import fail, finish, need_device, run

BUDGET = 60  # seconds; twenty on a quiet machine, but tests may run beside others

need_device()
for attempt in "cold", "warm":
    start = time.monotonic()
    result = run("check", "--quick", "--json", "--seed", "1")
    seconds = time.monotonic() - start
    report = json.loads(result.stdout) if result.stdout else {}
    print(f"{attempt}: {seconds:.1f} s, {report.get('cases')} cases")
    if result.returncode != 0 or report.get("failed") != 0 or not report.get("cases"):
        fail(f"{attempt}: status {result.returncode}: {report.get('failures')} {result.stderr[-500:]}")
    if {group["scores"] for group in report.get("groups", [])} != {"lean", "full", "mods", "sequences", "pages"}:
        fail(f"{attempt}: {report.get('groups')}")
    if {group["phase"] for group in report.get("groups", [])} != {"prefill", "decode"}:
        fail(f"{attempt}: {report.get('groups')}")
if seconds > BUDGET:
    fail(f"warm: {seconds:.1f} s")
finish("cli_check_quick")
