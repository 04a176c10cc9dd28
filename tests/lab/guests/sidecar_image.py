"""The sidecar's image without a container: the files that its Dockerfile puts together, in a directory, and its environment.

Read from the Dockerfile itself. The two libraries, which the image has from wheels, are copied from where the tests have them.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from compileall import compile_dir
from importlib.util import find_spec
from pathlib import Path
from py_compile import PycInvalidationMode

from tests.lab.runtimes.dockerfile import BUILD, SIDECAR, Copy, copies, text_of
from tests.lab.runtimes.dockerfile import lay_out as lay_out_copies

LIBRARIES = ("grpc", "google", "typing_extensions")
"""The parts that the wheels of grpcio and protobuf bring, with what they need."""
STAGING = "/image"
"""Where the first stage puts together what becomes the image's root."""


def environment() -> dict[str, str]:
    """The variables that the image sets."""
    return dict(pair.split("=", 1) for line in re.findall(r"^ENV (.*)$", text_of(SIDECAR), re.MULTILINE) for pair in line.split())


def lay_out(directory: Path) -> dict[str, str]:
    """Copy what the image has to `directory`, in place of its PYTHONPATH; the environment of a process that uses it."""
    variables = environment()
    top = f"{STAGING}{variables['PYTHONPATH']}"
    lay_out_copies(
        [
            Copy(BUILD, copy.sources, f".{copy.destination.removeprefix(top)}")
            for copy in copies(SIDECAR)
            if copy.destination.startswith(top)
        ],
        directory,
    )
    for name in LIBRARIES:
        spec = find_spec(name)
        assert spec, name
        locations = list(spec.submodule_search_locations or [])
        source = Path(locations[0] if locations else spec.origin or "")
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("tests", "__pycache__"))
        else:
            shutil.copy(source, directory)
    # compiling modules at each start would cost memory, which the image's bytecode saves
    compile_dir(directory, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    return {**variables, "PYTHONPATH": str(directory)}


def interpreter() -> list[str]:
    """Python as the image has it, which knows nothing of the tests' packages."""
    return [os.path.realpath(sys.executable), "-S"]
