"""What the tests of the plug-in share: where its parts are, and the environment that loads it."""

import os
import subprocess
import sys

DEVICE = "CLATTN0"


class Plugin:
    """The folder that llama_build.py made. `memory` is "shared" with the host where the device can, or the
    device's own."""

    def __init__(self, work, memory="shared"):
        self.bin = os.path.join(work, "stock", "bin")
        self.library = os.path.join(work, "plugin", "libggml-clattn.so")
        self.memory = memory
        absent = [path for path in (self.library, self.program("test-backend-ops"), self.program("greedy"))
                  if not os.path.exists(path)]
        if absent:
            print("llama: %s was not built" % ", ".join(absent))
            sys.exit(1 if os.environ.get("CLATTN_LLAMA_REQUIRE") == "1" else 77)

    def program(self, name):
        return os.path.join(self.bin, name)

    def run(self, name, *arguments, loaded=True):
        """A finished process of a program beside stock llama.cpp, with the plug-in or without."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("GGML_", "CLATTN_GGML"))}
        if loaded:
            environment.update(GGML_BACKEND_PATH=self.library, CLATTN_GGML_EXPLAIN="1", CLATTN_GGML_STATS="1",
                               CLATTN_GGML_MEMORY=self.memory)
        return subprocess.run([self.program(name), *arguments], env=environment, capture_output=True, text=True,
                              errors="replace", check=False)


def options(parser):
    parser.add_argument("--work", required=True, help="the folder that llama_build.py made")
