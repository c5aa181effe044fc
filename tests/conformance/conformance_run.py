"""Runs a suite with the Python of the environment that holds its packages, or says what is missing.

    conformance_run.py ENVIRONMENT SUITE.py OPTIONS...

Only the Python standard library here: this file runs where nothing is installed yet."""

import importlib.metadata
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
REQUIREMENTS = os.path.join(HERE, "requirements.txt")


def missing():
    """Pinned packages that this Python does not have, as pip names them."""
    with open(REQUIREMENTS, encoding="utf-8") as file:
        pins = [line.strip() for line in file if "==" in line and not line.startswith("#")]
    absent = []
    for pin in pins:
        name, version = pin.split("==")
        try:
            if importlib.metadata.version(name) != version:
                absent.append(pin)
        except importlib.metadata.PackageNotFoundError:
            absent.append(pin)
    return absent


def main():
    environment, suite, *options = sys.argv[1:]
    python = os.path.join(environment, "bin", "python3")
    inside = os.path.realpath(sys.prefix) == os.path.realpath(environment)
    if not inside and os.path.exists(python):
        os.execv(python, [python, os.path.abspath(__file__), environment, suite, *options])
    absent = missing()
    if absent:
        print("conformance: missing %s. Install them (Debian needs the package python3-venv):\n"
              "    python3 -m venv %s && %s -m pip install -r %s"
              % (", ".join(absent), environment, python, REQUIREMENTS))
        return 1 if os.environ.get("CLATTN_CONFORMANCE_REQUIRE") == "1" else 77
    os.execv(sys.executable, [sys.executable, os.path.join(HERE, suite), *options])


if __name__ == "__main__":
    sys.exit(main())
