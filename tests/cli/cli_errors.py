#!/usr/bin/env python3
"""Everything that the command has to refuse: the exit status, and exactly one line on stderr that names what
is wrong."""
import json
import os
import struct
import sys

from cli_files import fail, file_bytes, finish, floats, integers, need_device, run, scratch, write, zeros

DATA = sys.argv[2]
GOOD = os.path.join(DATA, "minilm_layer0.safetensors")


def expect(status, words, *arguments, environment=None):
    """`words`: what the one line must say."""
    result = run(*arguments, environment=environment)
    lines = result.stderr.splitlines()
    shown = f"{' '.join(map(str, arguments))[-160:]!r}"
    if result.returncode != status:
        fail(f"{shown}: status {result.returncode}, expected {status}: {result.stderr[-300:]}")
    elif len(lines) != 1 or not lines[0].startswith("clattn"):
        fail(f"{shown}: expected one line, got {lines[:5]}")
    else:
        for word in words:
            if word not in lines[0]:
                fail(f"{shown}: expected {word!r} in {lines[0]!r}")
    if result.stdout:
        fail(f"{shown}: unexpected output {result.stdout[:80]!r}")


def usage(folder):
    out = os.path.join(folder, "out.safetensors")
    expect(2, ["no command"])
    expect(2, ["nonsense"], "nonsense")
    for command in "info", "run", "check", "bench", "tune", "source":
        expect(2, ["--frobnicate"], command, "--frobnicate")
        expect(2, ["-Z"], command, "-Z")
        expect(2, ["--device"], command, "--device")
        expect(2, ["--local-memory"], command, "--local-memory", "lots")
    for command in "info", "check", "bench", "source":
        expect(2, ["stray"], command, "stray")
    expect(2, ["IN.safetensors"], "run")
    expect(2, ["-o"], "run", GOOD)
    expect(2, ["stray"], "run", GOOD, "stray", "-o", out)
    for option in "deterministic", "dropout=0.1", "seed=1", "dropout-offset=1", "backward":
        expect(2, ["--" + option.split("=")[0], "not offered"], "run", GOOD, "-o", out, "--" + option)
    expect(2, ["--dropout", "not offered"], "run", GOOD, "-o", out, "--dropout", "0.5")
    wrong = [["--causal=middle"], ["--offset", "x"], ["--offset", "1.5"], ["--window", "3"], ["--window", "-2,1"],
             ["--window", "1,2,3"], ["--scale", "nan"], ["--scale", "0"], ["--scale", "inf"], ["--scale", "1x"],
             ["--softcap", "0"], ["--softcap", "-1"], ["--layout", "hbsd"], ["--out-dtype", "f8"],
             ["--path", "fast"], ["--repeat", "0"], ["--strides", "k"], ["--strides", "k=1,2"],
             ["--strides", "w=1,2,3"], ["--strides", "q=-1,2,3"],
             ["--offset-bytes", "q=-4"], ["--offset-bytes", "q=3"], ["--offset-bytes", "lse=64"],
             ["--strides", "q=1,1,1"], ["--strides", f"v={2**62},{2**62},1"], ["--lse=yes"],
             ["--offset-bytes", f"v={2**62}"], ["--lse-base", "10"], ["--lse-base=2"], ["--lse-base", "e"],
             ["--alibi-max-bias", "0"], ["--alibi-max-bias=-8"], ["--alibi-max-bias", "inf"], ["--tiles", "16"],
             ["--tiles", "0,16"], ["--tiles", "16,-1"], ["--tiles", "16,16,16"], ["--tiles", f"16,{2**30 + 1}"],
             ["--score-mod", ""], ["--mask-mod", " \n"], ["--score-mod", "\udcff"], ["--user-values", "1"],
             ["--user-values", "", "--score-mod=score"], ["--user-values", "1,2,3,4,5", "--score-mod=score"],
             ["--user-values", "1,,2", "--mask-mod=1"], ["--user-values", "nan", "--mask-mod=1"],
             ["--strides", "sinks=1,1,1"], ["--strides", "user=1"], ["--strides", "mask=1,1,1"],
             ["--splits", "0"], ["--splits", "257"], ["--splits", "x"], ["--splits", "2", "--phase=prefill"],
             ["--splits", "2", "--batch-invariant"], ["--phase", "verify"], ["--phase", "both", "--batch-invariant"],
             ["--kv-dtype", "f8"], ["--kv-dtype", "i8,"], ["--kv-dtype", "i8,i8,i8"], ["--kv-dtype", ""],
             ["--rope", "gptj"], ["--rope-base", "0", "--rope=neox"], ["--rope-base", "500"], ["--rope-scale", "2"],
             ["--rotary-dim", "16"], ["--rotary-dim", "15", "--rope=neox"], ["--rotary-dim", "0", "--rope=neox"],
             ["--v-in-k", "0"], ["--v-in-k", "577"], ["--batch-invariant=1"], ["--emit-cache=1"]]
    for arguments in wrong:
        expect(2, [arguments[0].split("=")[0]] if arguments[0] != "--offset-bytes" else [],
               "run", GOOD, "-o", out, *arguments)
    for tensor in "bias=1,1,1,1", "mask=1,1,1,1", "sinks=1,1", "kv_lens=1", "tiles_index=1,1,1,1":
        expect(2, [f"'{tensor.split('=')[0]}'"], "run", GOOD, "-o", out, "--strides", tensor)
    expect(2, ["'tiles_count'", "missing"], "run", GOOD, "-o", out, "--tiles", "16,16")
    for option in "--window", "--block-sparse":
        value = "3" if option == "--window" else "2"
        expect(2, [option], "bench", option, value)
        expect(2, [option, "naive"], "bench", "--naive", option, "4,4" if option == "--window" else "0.5")
    expect(2, ["--block-sparse"], "bench", "--block-sparse", "0")
    expect(2, ["--score-mod"], "source", "--score-mod", "")
    expect(2, ["--offset", "--causal"], "run", GOOD, "-o", out, "--causal=top-left", "--offset", "3")
    for option, value in (("--phase", "late"), ("--kv-dtype", "q8_1"), ("--kv-dtype", "f16,q8_0,f16"),
                          ("--page-size", "0"), ("--splits", "257"), ("--sets", "-1"), ("--repeat", "0")):
        expect(2, [option], "bench", "--shape", "1,2,1,1,64,64", option, value)
    expect(2, ["--kv-dtype", "--shape"], "bench", "--kv-dtype", "q8_0")
    expect(2, ["--shape"], "bench", "--preset", "decode", "--shape", "1,2,1,1,64,64")
    expect(2, ["--naive", "decode"], "bench", "--shape", "1,2,1,1,64,64", "--naive", "--page-size", "16")
    for option in ["--lse"], ["--sinks"], ["--layout", "bshd"], ["--softcap", "2"], ["--alibi-max-bias", "8"], ["--lens"]:
        expect(2, [option[0], "decode"], "bench", "--shape", "1,2,1,1,64,64", *option)
        expect(2, [option[0], "naive"], "bench", "--shape", "1,2,1,99,99,64", "--naive", *option)
    for option, value in (("--seqlens", "5,-1"), ("--seqlens", "x"), ("--seconds", "0"), ("--seconds", "601"),
                          ("--softcap", "-1"), ("--layout", "hbsd"), ("--alibi-max-bias", "x")):
        expect(2, [option], "bench", "--shape", "1,2,1,99,99,64", option, value)
    expect(2, ["--seqlens", "--shape"], "bench", "--seqlens", "5,6")
    expect(2, ["--lines"], "bench", "--lines", "--shape", "1,2,1,99,99,64")
    expect(2, ["backward", "not offered"], "bench", "--preset", "backward")
    expect(2, ["--preset"], "bench", "--preset", "essay")
    for shape in "1,2,3", "1,8,3,64,64,64", "0,1,1,1,1,1", "1,1,1,1,1,577", "1,1,1,1,1,", "a,b,c,d,e,f":
        expect(2, ["--shape"], "bench", "--shape", shape)
    expect(2, ["--plot"], "bench", "--plot", "picture.jpeg")
    expect(2, ["--dtype"], "source", "--dtype", "f64")
    expect(2, ["--dtype"], "source", "--dtype", "f32,f16")
    expect(2, ["--head-dim"], "source", "--head-dim", "0")
    expect(2, ["--head-dim"], "source", "--head-dim", "577")
    expect(2, ["--heads"], "source", "--heads", "0")
    expect(2, ["--operation"], "source", "--operation", "backward")
    expect(2, ["--page-size"], "source", "--page-size", "0")
    expect(2, ["--phase"], "source", "--phase", "all")
    expect(2, ["--kv-dtype"], "source", "--kv-dtype", "q9_0")
    expect(2, ["--seed"], "check", "--seed", "-1")
    expect(2, ["--phase"], "check", "--phase", "x")
    expect(2, ["--repeat"], "check", "--repeat", "0")
    tuning = os.path.join(folder, "wrong.tune")
    for arguments in (["--shape", "1,2"], ["--dtype", "q8_0"], ["--dtype", "f16,f16,f16"], ["--scores", "half"],
                      ["--seconds", "0"], ["--candidates", "0"], ["--tuning", tuning], ["--path", "best"],
                      ["--scores", "full", "--shape", "1,2,1,1,64,64"]):
        expect(2, [arguments[0]], "tune", "-o", tuning, *arguments)
    expect(2, ["-o"], "tune")
    expect(2, ["-o", "cannot be written"], "tune", "-o", os.path.join(folder, "no", "such", "folder"))
    expect(2, ["'FILE'"], "tune", "FILE")
    expect(2, ["--tuning", "cannot be read"], "info", "--tuning", tuning)
    for content, words in ("", ["empty"]), ("clattn tuning 1\n", ["damaged"]), ("{}", ["damaged"]):
        with open(tuning, "w") as file:
            file.write(content)
        expect(2, words, "info", "--tuning", tuning)
    os.remove(tuning)
    expect(2, ["--seconds"], "check", "--seconds", "0")
    expect(2, ["--variants"], "check", "--variants", "x")
    if os.path.exists(out):
        fail("a refused run left a file")


def shapes(folder):
    out = os.path.join(folder, "out.safetensors")
    path = os.path.join(folder, "in.safetensors")
    good = {"q": ("F32", [1, 2, 5, 8]), "k": ("F32", [1, 2, 7, 8]), "v": ("F32", [1, 2, 7, 8])}

    def attempt(words, options=(), **changed):
        tensors = {**good, **changed}
        write(path, {name: zeros(*t) for name, t in tensors.items() if t})
        expect(2, words, "run", path, "-o", out, *options)

    attempt(["'q'", "missing"], q=None)
    attempt(["'v'", "missing"], v=None)
    attempt(["'q'", "[1,2,5]", "4 dimensions"], q=("F32", [1, 2, 5]))
    attempt(["'k'", "[2,2,7,8]", "batch"], k=("F32", [2, 2, 7, 8]))
    attempt(["'k'", "head dim"], k=("F32", [1, 2, 7, 9]))
    attempt(["'v'", "heads"], v=("F32", [1, 1, 7, 8]))
    attempt(["'v'", "length"], v=("F32", [1, 2, 6, 8]))
    attempt(["'q'", "multiple"], q=("F32", [1, 3, 5, 8]))
    attempt(["head dim", "576"], q=("F32", [1, 2, 1, 577]), k=("F32", [1, 2, 1, 577]), v=("F32", [1, 2, 1, 8]))
    attempt(["'v'", "head dim"], v=("F32", [1, 2, 7, 0]))
    attempt(["heads"], q=("F32", [1, 0, 5, 8]), k=("F32", [1, 0, 7, 8]), v=("F32", [1, 0, 7, 8]))
    attempt(["'q'", "U8"], q=("U8", [1, 2, 5, 8]))
    attempt(["'k'", "I32"], k=("I32", [1, 2, 7, 8]))
    attempt(["'bias'", "[1,2,5,6]", "[1,2,5,7]"], bias=("F32", [1, 2, 5, 6]))
    attempt(["'bias'", "[1,1,1,1,7]"], bias=("F32", [1, 1, 1, 1, 7]))
    attempt(["'bias'", "[]"], bias=("F32", []))
    attempt(["'bias'", "U8"], bias=("U8", [7]))
    attempt(["'extra'", "unknown"], extra=("F32", [1]))
    for name in "dout", "dlse":
        attempt([f"'{name}'", "not offered"], **{name: ("F32", [1])})
    attempt(["[1,2,7,8]", "heads"], ["--layout", "bshd"], k=("F32", [1, 7, 2, 8]), q=("F32", [1, 5, 3, 8]))
    for strides in "0,0,8", "80,8,8":
        attempt(["o.stride"], ["--path=cpu", "--phase=prefill", f"--strides=o={strides}"])
    if os.path.exists(out):
        fail("a refused run left a file")


def extras(folder):
    """The optional tensors: type, shape, values, and what they need or exclude."""
    out = os.path.join(folder, "out.safetensors")
    path = os.path.join(folder, "in.safetensors")
    good = {"q": zeros("F32", [3, 4, 5, 8]), "k": zeros("F32", [3, 2, 7, 8]), "v": zeros("F32", [3, 2, 7, 8])}
    tiles = {"tiles_count": integers([1, 1], [1, 1, 2]), "tiles_index": integers([0, 1], [1, 1, 2, 1])}
    sized = ["--tiles", "3,4"]

    def attempt(words, tensors, options=()):
        write(path, {**good, **tensors})
        expect(2, words, "run", path, "-o", out, *options)

    for kind in "F32", "I32", "I8":
        attempt(["'mask'", kind, "BOOL or U8"], {"mask": zeros(kind, [7])})
    for shape in [6], [5, 6], [4, 7], [2, 4, 5, 7], [1, 1, 1, 1, 7], []:
        attempt(["'mask'", str(shape).replace(" ", ""), "[3,4,5,7]"], {"mask": zeros("BOOL", shape)})
    for name in "sinks", "alibi_slopes", "bias_head_scale":
        with_bias = {"bias": zeros("F32", [7])}
        attempt([f"'{name}'", "F16", "F32"], {name: zeros("F16", [4]), **with_bias})
        for shape in [3], [1], [], [4, 3], [1, 4], [1, 3, 4]:
            attempt([f"'{name}'", str(shape).replace(" ", ""), "[4]"], {name: zeros("F32", shape), **with_bias})
    attempt(["'sinks'", "[3,4]", "[4]"], {"sinks": zeros("F32", [3, 4])})
    attempt(["'alibi_slopes'", "[4] or [3,4]"], {"alibi_slopes": zeros("F32", [2, 4])})
    attempt(["'alibi_slopes'", "--alibi-max-bias"], {"alibi_slopes": zeros("F32", [4])}, ["--alibi-max-bias=8"])
    attempt(["'bias_head_scale'", "'bias'"], {"bias_head_scale": zeros("F32", [4])})
    for name, least, most in ("q_lens", 0, 5), ("kv_lens", 0, 7), ("offsets", -2**30, 2**30):
        attempt([f"'{name}'", "I64", "I32"], {name: zeros("I64", [3])})
        attempt([f"'{name}'", "F32", "I32"], {name: zeros("F32", [3])})
        for shape in [4], [1], [3, 1], []:
            attempt([f"'{name}'", str(shape).replace(" ", ""), "[3]"], {name: zeros("I32", shape)})
        for value in least - 1, most + 1, -2**31, 2**31 - 1:
            attempt([f"'{name}'", str(value), f"{least} to {most}"], {name: integers([0, 1, value])})
    attempt(["'offsets'", "--offset"], {"offsets": integers([0, 0, 0])}, ["--offset", "3"])
    for alignment in "top-left", "bottom-right":
        attempt(["'offsets'", "--causal"], {"offsets": integers([0, 0, 0])}, [f"--causal={alignment}"])
    for name in tiles:
        other = {key: tiles[key] for key in tiles if key != name}
        attempt([f"'{name}'", "missing"], other, sized)
        attempt([f"'{name}'", "F32", "I32"], {**other, name: ("F32", *tiles[name][1:])}, sized)
    attempt(["'tiles_count'", "--tiles"], tiles)
    attempt(["'tiles_count'", "[1,1,3]", "[3 or 1,4 or 1,2]"], {**tiles, "tiles_count": zeros("I32", [1, 1, 3])}, sized)
    attempt(["'tiles_count'", "[2]"], {**tiles, "tiles_count": zeros("I32", [2])}, sized)
    attempt(["'tiles_count'", "[2,1,2]"], {**tiles, "tiles_count": zeros("I32", [2, 1, 2])}, sized)
    attempt(["'tiles_index'", "[1,1,1,2]", "capacity"], {**tiles, "tiles_index": zeros("I32", [1, 1, 1, 2])}, sized)
    attempt(["'tiles_index'", "[1,1,2]", "capacity"], {**tiles, "tiles_index": zeros("I32", [1, 1, 2])}, sized)
    for value in -1, 2:
        attempt(["'tiles_count'", str(value), "0 to 1"], {**tiles, "tiles_count": integers([1, value], [1, 1, 2])}, sized)
    attempt(["'user'", "--score-mod"], {"user": zeros("U8", [3])})
    attempt(["--offset-bytes", "user", "16"], {"user": zeros("U8", [3])}, ["--score-mod=score", "--offset-bytes=user=8"])
    attempt(["--offset-bytes", "sinks"], {"sinks": zeros("F32", [4])}, ["--offset-bytes=sinks=2"])
    attempt(["--strides", "'sinks'"], {"sinks": floats([1, 2, 3, 4])}, ["--strides=sinks=0,0"])
    if os.path.exists(out):
        fail("a refused run left a file")


def serving(folder):
    """Packed sequences, pages, caches and appended tokens: type, shape, values, and what goes together."""
    out = os.path.join(folder, "out.safetensors")
    path = os.path.join(folder, "in.safetensors")
    packed = {"q": zeros("F32", [9, 4, 32]), "k": zeros("F32", [14, 2, 32]), "v": zeros("F32", [14, 2, 32]),
              "cu_seqlens_q": integers([0, 4, 4, 9]), "cu_seqlens_k": integers([0, 7, 12, 14])}
    pages = {"q": zeros("F32", [3, 4, 5, 32]), "k": zeros("F32", [6, 8, 2, 32]), "v": zeros("F32", [6, 8, 2, 32]),
             "block_table": integers([0, 1, 2, -1, 3, -1], [3, 2]), "kv_lens": integers([16, 7, 8])}
    cache = {"q": zeros("F32", [3, 4, 5, 32]), "k": zeros("F32", [3, 2, 12, 32]), "v": zeros("F32", [3, 2, 12, 32]),
             "kv_lens": integers([0, 3, 7]), "k_new": zeros("F32", [3, 2, 5, 32]), "v_new": zeros("F32", [3, 2, 5, 32])}

    def attempt(good, words, options=(), **changed):
        tensors = {name: t for name, t in {**good, **changed}.items() if t}
        write(path, tensors)
        expect(2, words, "run", path, "-o", out, *options)

    attempt(packed, ["'q'", "[1,9,4,32]", "[total,H,D]"], q=zeros("F32", [1, 9, 4, 32]))
    attempt(packed, ["'k'", "[1,2,14,32]", "3 dimensions", "[total,H,D]"], k=zeros("F32", [1, 2, 14, 32]))
    attempt(packed, ["'v'", "rows"], v=zeros("F32", [13, 2, 32]))
    attempt(packed, ["'cu_seqlens_q'", "I64"], cu_seqlens_q=zeros("I64", [4]))
    attempt(packed, ["'cu_seqlens_q'", "[2,2]", "[batch+1]"], cu_seqlens_q=integers([0, 4, 4, 9], [2, 2]))
    attempt(packed, ["'cu_seqlens_k'", "[0]", "[batch+1]"], cu_seqlens_k=integers([], [0]))
    attempt(packed, ["'cu_seqlens_k'", "[3]", "batch of 3"], cu_seqlens_k=integers([0, 7, 14]))
    for rows in [0, 4, 4, 10], [0, 4, 3, 9], [-1, 4, 4, 9]:
        attempt(packed, ["'cu_seqlens_q'", "expected", "rows of 'q'"], cu_seqlens_q=integers(rows))
    attempt(packed, ["'q_lens'", "5", "0 to 4"], q_lens=integers([5, 0, 1]))
    attempt(packed, ["'kv_lens'", "6", "0 to 5"], kv_lens=integers([5, 6, 1]))
    attempt(packed, ["'k'", "batch of 3"], cu_seqlens_k=None, k=zeros("F32", [2, 2, 7, 32]), v=zeros("F32", [2, 2, 7, 32]))
    attempt(packed, ["'bias'", "[3,4,5,7]"], bias=zeros("F32", [9, 14]))
    attempt(pages, ["'kv_lens'", "missing", "'block_table'"], kv_lens=None)
    attempt(pages, ["'block_table'", "[6]", "[batch,max_blocks]"], block_table=integers([0] * 6))
    attempt(pages, ["'block_table'", "[2,3]", "batch of 3"], block_table=integers([0] * 6, [2, 3]))
    attempt(pages, ["'block_table'", "F32", "I32"], block_table=zeros("F32", [3, 2]))
    attempt(pages, ["'block_table'", "'cu_seqlens_k'"], cu_seqlens_k=integers([0, 1, 2, 3]))
    attempt(pages, ["'kv_lens'", "17", "0 to 16"], kv_lens=integers([17, 7, 8]))
    attempt(pages, ["'v'", "page size"], v=zeros("F32", [6, 7, 2, 32]))
    attempt(pages, ["'v'", "pages"], v=zeros("F32", [5, 8, 2, 32]))
    attempt(pages, ["'bias'", "[3,4,5,16]"], bias=zeros("F32", [15]))
    for number in 6, -1:
        attempt(pages, ["'block_table'", str(number), "entry 0", "0 to 5"], ["--path=cpu", "--phase=prefill"],
                block_table=integers([0, number, 2, -1, 3, -1], [3, 2]))
    attempt(cache, ["'kv_lens'", "missing", "'k_new'"], kv_lens=None)
    attempt(cache, ["'v_new'", "missing"], v_new=None)
    attempt(cache, ["'k_new'", "missing"], k_new=None)
    attempt(cache, ["'k_new'", "missing", "--rope"], ["--rope=neox"], k_new=None, v_new=None)
    attempt(cache, ["'v_new'", "F16", "F32"], v_new=zeros("F16", [3, 2, 5, 32]))
    attempt(cache, ["'k_new'", "F16", "F32", "--rope"], ["--rope=neox"], k_new=zeros("F16", [3, 2, 5, 32]),
            v_new=zeros("F16", [3, 2, 5, 32]))
    attempt(cache, ["'k_new'", "[3,2,4,32]", "[3,2,5,32]", "'q'"], ["--rope=neox"], k_new=zeros("F32", [3, 2, 4, 32]),
            v_new=zeros("F32", [3, 2, 4, 32]))
    attempt(cache, ["'v_new'", "[3,2,4,32]", "[3,2,5,32]"], v_new=zeros("F32", [3, 2, 4, 32]))
    attempt(cache, ["'k_new'", "[3,4,5,32]"], k_new=zeros("F32", [3, 4, 5, 32]))
    attempt(cache, ["'k_new'", "cu_seqlens_k"], cu_seqlens_k=integers([0, 4, 8, 12]), k=zeros("F32", [12, 2, 32]),
            v=zeros("F32", [12, 2, 32]), kv_lens=integers([0, 3, 4]))
    attempt(cache, ["'k_new'", "entry 2", "8", "5", "12"], ["--path=cpu", "--phase=prefill"], kv_lens=integers([0, 3, 8]))
    attempt(cache, ["'rope_cos'", "--rope"], rope_cos=zeros("F32", [12, 16]), rope_sin=zeros("F32", [12, 16]))
    tables = {"rope_cos": zeros("F32", [12, 16]), "rope_sin": zeros("F32", [12, 16])}
    attempt({**cache, **tables}, ["'rope_sin'", "missing"], ["--rope=neox"], rope_sin=None)
    attempt({**cache, **tables}, ["'rope_cos'", "[12,15]", "[positions,16]"], ["--rope=neox"], rope_cos=zeros("F32", [12, 15]))
    attempt({**cache, **tables}, ["'rope_sin'", "11", "12"], ["--rope=neox"], rope_sin=zeros("F32", [11, 16]))
    attempt({**cache, **tables}, ["'rope_cos'", "F16"], ["--rope=neox"], rope_cos=zeros("F16", [12, 16]))
    attempt({**cache, **tables}, ["'rope_cos'", "11", "12", "entry 2"], ["--rope=neox"], rope_cos=zeros("F32", [11, 16]),
            rope_sin=zeros("F32", [11, 16]))
    attempt({**cache, **tables}, ["--rope-base"], ["--rope=neox", "--rope-base=500"])
    attempt(cache, ["--rotary-dim", "34", "32"], ["--rope=neox", "--rotary-dim=34"])

    plain = {"q": zeros("F32", [3, 4, 5, 32]), "k": zeros("I8", [3, 2, 7, 32]), "v": zeros("I8", [3, 2, 7, 32]),
             "k_scale": floats([1.0], [1]), "v_scale": floats([1.0] * 42, [3, 2, 7])}
    attempt(plain, ["'k_scale'", "missing", "I8"], k_scale=None)
    attempt(plain, ["'v_scale'", "[3,7,2]", "[3,2,7]", "[2]"], v_scale=floats([1.0] * 42, [3, 7, 2]))
    attempt(plain, ["'v_scale'", "[3]"], v_scale=floats([1.0] * 3))
    attempt(plain, ["'v_scale'", "F16"], v_scale=zeros("F16", [1]))
    attempt(plain, ["'k_scale'", "i8", "f32"], k=zeros("F32", [3, 2, 7, 32]))
    attempt(plain, ["'k'", "I8", "q8_0"], ["--kv-dtype=q8_0"])
    attempt(plain, ["'k_scale'", "--kv-dtype i8"], ["--kv-dtype=i8"], k=zeros("F32", [3, 2, 7, 32]))
    attempt(plain, ["'q'", "I8"], q=zeros("I8", [3, 4, 5, 32]))
    attempt({**plain, **cache}, ["'k_scale'", "'k_new'"], k=zeros("I8", [3, 2, 12, 32]), v=zeros("I8", [3, 2, 12, 32]),
            v_scale=floats([1.0] * 72, [3, 2, 12]))
    blocks = {"q": zeros("F32", [1, 2, 5, 64]), "k": zeros("U8", [1, 2, 7, 68]), "v": zeros("U8", [1, 2, 7, 36])}
    attempt(blocks, ["'k'", "U8", "--kv-dtype"])
    attempt(blocks, ["'k'", "U8", "--kv-dtype"], ["--kv-dtype=i8"])
    attempt(blocks, ["'v'", "[1,2,7,36]", "q8_0", "34"], ["--kv-dtype=q8_0"])
    attempt(blocks, ["'k'", "head dim"], ["--kv-dtype=q8_0,q4_0"], k=zeros("U8", [1, 2, 7, 34]))
    floats_40 = {name: zeros("F32", [1, 2, 5, 40]) for name in "qkv"}
    attempt(floats_40, ["'k'", "40", "32", "q4_0"], ["--kv-dtype=q4_0"])
    attempt(floats_40, ["--v-in-k", "'v'"], ["--v-in-k=8"])
    attempt(floats_40, ["--v-in-k", "41", "40"], ["--v-in-k=41"], v=None)
    attempt(floats_40, ["'k_scale'", "no part"], ["--offset-bytes=k_scale=64"])
    if os.path.exists(out):
        fail("a refused run left a file")


def hostile(folder):
    out = os.path.join(folder, "out.safetensors")
    path = os.path.join(folder, "bad.safetensors")
    with open(GOOD, "rb") as file:
        good = file.read()
    length = struct.unpack("<Q", good[:8])[0]

    def attempt(words, content):
        with open(path, "wb") as file:
            file.write(content)
        expect(2, ["bad.safetensors", *words], "run", path, "-o", out)

    def one(words, shape=(1,), offsets=(0, 4), dtype="F32", data=bytes(4), name="q", **more):
        entry = {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}
        attempt(words, file_bytes({name: entry}, data))

    for cut in 0, 1, 7:
        attempt(["8 bytes"], good[:cut])
    for cut in 8, 9, 8 + length // 2, 8 + length - 1:
        attempt(["truncated"], good[:cut])
    for cut in 8 + length, 8 + length + 1, len(good) - 1:
        attempt(["data_offsets"], good[:cut])
    attempt(["cover"], good + b"\0")
    for number in 2**63, 2**64 - 1, 100_000_001:
        attempt(["header of"], struct.pack("<Q", number) + good[8:])
    attempt(["truncated"], struct.pack("<Q", len(good)) + good[8:])
    for text in (b"", b"[]", b"null", b"{", b'{"q":}', b'{"q":1}x', b" {}", b"\xef\xbb\xbf{}", b"{}{}", b"{}\0",
                 b'{"q": {"dtype": "F32"', b'{"q": NaN}', b"{'q': 1}"):
        attempt([], file_bytes(text))
    attempt(["UTF-8"], file_bytes(b'{"\xff\xfe": 1}'))
    attempt(["UTF-8"], file_bytes(b'{"\xc0\x80": 1}'))
    attempt(["UTF-8"], file_bytes(b'{"\xed\xa0\x80": 1}'))
    attempt(["NUL"], file_bytes(b'{"q\\u0000x": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)))
    attempt(["control"], file_bytes(b'{"a\nb": 1}'))
    attempt(["JSON"], file_bytes(b'{"q":' + b"[" * 100000 + b"]" * 100000 + b"}"))
    attempt(["values"], file_bytes(b'{"q":[' + b"0," * 1100000 + b"0]}"))
    attempt(["'q'", "object"], file_bytes({"q": 5}))
    attempt(["'q'", "object"], file_bytes({"q": [1, 2]}))
    attempt(["__metadata__"], file_bytes({"__metadata__": 5}))
    attempt(["__metadata__"], file_bytes({"__metadata__": {"a": 5}}))
    entry = b'"q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    attempt(["'q'", "twice"], file_bytes(b"{" + entry + b"," + entry + b"}", bytes(4)))
    attempt(["__metadata__", "twice"], file_bytes(b'{"__metadata__":{},"__metadata__":{}}'))
    attempt(["'q'", "twice"], file_bytes(
        b'{"q":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)))
    attempt(["'q'", "expected dtype"], file_bytes({"q": {"dtype": "F32", "shape": [1]}}))
    one(["'q'", "unknown field"], strides=[1])
    one(["'q'", "dtype", "F31"], dtype="F31")
    one(["'q'", "dtype"], dtype="f32")
    one(["'q'", "dtype"], dtype=5)
    one(["'q'", "dtype"], dtype=None)
    one(["'q'", "dimension 0"], shape=(-1,))
    one(["'q'", "dimension 1"], shape=(1, 0.5))
    one(["'q'", "dimension 0"], shape=("1",))
    one(["'q'", "dimension 0"], shape=(1e300,))
    one(["'q'", "dimension 0"], shape=(2**53,))
    one(["'q'", "at most 8"], shape=(1,) * 9)
    attempt(["'q'", "array"], file_bytes({"q": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}}, bytes(4)))
    one(["'q'", "too large"], shape=(2**32, 2**32))
    one(["'q'", "too large"], shape=(0, 2**40, 2**40))
    one(["'q'", "too large"], shape=(2**52, 2**12, 1))
    one(["'q'", "takes 8 bytes"], shape=(2,))
    one(["'q'", "takes 0 bytes"], shape=(0,))
    for offsets in (0, 5), (4, 0), (-4, 0), (0, 4.5), (0, 2**53), (0,), (0, 2, 4), (0, 1e300):
        one(["'q'", "data_offsets"], offsets=offsets)
    attempt(["'q'", "data_offsets"], file_bytes({"q": {"dtype": "F32", "shape": [1], "data_offsets": {}}}, bytes(4)))

    def two(words, first, second, data):
        attempt(words, file_bytes({name: {"dtype": "U8", "shape": [b - a], "data_offsets": [a, b]}
                                   for name, (a, b) in {"k": first, "q": second}.items()}, bytes(data)))

    two(["overlap"], (0, 4), (3, 7), 7)
    two(["overlap"], (0, 4), (0, 4), 4)
    two(["hole"], (0, 4), (5, 8), 8)
    two(["hole"], (1, 4), (4, 8), 8)
    two(["cover"], (0, 4), (4, 7), 8)
    one(["unknown tensor"], name="\x1b[31mred\nline\r")  # shown without its control characters
    one(["unknown tensor"], name="n" * 100000)
    for options in (["--backward"], ["--frobnicate"], ["stray"], ["--causal=x"], ["--scale", "0"], ["--window", "1"],
                    ["-o", "x"], ["-o"], ["--lse"] * 300, [5], [None], [["--lse"]], {}, "--lse", 5, [""],
                    ["--score-mod="]):
        attempt([], file_bytes({"__metadata__": {"clattn_options": json.dumps(options)}}))
    for text in "", "[", "--lse", "--causal --lse", '["--lse"', '["--lse"] x':
        attempt([], file_bytes({"__metadata__": {"clattn_options": text}}))
    expect(2, ["cannot be opened"], "run", os.path.join(folder, "nowhere"), "-o", out)
    expect(2, [folder], "run", folder, "-o", out)
    if os.path.exists("/dev/null"):
        expect(2, ["/dev/null"], "run", "/dev/null", "-o", out)
    if os.path.exists(out):
        fail("a refused run left a file")


def texts(folder):
    """What a compiler says of score_mod and mask_mod, with the text's own lines. Drivers may talk on stderr too."""
    out = os.path.join(folder, "out.safetensors")
    for option, text, line in (("--score-mod", "score + nothing", 1), ("--mask-mod", "int x = 1;\nreturn x +\n nothing;", 3)):
        for command in ["run", GOOD, "-o", out], ["source"]:
            result = run(*command, option, text, "--path", "cpu", "--phase", "prefill")
            said = [x for x in result.stderr.splitlines() if x.startswith("clattn")]
            if result.returncode != 2 or len(said) != 1 or f"{option[2:].replace('-', '_')}:{line}:" not in said[0]:
                fail(f"{command[0]} {option}: status {result.returncode}: {result.stderr[-300:]}")
    if os.path.exists(out):
        fail("a refused run left a file")


def device(folder):
    out = os.path.join(folder, "out.safetensors")
    expect(3, ["'no such device'"], "run", GOOD, "-o", out, "--device", "no such device")
    expect(3, ["'999'"], "info", "--device", "999")
    expect(3, ["'nobody'"], "source", environment={"CLATTN_DEVICE": "nobody"})


def help_texts():
    for arguments in (["--help"], ["--version"], ["info", "--help"], ["run", "-h"], ["check", "--help"],
                      ["bench", "--help"], ["source", "--help"]):
        result = run(*arguments)
        if result.returncode != 0 or result.stderr or not result.stdout:
            fail(f"{arguments}: status {result.returncode}, {result.stderr!r}")


need_device()
with scratch() as place:
    help_texts()
    usage(place)
    hostile(place)
    shapes(place)
    extras(place)
    serving(place)
    texts(place)
    device(place)
finish("cli_errors")
