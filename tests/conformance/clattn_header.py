"""clattn.h for ctypes: constants, structs and functions are read from the header itself, so that they cannot
drift apart from it."""

import ctypes
import re

SCALARS = {
    "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float, "size_t": ctypes.c_size_t, "clattn_status": ctypes.c_int32, "cl_uint": ctypes.c_uint32,
    "cl_context": ctypes.c_void_p, "cl_device_id": ctypes.c_void_p, "cl_command_queue": ctypes.c_void_p,
    "clattn_log_fn": ctypes.c_void_p,
}
LOG_FN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)


class Header:
    """constants: CLATTN_X -> int; structs: name -> ctypes.Structure; functions: name -> (result, arguments)."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S).replace("\\\n", " ")
        self.constants = {name: int(value, 0) for name, value in
                          re.findall(r"^#define (CLATTN_\w+)\s+(-?(?:0x)?[0-9a-fA-F]+)u?\s*$", text, flags=re.M)}
        self.structs = {}
        for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, flags=re.S):
            fields = [field for line in body.split(";") if line.strip()
                      for field in self._fields(" ".join(line.split()))]
            self.structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        self.functions = {}
        for result, pointer, name, arguments in re.findall(
                r"^CLATTN_API (?:const )?(\w+) (\*?)(\w+)\((.*?)\);", text, flags=re.M | re.S):
            arguments = " ".join(arguments.split())
            types = [] if arguments == "void" else [self._argument(a) for a in arguments.split(",")]
            self.functions[name] = (self._result(result, pointer), types)

    def bind(self, library):
        for name, (result, arguments) in self.functions.items():
            function = getattr(library, name, None)
            if function is not None:
                function.restype, function.argtypes = result, arguments

    def new(self, name):
        """A zeroed struct with its size set, as its _INIT macro makes it."""
        struct = self.structs[name]()
        if hasattr(struct, "struct_size"):
            struct.struct_size = ctypes.sizeof(struct)
        return struct

    def _fields(self, declaration):
        pointer = re.match(r".*\(\*(\w+)\)\(", declaration, flags=re.S)
        if pointer:  # to a function
            return [(pointer.group(1), ctypes.c_void_p)]
        base, names = re.match(r"(?:const )?(\w+) (.*)", declaration, flags=re.S).groups()
        fields = []
        for name in names.split(","):
            star, name, count = re.match(r"\s*(\*?)(\w+)(?:\[(\d+)\])?$", name).groups()
            if star:
                kind = ctypes.c_char_p if base == "char" else ctypes.c_void_p
            else:
                kind = SCALARS.get(base) or self.structs[base]
            fields.append((name, kind * int(count) if count else kind))
        return fields

    def _argument(self, declaration):
        base, rest = re.match(r"\s*(?:const )?(\w+) (.*)", declaration, flags=re.S).groups()
        if "*" in rest:
            return ctypes.c_char_p if base == "char" and "**" not in rest and "const" in declaration \
                else ctypes.c_void_p
        return SCALARS[base]

    def _result(self, base, pointer):
        if pointer:
            return ctypes.c_char_p
        return None if base == "void" else SCALARS[base]
