"""The offline OpenCL compilers that the ISA gate feeds: where they are, and how to get them.

    isa_toolchains.py                 say which compilers are found, and where
    isa_toolchains.py --install       fetch the missing ones (Debian or a relative; needs apt-get, dpkg, pip)

Nothing is installed into the system. Debian packages are downloaded and unpacked into a folder of their own, because
libclc's versions conflict with each other, and because an installed intel-opencl-icd would add an OpenCL platform to
every program on the machine. The folder is --root, else $CLATTN_ISA_ROOT, else clattn/isa in the user's cache folder.
Root rights are of use only to refresh apt's package lists. A compiler that the system has already is used as it is.
"""

import argparse
import glob
import os
import shutil
import subprocess
import sys
import zipfile

LLVM = "19"  # the first clang with every matrix builtin that cl/mma is to use; libclc must be of the same version
PTXAS_WHEEL = "nvidia-cuda-nvcc-cu12==12.9.86"  # carries ptxas, without the rest of a CUDA toolkit


class Tool:
    """A program and the environment it runs in."""

    def __init__(self, path, libraries=()):
        self.path = path
        self.env = dict(os.environ)
        if libraries:
            old = [self.env["LD_LIBRARY_PATH"]] if self.env.get("LD_LIBRARY_PATH") else []
            self.env["LD_LIBRARY_PATH"] = ":".join([*libraries, *old])

    def run(self, arguments, cwd):
        """Returns (exit status, everything it printed)."""
        done = subprocess.run([self.path, *arguments], cwd=cwd, env=self.env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        return done.returncode, done.stdout.decode(errors="replace")


def default_root():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("CLATTN_ISA_ROOT") or os.path.join(cache, "clattn", "isa")


def find_program(name, prefix):
    """A program unpacked under prefix, else the system's; None if there is none."""
    unpacked = os.path.join(prefix, "usr", "bin", name)
    if os.path.exists(unpacked):
        return Tool(unpacked, glob.glob(os.path.join(glob.escape(prefix), "usr/lib/*-linux-gnu")))
    installed = shutil.which(name)
    return Tool(installed) if installed else None


def find_clang(root):
    return find_program("clang-" + LLVM, os.path.join(root, "llvm"))


def find_libclc(root):
    """The folder of libclc's bitcode files."""
    for prefix in (os.path.join(root, "llvm"), "/"):
        # All versions install into one folder; only the documentation's name tells which one it is.
        if os.path.isdir(os.path.join(prefix, "usr/share/doc/libclc-" + LLVM)):
            return os.path.join(prefix, "usr/lib/clc")
    return None


def find_ocloc(root):
    return find_program("ocloc", os.path.join(root, "intel"))


def find_ptxas(root):
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    for candidate in [shutil.which("ptxas"), *[os.path.join(t, "bin/ptxas") for t in toolkits if t],
                      os.path.join(root, "ptxas/ptxas")]:
        if candidate and os.access(candidate, os.X_OK):
            return Tool(candidate)
    return None


FINDERS = {"clang": find_clang, "libclc": find_libclc, "ocloc": find_ocloc, "ptxas": find_ptxas}


def find_all(root):
    return {name: find(root) for name, find in FINDERS.items()}


def report(found):
    for name, what in found.items():
        print("%-7s %s" % (name, what.path if isinstance(what, Tool) else what or "not found"))


def run(command, **options):
    return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, **options)


def missing_packages(packages):
    """The given packages and those they depend on, as far as the system has none of any version."""
    plan = run(["apt-get", "-qq", "--simulate", "--no-install-recommends", "install", *packages],
               stdout=subprocess.PIPE).stdout.decode()
    installs = [line.split() for line in plan.splitlines() if line.startswith("Inst ")]
    return [words[1] for words in installs if not words[2].startswith("[")]  # [: the version to be upgraded


def unpack_packages(folder, packages, alone=()):
    """Unpacks packages with what they depend on, and the packages `alone` without. All or nothing: the
    folder gets its name only when it is complete."""
    partial = folder + ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    wanted = [*(missing_packages(packages) if packages else []), *alone]
    print("unpacking", *wanted, flush=True)
    run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *wanted], cwd=partial)
    for package in glob.glob(os.path.join(glob.escape(partial), "*.deb")):
        run(["dpkg", "-x", package, partial])
        os.remove(package)
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(partial, folder)


def unpack_ptxas(folder):
    partial = folder + ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    print("unpacking", PTXAS_WHEEL, flush=True)
    run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--only-binary", ":all:", "--dest", partial, PTXAS_WHEEL])
    wheel = glob.glob(os.path.join(glob.escape(partial), "*.whl"))[0]
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith("/bin/ptxas"))
        with archive.open(member) as source, open(os.path.join(partial, "ptxas"), "wb") as target:
            shutil.copyfileobj(source, target)
    os.chmod(os.path.join(partial, "ptxas"), 0o755)
    os.remove(wheel)
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(partial, folder)


def install(root):
    """Fetches what is missing; goes on past what cannot be had. Returns what is found afterwards."""
    found = find_all(root)
    steps = []
    if not (found["clang"] and found["libclc"]):
        steps.append(lambda: unpack_packages(os.path.join(root, "llvm"),
                                             [] if found["clang"] else ["clang-" + LLVM], ["libclc-" + LLVM]))
    if not found["ocloc"]:
        steps.append(lambda: unpack_packages(os.path.join(root, "intel"), ["intel-opencl-icd"]))
    if not found["ptxas"]:
        steps.append(lambda: unpack_ptxas(os.path.join(root, "ptxas")))
    if steps and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "-qq", "update"], stdin=subprocess.DEVNULL, check=False)
    for step in steps:
        try:
            step()
        except (OSError, subprocess.CalledProcessError, IndexError, StopIteration) as error:
            print("failed:", error, file=sys.stderr)
    return find_all(root)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="fetch the missing compilers")
    parser.add_argument("--root", default=default_root(), help="the folder to unpack into (default: %(default)s)")
    arguments = parser.parse_args()
    root = os.path.abspath(arguments.root)
    found = install(root) if arguments.install else find_all(root)
    report(found)
    return 0 if all(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
