"""Fetches llama.cpp's source by a pinned hash, builds it, and builds the plug-in against it as its README says.

    llama_build.py --work FOLDER --clattn BUILD_FOLDER --plugin SOURCE_FOLDER [--cmake CMAKE] [--cc CC] [--cxx CXX]

In FOLDER: llama.cpp (source), stock (its build; stock/bin has what runs), prefix (clattn, installed), plugin
(libggml-clattn.so). What is there is kept. Python's standard library only."""

import argparse
import hashlib
import html
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import time
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))

# The source package of llama-cpp-python carries llama.cpp's whole tree.
PACKAGE, FILE = "llama-cpp-python", "llama_cpp_python-0.3.36.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
ROOT = "llama_cpp_python-0.3.36/vendor/llama.cpp/"
NEEDED = ("CMakeLists.txt", "LICENSE", "licenses/", "cmake/", "ggml/", "include/", "src/", "vendor/",
          "tests/test-backend-ops.cpp")


class Unavailable(Exception):
    """Something that this machine does not offer."""


def pip_setting(name):
    """What pip is told by the environment or its configuration, or None."""
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if value:
        return value
    told = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global." + name], capture_output=True,
                          text=True, check=False)
    return told.stdout.strip() or None if told.returncode == 0 else None


def read(url, context, accept="*/*"):
    """The final address, the type and the bytes of what is there."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.geturl(), answer.headers.get_content_type(), answer.read()
    except OSError as error:
        raise Unavailable("%s: %s" % (url, error)) from error


def download():
    """The package, from the index that pip uses. pip itself would first install what builds it."""
    context = ssl.create_default_context(cafile=pip_setting("cert"))
    index = (pip_setting("index-url") or "https://pypi.org/simple").rstrip("/")
    page, kind, body = read("%s/%s/" % (index, PACKAGE), context,
                            "application/vnd.pypi.simple.v1+json, text/html;q=0.5")
    if kind.endswith("json"):
        links = {file["filename"]: file["url"] for file in json.loads(body)["files"]}
    else:
        hrefs = map(html.unescape, re.findall(r'href="([^"]+)"', body.decode()))
        links = {urllib.parse.unquote(os.path.basename(urllib.parse.urlsplit(href).path)): href for href in hrefs}
    if FILE not in links:
        raise Unavailable("%s has no %s" % (page, FILE))
    _, _, body = read(urllib.parse.urljoin(page, links[FILE]), context)
    found = hashlib.sha256(body).hexdigest()
    if found != SHA256:
        raise SystemExit("llama_build: %s has sha256 %s, expected %s" % (FILE, found, SHA256))
    return body


def unpack(package, folder):
    """The part of the package that is built, all of it or nothing."""
    unfinished = folder + ".unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(unfinished)
    archive = os.path.join(unfinished, FILE)
    with open(archive, "wb") as file:
        file.write(package)
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name[len(ROOT):]
            if member.name.startswith(ROOT) and name.startswith(NEEDED) and (member.isfile() or member.isdir()):
                member.name = name
                tar.extract(member, unfinished)
    os.remove(archive)
    with open(os.path.join(unfinished, ".sha256"), "w", encoding="utf-8") as file:
        file.write(SHA256)
    os.rename(unfinished, folder)


def is_unpacked(folder):
    try:
        with open(os.path.join(folder, ".sha256"), encoding="utf-8") as file:
            return file.read() == SHA256
    except OSError:
        return False


def run(title, *command):
    """Its output is shown if it fails."""
    start = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          check=False)
    if done.returncode != 0:
        print(done.stdout[-20000:])
        raise SystemExit("llama_build: failed: %s" % " ".join(command))
    print("%-24s %4.0f s" % (title, time.time() - start), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--work", required=True, help="folder of everything that is made")
    parser.add_argument("--clattn", required=True, help="a finished build of clattn, which is installed from there")
    parser.add_argument("--plugin", required=True, help="source folder of the plug-in")
    parser.add_argument("--cmake", default="cmake")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    parser.add_argument("--cxx", default=os.environ.get("CXX", "c++"))
    parser.add_argument("--jobs", default=str(os.cpu_count()))
    args = parser.parse_args()
    source, stock, prefix, plugin = (os.path.join(os.path.abspath(args.work), name)
                                     for name in ("llama.cpp", "stock", "prefix", "plugin"))

    for tool in (args.cmake, args.cc, args.cxx):
        if shutil.which(tool) is None:
            raise Unavailable("%s is not installed" % tool)
    if not is_unpacked(source):
        start = time.time()
        unpack(download(), source)
        print("%-24s %4.0f s" % ("download", time.time() - start), flush=True)

    compilers = ("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_COMPILER=" + args.cc)
    if not os.path.exists(os.path.join(stock, "CMakeCache.txt")):
        run("configure llama.cpp", args.cmake, "-S", os.path.join(HERE, "stock"), "-B", stock, *compilers,
            "-DCMAKE_CXX_COMPILER=" + args.cxx, "-DLLAMA_SOURCE=" + source)
    run("build llama.cpp", args.cmake, "--build", stock, "--parallel", args.jobs)
    run("install clattn", args.cmake, "--install", args.clattn, "--prefix", prefix)
    run("configure the plug-in", args.cmake, "-S", args.plugin, "-B", plugin, *compilers,
        "-DCMAKE_PREFIX_PATH=" + prefix, "-DCLATTN_GGML_SOURCE=" + os.path.join(source, "ggml"),
        "-DCLATTN_GGML_LIBRARY=" + os.path.join(stock, "bin", "libggml-base.so"))
    run("build the plug-in", args.cmake, "--build", plugin, "--parallel", args.jobs)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as why:
        print("llama_build: %s" % why)
        sys.exit(1 if os.environ.get("CLATTN_LLAMA_REQUIRE") == "1" else 77)
