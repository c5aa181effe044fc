"""One attention call on numpy arrays, by the library."""

import ctypes
import re

import ml_dtypes
import numpy as np

from clattn_header import LOG_FN, Header
from opencl import Device

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", BFLOAT16: "BF16"}

# Arguments of Attention.forward that are a tensor of the call and a feature of the plan, both named alike.
OPTIONAL = ("bias", "mask", "bias_head_scale", "alibi_slopes", "sinks", "q_lens", "kv_lens", "q_offsets")
FEATURE_NAMES = {"alibi_slopes": "ALIBI"}


class Refused(Exception):
    """The library returned an error; the text is the status and the last line of its log."""


def root_of(array):
    """The array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Attention:
    """The library on one device. Plans are kept, so a program is compiled once; between processes the directory
    `cache` keeps it."""

    def __init__(self, header, library, cache=None, device=""):
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
        if cache:
            self._check(self.clattn.clattn_directory_cache_open(ctypes.byref(options.cache), cache.encode()))
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

    def has_path(self, path):
        """Whether the device has this path at all."""
        if path not in self.paths:
            desc = self._desc((np.dtype(np.float32),) * 5, (1, 1), (64, 64), 0, "bottom_right", path)
            self.paths[path] = self.clattn.clattn_plan_supported(self.context, ctypes.byref(desc), None, 0) == 0
        return self.paths[path]

    def forward(self, q, k, v, o, lse=None, causal=False, window=None, softcap=0.0, scale=0.0,
                position="bottom_right", offset=0, path="auto", **optional):
        """Writes o (and lse). q, k, v, o: [batch, heads, tokens, head_dim]; all of them may be views of any strides,
        also of one another's memory: what is uploaded, and for o and lse read back, is the array that owns the
        memory. bias and mask (bool): four axes, broadcast by stride 0; per-head values: [batch, heads]; per-batch
        values: [batch]. window: (left, right), -1: unbounded."""
        tensors = {name: optional.pop(name) for name in OPTIONAL if optional.get(name) is not None}
        assert not [name for name, value in optional.items() if value is not None], optional
        features = ["CAUSAL"] * causal + ["WINDOW"] * (window is not None) + ["SOFTCAP"] * (softcap > 0)
        features += ["LSE"] * (lse is not None) + [FEATURE_NAMES.get(name, name.upper()) for name in tensors]
        bits = 0
        for feature in features:
            bits |= self.constant("FEATURE_" + feature)
        bias_dtype = tensors["bias"].dtype if "bias" in tensors else np.dtype(np.float32)
        plan = self._plan((q.dtype, k.dtype, v.dtype, o.dtype, bias_dtype), (q.shape[1], k.shape[1]),
                          (q.shape[3], v.shape[3]), bits, position, path)

        args = self.header.new("clattn_forward_args")
        args.batch, args.q_len, args.kv_len, args.q_offset = q.shape[0], q.shape[2], k.shape[2], offset
        args.window_left, args.window_right = window or (0, 0)
        args.scale, args.softcap = scale, softcap
        outputs = {"o": o, **({"lse": lse} if lse is not None else {})}
        buffers = {}
        try:
            for name, array in {"q": q, "k": k, "v": v, **outputs, **tensors}.items():
                self._set(getattr(args, name), array, buffers)
            self._check(self.clattn.clattn_enqueue_forward(plan, self.device.queue, ctypes.byref(args), 0, None, None))
            self.device.finish()
            for array in outputs.values():
                self.device.read(buffers[id(root_of(array))], root_of(array))
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

    def _desc(self, dtypes, heads, dims, features, position, path):
        desc = self.header.new("clattn_plan_desc")
        for name, dtype in zip(("dtype_q", "dtype_k", "dtype_v", "dtype_o", "dtype_bias"), dtypes):
            setattr(desc, name, self.constant("DTYPE_" + DTYPES[dtype]))
        desc.heads_q, desc.heads_kv = heads
        desc.head_dim_qk, desc.head_dim_v = dims
        desc.features = features
        desc.position_mode = self.constant("POSITION_" + position.upper())
        desc.path = self.constant("PATH_" + path.upper())
        return desc

    def _plan(self, *key):
        if key not in self.plans:
            plan = ctypes.c_void_p()
            desc = self._desc(*key)
            self._check(self.clattn.clattn_plan_create(ctypes.byref(plan), self.context, ctypes.byref(desc)))
            self.plans[key] = plan
        return self.plans[key]

    def _check(self, status):
        if status != 0:
            name = self.clattn.clattn_status_string(status).decode()
            raise Refused(re.sub(r"\s+", " ", "%s: %s" % (name, self.log[-1] if self.log else "no log"))[:400])
