"""The ISA gate: compiles the library's kernels for hardware that is not here, and refuses spills.

    isa_gate.py --clattn BUILD/clattn --layer FILE    gate what `clattn source` prints
    isa_gate.py --file K.cl --options "-DD=64 ..."    gate one file, while writing a kernel; PTX too
    isa_gate.py --self-test                           show that the gate refuses what it must refuse

A kernel that keeps registers or arrays in memory still computes the right numbers, so no other test sees it; it
only runs many times slower. The compilers come from isa_toolchains.py, and what the gate shows is true of their
versions. Register counts differ widely between versions and are printed for interest; spills are what fails.

Exit status: 0 all clean; 1 something spills, does not compile, calls an undefined function or takes too much local
memory, or with --require a compiler is missing; 2 bad usage; 77 there is no compiler at all (CTest: skipped).
"""

import argparse
import collections
import concurrent.futures
import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # nothing of a test run stays in the source tree
import isa_toolchains  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SKIPPED = 77

# name: (compiler family, local memory sizes to build for; the first is what the target has)
TARGETS = {
    "gfx90a": ("amd", (65536,)),
    "gfx1100": ("amd", (65536, 32768)),        # 32 KiB stands for the many devices that have no more
    "acm-g10": ("intel", (65536,)),
    "sm_80": ("nvidia", (162 * 1024, 49152)),  # src/device.c tells why more than the driver reports
    "sm_86": ("nvidia", (98 * 1024, 49152)),
    "sm_89": ("nvidia", (98 * 1024, 49152)),
    "sm_90": ("nvidia", (226 * 1024, 49152)),
}
DEFAULT_TARGETS = ("gfx90a", "gfx1100", "acm-g10", "sm_80")
HEAD_DIMS = (64, 128)
DTYPES = ("f16", "f32")
# What clattn source is asked for. Only some paths tell formula from full, so it is no default.
SCORES = {"lean": (), "full": ("--softcap", "--bias"), "formula": ("--softcap", "--alibi"), "softcap": ("--softcap",),
          "alibi": ("--alibi",)}
DEFAULT_SCORES = ("lean", "full")
WGMMA = "nvidia_wgmma"  # takes no bias, and hides instructions from the source compiler

# Kinds of programs beside prefill on whole tensors: what clattn source is asked for. Attention over caches for head
# dim 128 and f16 queries alone: types of caches differ in how they are loaded, wherever they are.
DECODE = ("--phase", "decode", "--heads", "32,8")
PAGED = ("--block-table", "--page-size", "16")
SERVING = {
    "decode": DECODE,
    "decode-full": (*DECODE, *SCORES["full"]),
    "decode-paged": (*DECODE, *PAGED),
    "decode-q8_0": (*DECODE, "--kv-dtype", "q8_0"),
    "decode-q4_0": (*DECODE, *PAGED, "--kv-dtype", "q4_0"),
    "decode-q5_1": (*DECODE, "--kv-dtype", "q5_1"),
    "decode-f8": (*DECODE, *PAGED, "--kv-dtype", "f8_e4m3"),
    "paged": PAGED,
    "paged-causal": (*PAGED, "--causal"),
    "causal": ("--causal",),
    "paged-q8_0": (*PAGED, "--kv-dtype", "q8_0"),
    "paged-q4_0": (*PAGED, "--kv-dtype", "q4_0,f8_e5m2"),
    "append": ("--operation", "append", "--rope", "neox"),
    "append-q4_0": ("--operation", "append", "--rope", "interleaved", "--kv-dtype", "q4_0,q8_0"),
    "append-iq4_nl": ("--operation", "append", "--kv-dtype", "iq4_nl,q5_1"),
    "merge": ("--operation", "merge"),
    "convert-i8": ("--operation", "convert", "--kv-dtype", "i8"),
}
LARGE_REGISTER_FILE = "-cl-intel-256-GRF-per-thread"


# nvidia_mma's kernels for rows that are not aligned (forward_any, decode_any) read them element by element, and that is
# what they are bound by; their registers are those of the other ones and a few more. (bytes of stores and loads)
MOST_SPILLED_UNALIGNED = 128

# Its rows of f32 that fill the registers: with two row tiles, of which src/tune_nvidia_mma.c says what they gain, and on
# sm_80 that for 64 keys with softcap and ALiBi.
MOST_SPILLED_F32 = 160

# nvidia_wgmma's rows that fill the registers, by head dim and scores, where clang made the PTX: of what the driver's own
# compiler makes of them (580.159, seen 2026-12-01) the same assembler spills nothing.
MOST_SPILLED_WGMMA = {(64, "lean"): 16, (64, "softcap"): 64, (128, "alibi"): 48}


def granted(program, kernel):
    """Bytes that a kernel may spill."""
    path, head_dim, dtype, kind = program.label
    if path == WGMMA:
        return MOST_SPILLED_WGMMA.get((head_dim, kind), 0)
    if path != "nvidia_mma":
        return 0
    if dtype == "f32" and kind in ("lean", "formula"):
        return MOST_SPILLED_F32
    return MOST_SPILLED_UNALIGNED if kernel in ("forward_any", "decode_any") else 0


class KernelUse:
    """What one compiled kernel takes. Spilled and scratch are in the compiler's own units (AMD and NVIDIA count
    spills in both); only 0 matters."""

    def __init__(self, name):
        self.name = name
        self.registers = ""
        self.spilled = 0
        self.scratch = 0
        self.local = 0


class Refused(Exception):
    """The program did not become a complete binary; the text says why."""


# ---- ELF: AMD's and Intel's compilers write it, and leave calls to undefined functions in it without a word.

Section = collections.namedtuple("Section", "name kind link content")
SYMBOL_TABLE, NO_BITS = 2, 8  # of Section.kind


def read_elf(path):
    """The sections of a 64-bit little-endian ELF file."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:6] != b"\x7fELF\x02\x01":
        raise Refused("not a 64-bit ELF file")
    table, = struct.unpack_from("<Q", data, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQII", data, table + i * entry_size) for i in range(count)]
    contents = [b"" if kind == NO_BITS else data[offset:offset + size]
                for _, kind, _, _, offset, size, _, _ in headers]
    return [Section(elf_text(contents[names_index], header[0]), header[1], header[6], content)
            for header, content in zip(headers, contents)]


def elf_text(strings, offset):
    return strings[offset:strings.index(b"\0", offset)].decode()


def undefined_symbols(sections):
    for section in sections:
        if section.kind == SYMBOL_TABLE:
            for name, _, _, where, _, _ in struct.iter_unpack("<IBBHQQ", section.content):
                if where == 0 and name:
                    yield elf_text(sections[section.link].content, name)


def refuse_undefined(sections):
    names = list(undefined_symbols(sections))
    if names:
        raise Refused("undefined: " + ", ".join(names))


# ---- One function per vendor: compile program `source` in folder `work`, return a KernelUse per kernel.

def compile_checked(tool, arguments, work):
    status, log = tool.run(arguments, work)
    if status != 0:
        lines = [line for line in log.splitlines() if re.search(r"error|fatal|undefined", line, re.I)]
        raise Refused((lines or log.splitlines() or ["exit status %d" % status])[0].strip())
    return log


def clang_arguments(tools, options, bitcode):
    # A file of a program may not have a name that an option of its has: it would win.
    return ["-x", "cl", *options, "-O3", "-nogpulib", "-Qunused-arguments", "-Wno-linker-warnings",
            "-Werror=macro-redefined", "-Xclang", "-mlink-builtin-bitcode", "-Xclang",
            os.path.join(tools["libclc"], bitcode)]


def compile_amd(tools, target, source, options, work):
    log = compile_checked(tools["clang"], [
        *clang_arguments(tools, options, "amdgcn--amdhsa.bc"), "-target", "amdgcn-amd-amdhsa", "-mcpu=" + target,
        "-Rpass-analysis=kernel-resource-usage", "-c", source, "-o", "k.o"], work)
    refuse_undefined(read_elf(os.path.join(work, "k.o")))
    uses = []
    for name, value in re.findall(r"remark:\s+(.+?): (\S+) \[-Rpass-analysis", log):
        if name == "Function Name":
            uses.append(KernelUse(value))
        elif name in ("VGPRs", "AGPRs") and value != "0":
            uses[-1].registers += "%s %s " % (value, name[0].lower())
        elif name == "VGPRs Spill":
            uses[-1].spilled = int(value)
        elif name == "SGPRs Spill" and value != "0":
            # Into lanes of vector registers, which costs little; if it comes to memory, ScratchSize shows it.
            uses[-1].registers += "%s s in lanes" % value
        elif name.startswith("ScratchSize"):
            uses[-1].scratch = int(value)
        elif name == "Dynamic Stack" and value != "False":
            uses[-1].scratch += 1
        elif name.startswith("LDS Size"):
            uses[-1].local = int(value)
    return uses


def compile_intel(tools, target, source, options, work):
    # With the default 128 registers, this hardware spills for every tile that is worth having.
    large = [] if LARGE_REGISTER_FILE in options else [LARGE_REGISTER_FILE]
    log = compile_checked(tools["ocloc"], [
        "compile", "-file", source, "-device", target, "-options", " ".join([*options, *large]), "--format", "zebin",
        "-out_dir", ".", "-output", "k.bin", "-output_no_suffix"], work)
    sections = read_elf(os.path.join(work, "k.bin"))
    refuse_undefined(sections)
    info = next((section.content.decode() for section in sections if section.name == ".ze_info"), "")
    uses = []
    for entry in re.split(r"^  - name: +", info.split("\nkernels_misc_info:")[0], flags=re.M)[1:]:
        use = KernelUse(entry.split("\n", 1)[0].strip())
        if use.name == "Intel_Symbol_Table_Void_Program":  # the linker's, not ours
            continue
        fields = dict(re.findall(r"^ +(grf_count|simd_size|slm_size): +(\d+)", entry, re.M))
        use.registers = "%s simd%s" % (fields.get("grf_count", "?"), fields.get("simd_size", "?"))
        use.local = int(fields.get("slm_size", 0))
        # Buffers: private_space, and spills as spill_fill_space or single_space (private memory and spills in
        # one), where the log tells which.
        spills = re.findall(r"kernel %s +compiled .* spilled around (\d+)" % re.escape(use.name), log)
        for usage, size in re.findall(r"usage: +(\w+)\n +size: +(\d+)", entry):
            if usage == "spill_fill_space" or usage == "single_space" and spills:
                use.spilled += int(size)
            else:
                use.scratch += int(size)
        if spills and not use.spilled:
            use.spilled = int(spills[-1])
        uses.append(use)
    return uses


def fit_shared_arrays(ptx):
    """ptxas refuses static local memory beyond 48 KiB, which NVIDIA's OpenCL driver takes. Addresses in it are
    constants all the same, so shorter arrays leave the register allocation alone. Returns each kernel's true size."""
    with open(ptx, encoding="utf-8") as file:
        text = file.read()
    arrays = re.compile(r"^(\s*\.shared .*\.b8 [\w$]+)\[(\d+)\]", re.M)
    sizes = {}
    for entry in re.split(r"^\s*(?:\.visible )?\.entry ", text, flags=re.M)[1:]:
        sizes[re.match(r"[\w$]+", entry).group()] = sum(int(size) for _, size in arrays.findall(entry))
    if max(sizes.values(), default=0) > 48 * 1024:
        text = arrays.sub(lambda array: "%s[%d]" % (array.group(1), min(int(array.group(2)), 1024)), text)
        with open(ptx, "w", encoding="utf-8") as file:
            file.write(text)
    return sizes


def show_hidden(ptx, options):
    """What src/ptx_route.c does with the driver's PTX, to clang's. Returns the target that ptxas then wants."""
    with open(ptx, encoding="utf-8") as file:
        text = file.read()
    work_items = 128 * (1 + int(re.search(r"-DCONSUMERS=(\d+)", " ".join(options)).group(1)))
    registers = 65536 // work_items // 8 * 8
    text = re.sub(r"^\.target .*$", ".target sm_90a", text.replace("//@", ""), flags=re.M)
    # As new as the instructions ask for; the driver's compiler says 9.0, Debian 12's clang an older one.
    text = re.sub(r"^\.version .*$", ".version 8.3", text, flags=re.M)
    text = re.sub(r"^(\.address_size.*)$", r"\1\n.global .align 128 .b8 clattn_program_memory[131072];", text,
                  flags=re.M)
    text = re.sub(r"(\.entry forward\([^)]*\)\s*)(?:\.reqntid[^\n]*\n)?",
                  r"\g<1>.reqntid %d, 1, 1\n.maxnreg %d\n" % (work_items, registers), text)
    with open(ptx, "w", encoding="utf-8") as file:
        file.write(text)
    return "sm_90a"


def compile_nvidia(tools, target, source, options, work):
    # With it, the driver's compiler too spills rather than take more; kernels that require the size of their
    # work-groups it lets off.
    cap = [option.replace("-cl-nv-maxrregcount", "-maxrregcount") for option in options if "maxrregcount" in option]
    options = [option for option in options if not option.startswith("-cl-nv-")]
    named = re.search(r"^\.target (\w+)", read_text(os.path.join(work, source)), re.M)
    if named:  # PTX already
        target = named.group(1)
        os.rename(os.path.join(work, source), os.path.join(work, "k.ptx"))
    else:
        compile_checked(tools["clang"], [
            *clang_arguments(tools, options, "nvptx64--nvidiacl.bc"), "-target", "nvptx64-nvidia-cuda", "-Xclang",
            "-target-cpu", "-Xclang", target, "-Xclang", "-target-feature", "-Xclang", "+ptx80", "-include",
            os.path.join(HERE, "nvptx_shim.h"), "-S", source, "-o", "k.ptx"], work)
    local = fit_shared_arrays(os.path.join(work, "k.ptx"))
    if "//@" in read_text(os.path.join(work, "k.ptx")):
        target = show_hidden(os.path.join(work, "k.ptx"), options)
    log = compile_checked(tools["ptxas"], ["-v", "-arch=" + target, *cap, "k.ptx", "-o", "k.cubin"], work)
    serialised = re.search(r"\(C75\d\d\).*", log)
    if serialised:
        raise Refused(serialised.group())
    uses = []
    for line in log.splitlines():
        entry = re.search(r"Compiling entry function '(\w+)'", line)
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        used = re.search(r"Used (\d+) registers", line)
        if entry:
            uses.append(KernelUse(entry.group(1)))
        elif stack and uses:
            frame, stores, loads = map(int, stack.groups())
            uses[-1].spilled = stores + loads
            uses[-1].scratch = frame
        elif used and uses:
            uses[-1].registers = used.group(1)
            smem = re.search(r"(\d+) bytes smem", line)
            uses[-1].local = max(local.get(uses[-1].name, 0), int(smem.group(1)) if smem else 0)
    return uses


FAMILIES = {  # name: (function, tools that it runs, vendor options that its compiler knows, CL_DEVICE_VENDOR)
    "amd": (compile_amd, ("clang", "libclc"), (), "Advanced Micro Devices, Inc."),
    "intel": (compile_intel, ("ocloc",), ("-cl-intel-",), "Intel(R) Corporation"),
    "nvidia": (compile_nvidia, ("clang", "libclc", "ptxas"), ("-cl-nv-",), "NVIDIA Corporation"),
}
VENDOR_OPTIONS = ("-cl-amd-", "-cl-intel-", "-cl-nv-")


def compile_for(tools, target, program, options):
    function, _, known, _ = FAMILIES[TARGETS[target][0]]
    usable = [option for option in options if option.startswith(known) or not option.startswith(VENDOR_OPTIONS)]
    with tempfile.TemporaryDirectory(prefix="clattn-isa-") as work:
        with open(os.path.join(work, "k.cl"), "w", encoding="utf-8") as file:
            file.write(program)
        uses = function(tools, target, "k.cl", usable, work)
    if not uses:
        raise Refused("no kernel in the binary")
    return uses


# ---- Where programs come from.

class Program:
    """What one call of clattn compiles, or a file; several targets may share it."""

    def __init__(self, label, command=None, env=None, file=None, options=()):
        self.label = label      # (path, head dim, dtype, kind)
        self.command = command  # prints the options in a first comment line, then the program
        self.env = env
        self.file = file        # or this file with these options
        self.options = list(options)
        self.parts = []         # (options, text): a plan may have several programs
        self.failure = None
        self.left = ""          # why the path leaves it to another one

    def load(self):
        if self.file:
            with open(self.file, encoding="utf-8") as file:
                self.parts = [(self.options, file.read())]
            return
        with tempfile.TemporaryDirectory(prefix="clattn-isa-") as folder:
            try:
                done = subprocess.run([*self.command, "--no-cache"], env=dict(self.env, CLATTN_ISA_PROGRAMS=folder),
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      check=False)
            except OSError as error:
                self.failure = str(error)
                return
            # Without the layer there are no files, but what the command prints.
            texts = [read_text(os.path.join(folder, name)) for name in sorted(os.listdir(folder))]
        left = re.search(r"does not apply: (.*)", done.stderr.decode())
        if left:
            self.left = left.group(1)
            return
        for text in texts or [done.stdout.decode()]:
            first, _, text = text.partition("\n")
            # Nothing runs under the layer, so a path that tests itself is refused; but its programs are written.
            is_refused = done.returncode != 0 and not (texts and self.label[0] == WGMMA)
            if is_refused or not first.startswith("// options:"):
                said = (done.stderr.decode().strip() or first)[-300:]
                self.failure = "%s: exit status %d: %s" % (shlex.join(self.command), done.returncode, said)
                return
            self.parts.append((shlex.split(first[len("// options:"):]), text))


def read_text(name):
    with open(name, encoding="utf-8") as file:
        return file.read()


class Case:
    """A program for a target: one row of the table for each kernel in it."""

    def __init__(self, target, local_bytes, program):
        self.target = target
        self.local_bytes = local_bytes  # what the program was built to fit
        self.program = program


def local_sizes(target, path):
    """What NVIDIA's driver says is 48 KiB; its own paths know what the generation has beyond that."""
    sizes = TARGETS[target][1]
    is_own = path.startswith("nvidia")
    return sizes if is_own or TARGETS[target][0] != "nvidia" else [size for size in sizes if size <= 49152]


def cases_of_library(clattn, layer, targets, local_memory, paths, head_dims, dtypes, scores, serving):
    programs = {}

    def program(target, path, head_dim, dtype, kind, arguments, local_bytes):
        family = TARGETS[target][0]
        key = (path, head_dim, dtype, kind, local_bytes, target if family == "nvidia" else family)
        if key not in programs:
            command = [clattn, "source", "--path", path, "--dtype", dtype, "--head-dim", str(head_dim),
                       "--local-memory", str(local_bytes), *arguments]
            env = dict(os.environ, CLATTN_ISA_VENDOR=FAMILIES[family][3])
            if layer:
                env["OPENCL_LAYERS"] = layer
            if family == "nvidia":
                env["CLATTN_ISA_CAPABILITY"] = target[len("sm_"):]
            programs[key] = Program(key[:4], command, env)
        return programs[key]

    cases = [Case(target, local_bytes, program(target, path, head_dim, dtype, score,
                                               SCORES[score], local_bytes))
             for target in targets for path in paths for score in scores for head_dim in head_dims
             for dtype in dtypes for local_bytes in local_sizes(target, path)
             if local_memory in (0, local_bytes)]
    return cases + [Case(target, local_sizes(target, path)[0],
                         program(target, path, 128, "f16", kind, SERVING[kind], local_sizes(target, path)[0]))
                    for target in targets for path in paths for kind in serving]


def case_of_file(target, name, options):
    program = Program((os.path.basename(name), "", "", ""), file=name, options=options)
    return Case(target, TARGETS[target][1][0], program)


# ---- The table.

COLUMNS = "%-8s %6s  %-12s %4s %-5s %-13s %-18s %-18s %8s %8s %7s  %s"


def rows_of(tools, case):
    """The case's table rows, as (columns, clean)."""
    label = (case.target, "%dK" % (case.local_bytes // 1024), *case.program.label)
    uses = []
    if case.program.left:
        return [((*label, "", "", "", "", "", "left to another path: " + case.program.left), True)]
    try:
        if case.program.failure:
            raise Refused(case.program.failure)
        for options, text in case.program.parts:
            uses += compile_for(tools, case.target, text, options)
    except (Refused, OSError, subprocess.TimeoutExpired) as error:
        return [((*label, "", "", "", "", "", "FAIL: %s" % error), False)]
    rows = []
    for use in uses:
        faults = [text for bad, text in ((use.spilled > granted(case.program, use.name), "spills"),
                                         (use.scratch and not use.spilled, "private memory in scratch"),
                                         (use.local > case.local_bytes, "too much local memory")) if bad]
        rows.append(((*label, use.name, use.registers.strip(), use.spilled, use.scratch, use.local,
                      "FAIL: " + ", ".join(faults) if faults else "ok"), not faults))
    return rows


def print_table(tools, cases, jobs):
    """Returns how many kernels were refused."""
    print(COLUMNS % ("target", "local", "path", "dim", "dtype", "kind", "kernel", "registers", "spilled",
                     "scratch", "used", "result"))
    clean = refused = 0
    with concurrent.futures.ThreadPoolExecutor(max(1, jobs)) as pool:
        list(pool.map(Program.load, {case.program: None for case in cases}))
        for rows in pool.map(lambda case: rows_of(tools, case), cases):
            for columns, good in rows:
                print((COLUMNS % columns).rstrip(), flush=True)
                clean += good
                refused += not good
    print("%d kernels clean, %d refused" % (clean, refused))
    return refused


def missing_tools(tools, target):
    return [name for name in FAMILIES[TARGETS[target][0]][1] if not tools[name]]


def self_test(tools, targets):
    """Each kernel in self_test/ is refused for the reason it was written for, and the clean one is not."""
    wrong = 0
    for target in targets:
        for name, reason in (("spilled_registers.cl", "spills"), ("private_array.cl", "private memory"),
                             ("undefined_function.cl", "undefined|unresolved"), ("clean.cl", "^ok")):
            case = case_of_file(target, os.path.join(HERE, "self_test", name), ["-cl-std=CL1.2"])
            case.program.load()
            for columns, _ in rows_of(tools, case):
                right = bool(re.search(reason, columns[-1], re.I))
                wrong += not right
                print("%-8s %-22s %s (%s)" % (target, name, "right" if right else "WRONG", columns[-1]))
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--clattn", metavar="PROGRAM", help="the clattn command")
    what.add_argument("--file", metavar="K.cl", help="gate this file instead")
    what.add_argument("--self-test", action="store_true")
    parser.add_argument("--layer", metavar="LIBRARY",
                        help="run clattn under this build of nobuild_layer.c: without, it compiles for the machine's "
                        "own device what it prints, and picks tiles for its vendor")
    parser.add_argument("--options", default="-cl-std=CL1.2", help="build options for --file (default: %(default)s)")
    parser.add_argument("--path", action="append", help="as for clattn source; may be repeated (default: portable)")
    parser.add_argument("--head-dim", action="append", type=int, help="may be repeated (default: 64, 128)")
    parser.add_argument("--local-memory", type=int, default=0, metavar="BYTES",
                        help="builds for this size alone, of those that the target has (default: all)")
    parser.add_argument("--dtype", action="append", help="may be repeated (default: f16, f32)")
    parser.add_argument("--score", action="append", choices=sorted(SCORES), help="may be repeated: lean, scale and "
                        "mask alone; full, with softcap and bias; formula, with softcap and ALiBi; "
                        "softcap and alibi, with that alone (default: lean, full)")
    parser.add_argument("--serving", action="append", choices=[*SERVING, "none"], metavar="KIND",
                        help="may be repeated: %s, or none of them (default: all)" % ", ".join(SERVING))
    parser.add_argument("--target", action="append", choices=sorted(TARGETS),
                        help="may be repeated (default: %s)" % ", ".join(DEFAULT_TARGETS))
    parser.add_argument("--require", action="store_true", default=bool(os.environ.get("CLATTN_ISA_REQUIRE")),
                        help="a target without its compiler fails instead of being skipped (also: "
                        "CLATTN_ISA_REQUIRE=1)")
    parser.add_argument("--root", default=isa_toolchains.default_root(),
                        help="where isa_toolchains.py unpacked the compilers (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1,
                        help="compiles at a time (default: %(default)s)")
    arguments = parser.parse_args()

    if arguments.file and not os.path.isfile(arguments.file):
        parser.error("--file: there is no " + arguments.file)

    tools = isa_toolchains.find_all(os.path.abspath(arguments.root))
    chosen = arguments.target or list(DEFAULT_TARGETS)
    targets = [target for target in chosen if not missing_tools(tools, target)]
    for target in chosen:
        if target not in targets:
            print("%-8s skipped: no compiler (%s)" % (target, ", ".join(missing_tools(tools, target))))
    lacking = arguments.require and targets != chosen
    if not targets:
        return 1 if lacking else SKIPPED
    if arguments.self_test:
        return 1 if self_test(tools, targets) or lacking else 0

    if arguments.file:
        cases = [case_of_file(target, arguments.file, shlex.split(arguments.options)) for target in targets]
    else:
        cases = cases_of_library(arguments.clattn, arguments.layer, targets, arguments.local_memory,
                                 arguments.path or ["portable"], arguments.head_dim or HEAD_DIMS, arguments.dtype or DTYPES,
                                 arguments.score or DEFAULT_SCORES,
                                 [kind for kind in arguments.serving or SERVING if kind in SERVING])
    refused = print_table(tools, cases, arguments.jobs)
    return 1 if refused or lacking else 0


if __name__ == "__main__":
    sys.exit(main())
