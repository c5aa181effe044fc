"""One attention call on numpy arrays, by the library."""

import ctypes
import re

import ml_dtypes
import numpy as np

import cache_types
from clattn_header import LOG_FN, Header
from opencl import Device

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", BFLOAT16: "BF16",
          **{dtype: kind.upper() for kind, dtype in {**cache_types.BYTES, **cache_types.BLOCKS}.items()}}

# Arguments of Attention.forward that are a tensor of the call and a feature of the plan, both named alike.
OPTIONAL = ("bias", "mask", "bias_head_scale", "alibi_slopes", "sinks", "q_lens", "kv_lens", "q_offsets",
            "cu_seqlens_q", "cu_seqlens_k", "block_table", "k_scale", "v_scale")
FEATURE_NAMES = {"alibi_slopes": "ALIBI"}


class Refused(Exception):
    """The library returned an error; the text is the status and the last line of its log."""


def root_of(array):
    """The array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Attention:
    """The library on one device. Plans are kept, so a program is compiled once."""

    def __init__(self, header, library, device=""):
        self.header = Header(header)
        self.device = Device(device)
        self.clattn = ctypes.CDLL(library)
        self.header.bind(self.clattn)
        self.plans = {}
        self.paths = {}
        self.log = []
        self._log_fn = LOG_FN(lambda user, level, message: self.log.append(message.decode(errors="replace")))
        options = self.header.new("clattn_context_options")
        options.log = ctypes.cast(self._log_fn, ctypes.c_void_p)
        context = ctypes.c_void_p()
        self._check(self.clattn.clattn_context_create(ctypes.byref(context), self.device.context, self.device.id,
                                                       ctypes.byref(options)))
        self.context = context

    def constant(self, name):
        return self.header.constants["CLATTN_" + name]

    def alibi_slopes(self, heads, max_bias=0.0):
        slopes = np.empty(heads, np.float32)
        self._check(self.clattn.clattn_alibi_slopes(slopes.ctypes.data, heads, max_bias))
        return slopes

    def has_path(self, path, **plan):
        """Whether the device has this path, and whether it takes this plan (`plan` as in _plan_of)."""
        key = (path, tuple(sorted(plan.items())))
        if key not in self.paths:
            desc = self._desc(**{**self._plan_of(), **plan, "path": path})
            self.paths[key] = self.clattn.clattn_plan_supported(self.context, ctypes.byref(desc), None, 0) == 0
        return self.paths[key]

    def forward(self, q, k, v, o, lse=None, causal=False, window=None, softcap=0.0, scale=0.0,
                position="bottom_right", offset=0, path="auto", phase="prefill", splits=0, q_len=None, kv_len=None,
                **optional):
        """Writes o (and lse). q, k, v, o: [batch, heads, tokens, head_dim]; all of them may be views of any strides,
        also of one another's memory: what is uploaded, and for o and lse read back, is the array that owns the
        memory. bias and mask (bool): four axes, broadcast by stride 0; per-head values: [batch, heads]; per-batch
        values: [batch]. window: (left, right), -1: unbounded.
        With cu_seqlens_q or _k: the first axis has length 1, tokens are those of all sequences, and q_len or kv_len
        is the longest. With block_table [batch, max_blocks]: the first axis of k and v counts pages, tokens are a
        page's, and kv_len is the longest (the table's whole width, if it is not given)."""
        tensors = {name: optional.pop(name) for name in OPTIONAL if optional.get(name) is not None}
        assert not [name for name, value in optional.items() if value is not None], optional
        features = ["CAUSAL"] * causal + ["WINDOW"] * (window is not None) + ["SOFTCAP"] * (softcap > 0)
        features += ["LSE"] * (lse is not None) + [FEATURE_NAMES.get(name, name.upper()) for name in tensors]
        paged = tensors.get("block_table")
        plan = self._plan(**self._plan_of(
            dtypes=(q.dtype, k.dtype, v.dtype, o.dtype), heads=(q.shape[1], k.shape[1]),
            dims=(q.shape[3], o.shape[3]), features=tuple(features), position=position, path=path, phase=phase,
            splits=splits, page_size=0 if paged is None else k.shape[2],
            bias_dtype=tensors["bias"].dtype if "bias" in tensors else np.dtype(np.float32)))

        args = self.header.new("clattn_forward_args")
        args.batch, args.q_len, args.kv_len, args.q_offset = q.shape[0], q.shape[2], k.shape[2], offset
        args.window_left, args.window_right = window or (0, 0)
        args.scale, args.softcap = scale, softcap
        for name, packed, total in (("cu_seqlens_q", q, "total_q"), ("cu_seqlens_k", k, "total_k")):
            if name in tensors:
                args.batch = len(tensors[name]) - 1
                setattr(args, total, packed.shape[2])
        if paged is not None:
            args.num_pages, args.max_blocks, args.kv_len = k.shape[0], paged.shape[1], paged.shape[1] * k.shape[2]
        args.q_len = args.q_len if q_len is None else q_len
        args.kv_len = args.kv_len if kv_len is None else kv_len
        outputs = {"o": o, **({"lse": lse} if lse is not None else {})}
        self._run(args, "clattn_enqueue_forward", plan, {"q": q, "k": k, "v": v, **outputs, **tensors},
                  outputs.values())

    def append(self, k_new, v_new, k, v, kv_lens, q=None, q_out=None, kv_lens_out=None, rope="none", rotary_dim=0,
               rope_cos=None, rope_sin=None, q_lens=None, block_table=None):
        """Writes k_new and v_new ([batch, heads, tokens, dim]) into k and v (caches as forward takes them), and
        rotated q to q_out. What is read back is the memory of k, v, q_out and kv_lens_out."""
        tensors = {name: value for name, value in (
            ("k_new", k_new), ("v_new", v_new), ("k", k), ("v", v), ("kv_lens", kv_lens), ("q", q), ("q_out", q_out),
            ("kv_lens_out", kv_lens_out), ("rope_cos", rope_cos), ("rope_sin", rope_sin), ("q_lens", q_lens),
            ("block_table", block_table)) if value is not None}
        features = ["Q_LENS"] * (q_lens is not None) + ["BLOCK_TABLE"] * (block_table is not None)
        features += ["ROPE_TABLES"] * (rope_cos is not None)
        paged = block_table is not None
        plan = self._plan(**self._plan_of(
            dtypes=(k_new.dtype, k.dtype, v.dtype, k_new.dtype),
            heads=(q.shape[1] if q is not None else k.shape[1], k.shape[1]),
            dims=(k_new.shape[3], v_new.shape[3]), features=tuple(features), operation="kv_append", rope=rope,
            rotary_dim=rotary_dim, page_size=k.shape[2] if paged else 0))
        args = self.header.new("clattn_append_args")
        args.batch, args.new_len = k_new.shape[0], k_new.shape[2]
        args.kv_len = block_table.shape[1] * k.shape[2] if paged else k.shape[2]
        if paged:
            args.num_pages, args.max_blocks = k.shape[0], block_table.shape[1]
        if rope_cos is not None:
            args.rope_len = rope_cos.shape[0]
        self._run(args, "clattn_enqueue_kv_append", plan, tensors,
                  [tensors[name] for name in ("k", "v", "q_out", "kv_lens_out") if name in tensors])

    def convert(self, source, target, scale=None):
        """Writes source ([batch, heads, tokens, dim] of floats) into target, of a cache's type, and where that is
        I8 into scale ([batch, heads, tokens])."""
        tensors = {"from": source, "to": target, **({} if scale is None else {"scale": scale})}
        plan = self._plan(**self._plan_of(
            dtypes=(source.dtype, target.dtype, target.dtype, source.dtype), heads=(source.shape[1],) * 2,
            dims=(source.shape[3],) * 2, features=("K_SCALE",) * (scale is not None), operation="convert"))
        args = self.header.new("clattn_convert_args")
        args.batch, args.len = source.shape[0], source.shape[2]
        self._run(args, "clattn_enqueue_convert", plan, tensors,
                  [tensors[name] for name in ("to", "scale") if name in tensors])

    def _run(self, args, function, plan, tensors, outputs):
        """Uploads, calls, reads back."""
        buffers = {}
        try:
            for name, array in tensors.items():
                self._set(getattr(args, name), array, buffers)
            self._check(getattr(self.clattn, function)(plan, self.device.queue, ctypes.byref(args), 0, None, None))
            self.device.finish()
            for root in {id(root_of(array)): root_of(array) for array in outputs}.values():
                self.device.read(buffers[id(root)], root)
        finally:
            for memory in buffers.values():
                self.device.release(memory)

    def _set(self, tensor, array, buffers):
        root = root_of(array)
        assert root.flags.c_contiguous or root.flags.f_contiguous
        if id(root) not in buffers:
            buffers[id(root)] = self.device.buffer(root)
        tensor.handle = buffers[id(root)]
        tensor.byte_offset = array.ctypes.data - root.ctypes.data
        for axis, stride in enumerate(array.strides):
            # A last axis of length 1 may have any stride in numpy; the library wants it contiguous.
            tensor.stride[axis] = 1 if axis == 3 and array.shape[3] == 1 else stride // array.itemsize

    @staticmethod
    def _plan_of(**given):
        """All that describes a plan."""
        f32 = np.dtype(np.float32)
        plan = {"dtypes": (f32,) * 4, "bias_dtype": f32, "heads": (1, 1), "dims": (64, 64), "features": (),
                "position": "bottom_right", "path": "auto", "phase": "prefill", "operation": "forward", "splits": 0,
                "page_size": 0, "rope": "none", "rotary_dim": 0}
        assert set(given) <= set(plan), given
        return {**plan, **given}

    def _desc(self, dtypes, bias_dtype, heads, dims, features, position, path, phase, operation, splits, page_size,
              rope, rotary_dim):
        desc = self.header.new("clattn_plan_desc")
        for name, dtype in zip(("dtype_q", "dtype_k", "dtype_v", "dtype_o", "dtype_bias"), (*dtypes, bias_dtype)):
            setattr(desc, name, self.constant("DTYPE_" + DTYPES[dtype]))
        desc.heads_q, desc.heads_kv = heads
        desc.head_dim_qk, desc.head_dim_v = dims
        for feature in features:
            desc.features |= self.constant("FEATURE_" + feature)
        for name, word in (("position_mode", "POSITION_" + position), ("path", "PATH_" + path),
                           ("phase", "PHASE_" + phase), ("operation", "OPERATION_" + operation),
                           ("rope", "ROPE_" + rope)):
            setattr(desc, name, self.constant(word.upper()))
        desc.splits, desc.page_size, desc.rotary_dim = splits, page_size, rotary_dim
        return desc

    def _plan(self, **plan):
        key = tuple(plan.items())
        if key not in self.plans:
            handle = ctypes.c_void_p()
            desc = self._desc(**plan)
            self._check(self.clattn.clattn_plan_create(ctypes.byref(handle), self.context, ctypes.byref(desc)))
            self.plans[key] = handle
        return self.plans[key]

    def _check(self, status):
        if status != 0:
            name = self.clattn.clattn_status_string(status).decode()
            raise Refused(re.sub(r"\s+", " ", "%s: %s" % (name, self.log[-1] if self.log else "no log"))[:400])
