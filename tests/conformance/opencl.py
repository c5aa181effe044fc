"""The little of OpenCL that the tests need, through the system's loader: the one that the library is linked to, so
that handles can be passed between the two. (Python packages often bring a loader of their own.)"""

import ctypes
import ctypes.util

DEVICE_NAME, PLATFORM_NAME = 0x102B, 0x0902
MEM_READ_WRITE, MEM_COPY_HOST_PTR = 1, 32
DEVICE_TYPE_ALL = 0xFFFFFFFF


class OpenCLError(Exception):
    pass


def _load():
    library = ctypes.CDLL(ctypes.util.find_library("OpenCL") or "libOpenCL.so.1")
    pointer, number, flags, size = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t
    for name, result, arguments in [
            ("clGetPlatformIDs", ctypes.c_int32, [number, pointer, pointer]),
            ("clGetDeviceIDs", ctypes.c_int32, [pointer, flags, number, pointer, pointer]),
            ("clGetPlatformInfo", ctypes.c_int32, [pointer, number, size, pointer, pointer]),
            ("clGetDeviceInfo", ctypes.c_int32, [pointer, number, size, pointer, pointer]),
            ("clCreateContext", pointer, [pointer, number, pointer, pointer, pointer, pointer]),
            ("clCreateCommandQueue", pointer, [pointer, pointer, flags, pointer]),
            ("clCreateBuffer", pointer, [pointer, flags, size, pointer, pointer]),
            ("clEnqueueReadBuffer", ctypes.c_int32,
             [pointer, pointer, number, size, size, pointer, number, pointer, pointer]),
            ("clFinish", ctypes.c_int32, [pointer]),
            ("clReleaseMemObject", ctypes.c_int32, [pointer])]:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _check(status, what):
    if status != 0:
        raise OpenCLError("%s: OpenCL error %d" % (what, status))


class Device:
    """The first device whose platform or device name contains `wanted`, with a context and an in-order queue."""

    def __init__(self, wanted=""):
        self.cl = _load()
        for platform in self._ids(self.cl.clGetPlatformIDs):
            for device in self._ids(lambda *a, p=platform: self.cl.clGetDeviceIDs(p, DEVICE_TYPE_ALL, *a)):
                name = self._text(self.cl.clGetDeviceInfo, device, DEVICE_NAME)
                if wanted.lower() in (self._text(self.cl.clGetPlatformInfo, platform, PLATFORM_NAME) + name).lower():
                    self._open(device, name)
                    return
        raise OpenCLError("no OpenCL device%s" % (" named " + wanted if wanted else ""))

    def buffer(self, array):
        """A buffer with the bytes of a contiguous array (one byte if it has none)."""
        code = ctypes.c_int32()
        source = array.ctypes.data if array.nbytes else ctypes.addressof(ctypes.c_uint32())
        memory = self.cl.clCreateBuffer(self.context, MEM_READ_WRITE | MEM_COPY_HOST_PTR, max(array.nbytes, 1), source,
                                        ctypes.byref(code))
        _check(code.value, "clCreateBuffer")
        return memory

    def read(self, memory, array):
        if array.nbytes:
            _check(self.cl.clEnqueueReadBuffer(self.queue, memory, 1, 0, array.nbytes, array.ctypes.data, 0, None,
                                               None), "clEnqueueReadBuffer")

    def finish(self):
        _check(self.cl.clFinish(self.queue), "clFinish")

    def release(self, memory):
        self.cl.clReleaseMemObject(memory)

    def _open(self, device, name):
        code = ctypes.c_int32()
        self.id, self.name = device, name
        handle = ctypes.c_void_p(device)
        self.context = self.cl.clCreateContext(None, 1, ctypes.byref(handle), None, None, ctypes.byref(code))
        _check(code.value, "clCreateContext")
        self.queue = self.cl.clCreateCommandQueue(self.context, device, 0, ctypes.byref(code))
        _check(code.value, "clCreateCommandQueue")

    @staticmethod
    def _ids(get):
        count = ctypes.c_uint32()
        if get(0, None, ctypes.byref(count)) != 0 or count.value == 0:
            return []
        ids = (ctypes.c_void_p * count.value)()
        _check(get(count.value, ids, None), "ids")
        return list(ids)

    @staticmethod
    def _text(get, object_id, what):
        text = ctypes.create_string_buffer(1024)
        get(object_id, what, 1024, text, None)
        return text.value.decode(errors="replace")
