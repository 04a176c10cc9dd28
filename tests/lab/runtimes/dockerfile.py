"""The files that a Dockerfile copies from the repository, read from the Dockerfile itself, so that no test repeats the list."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
AGENT = ROOT / "deploy" / "images" / "Dockerfile"
OVN = ROOT / "deploy" / "images" / "ovn.Dockerfile"
SIDECAR = ROOT / "deploy" / "images" / "kubevirt-sidecar.Dockerfile"
BUILD = "build"
"""The stage of both that puts together what the image is made of."""
_MADE_HERE = shutil.ignore_patterns("__pycache__", "*.so", "_native.c", "userspace")


@dataclass(frozen=True)
class Copy:
    """One COPY from the repository: `stage` is the stage's name, "" for one without."""

    stage: str
    sources: tuple[str, ...]
    destination: str


def text_of(dockerfile: Path) -> str:
    """The Dockerfile with each instruction on one line."""
    return re.sub(r"\\\n", " ", dockerfile.read_text())


def copies(dockerfile: Path) -> list[Copy]:
    """Every COPY from the repository, in order, without those from another stage."""
    found = []
    stage = ""
    for line in text_of(dockerfile).splitlines():
        words = line.split()
        if words[:1] == ["FROM"]:
            stage = words[3] if words[2:3] == ["AS"] else ""
        elif words[:1] == ["COPY"] and not any(word.startswith("--from") for word in words):
            *sources, destination = [word for word in words[1:] if not word.startswith("--")]
            found.append(Copy(stage, tuple(sources), destination))
    return found


def copied_files(dockerfile: Path) -> list[Path]:
    """Every file of a clean checkout that the Dockerfile copies."""
    found: set[Path] = set()
    for name in {name for copy in copies(dockerfile) for name in copy.sources}:
        source = ROOT / name
        if source.is_file():
            found.add(source)
        for directory, names, files in os.walk(source):
            left_out = _MADE_HERE(directory, [*names, *files])
            names[:] = [each for each in names if each not in left_out]
            found.update(Path(directory) / each for each in files if each not in left_out)
    return sorted(found)


def lay_out(copied: Iterable[Copy], directory: Path) -> None:
    """Copy as the builder does, with `directory` as the working directory, as from a clean checkout: nothing built is taken."""
    for copy in copied:
        for name in copy.sources:
            source, target = ROOT / name, directory / copy.destination
            if source.is_dir():
                shutil.copytree(source, target, ignore=_MADE_HERE, dirs_exist_ok=True)
                continue
            if copy.destination.endswith("/"):
                target = target / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
