"""A program that behaves on the command line as nsys does, as far as gpuprof relies on it, for machines without nsys.

As seen of nsys 2025.3: the target runs in a session of its own with pipes for its output, TERM and INT are passed on,
nsys ends with the target's code (128 + n after a signal), both the report and an export contain the environment.

What it does beyond that is asked for in STAND_IN: hang (at --version), refuse (does not start the target), code (ends
with 1 whatever the target did), newer (the report is too new to export), nolib (the importer lacks a library), silent
(no report is made), crash (dies once the target runs), stream (only a .qdstrm is made).
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

MODE = os.environ.get("STAND_IN", "").split(",")
HELP = """
\t-c, --capture-range=
\t--capture-range-end=
\t--cpuctxsw=
\t--cuda-graph-trace=
\t-f, --force-overwrite=
\t--gpu-metrics-devices=
\t   Possible values are: 'none', 'cuda-visible', 'all',
\t--kill=
\t-o, --output=
\t-s, --sample=
\t-t, --trace=
"""


def main(words: list[str]) -> int:
    """The verbs."""
    if words == ["--version"]:
        if "hang" in MODE:
            time.sleep(600)
        print("NVIDIA Nsight Systems version 2025.3.1.90")
        return 0
    verb, *words = words
    if verb == "profile" and words == ["--help"]:
        print(HELP)
        return 0
    if verb == "profile" and words == ["--gpu-metrics-devices=help"]:
        print("Insufficient privilege, see https://developer.nvidia.com/ERR_NVGPUCTRPERM")
        return 1
    return profile(words) if verb == "profile" else export(words)


def profile(words: list[str]) -> int:
    """Runs the target and leaves a report, in which the environment lies as it does in a real one."""
    options: dict[str, str] = {}
    while re.match(r"--[\w-]+=", words[0]):
        name, _, value = words[0].partition("=")
        options[name], words = value, words[1:]
    assert options["--kill"] == "none" and options["--capture-range-end"] == "stop", options
    if "refuse" in MODE:
        print("Error: cannot do that")
        return 1
    print("Collecting data...", flush=True)
    variables = os.environ | {"NSYS_PROFILING_SESSION_ID": "7"}
    process = subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, start_new_session=True)
    if "crash" in MODE:
        os._exit(1)
    print(process.communicate()[0].decode(), end="")
    report = Path(options["--output"] + (".qdstrm" if "stream" in MODE else ".nsys-rep"))
    if "silent" not in MODE:
        report.write_bytes(b"2099.1.1\n" if "newer" in MODE else environment())
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return 1 if "code" in MODE else code


def environment() -> bytes:
    """The environment, as a process has it."""
    return b"\0".join(f"{name}={value}".encode() for name, value in os.environ.items())


def export(words: list[str]) -> int:
    """A small export, with the tables that hold an environment."""
    out = next(word for word in words if word.startswith("--output=")).partition("=")[2]
    content = Path(words[-1]).read_bytes()
    if "newer" in MODE:
        print("Failed to load the report file: unsupported format")
        return 1
    with sqlite3.connect(out) as file:
        write(file, content, os.environ, sys.argv)
    file.close()
    return 0


def write(file: sqlite3.Connection, content: bytes, variables: object, arguments: object) -> None:
    """The tables of an export that matter here."""
    file.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    strings = ["kernel", content.decode(), "printed " + content.decode(), "step_1"]
    file.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(strings))
    for name in ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV", "META_DATA_EXPORT"):
        file.execute(f"CREATE TABLE {name} (name TEXT, value TEXT)")
        file.execute(f"INSERT INTO {name} VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', ?)", (str(variables),))
        file.execute(f"INSERT INTO {name} VALUES ('ARGUMENT', ?)", (str(arguments),))
    file.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.20.3')")
    file.execute("CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER)")
    file.execute("INSERT INTO ProcessStreams VALUES (1, 0, 2)")
    file.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, shortName INTEGER)")
    file.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0)", [(i, i + 1) for i in range(100)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
