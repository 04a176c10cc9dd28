"""What an installed package has beside its modules: every file that programs read is in it."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
NOT_READ: Final = frozenset({".py", ".so", ".pyc", ".c", ".h", ".cdef", ".proto"})
"""Modules, and what they are made of."""


def test_every_file_is_packaged() -> None:
    """Each file of the product that is no module is named by package-data: one that is not is missing in the image alone."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for package in ("userspace_cni", "localdb", "kubevirt"):
        for file in (ROOT / package).rglob("*"):
            if file.is_dir() or file.suffix in NOT_READ or "__pycache__" in file.parts:
                continue
            of = ".".join(file.relative_to(ROOT).parts[:-1])
            patterns = [*data["*"], *data.get(of, ())]
            assert any(fnmatch(file.name, each) for each in patterns) or file == ROOT / "userspace_cni/shim/userspace", file
