"""Tests of back-end and generator once more, with all of our C under sanitizers: which memory Python hands to it, how long."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

from userspace_cni.fastpath.extension import emit

ROOT = Path(__file__).parents[2]
OURS = Path("userspace_cni") / "fastpath"
ROOM = "userspace_cni.fastpath"
FLAGS = ["-g", "-O1", "-fPIC", "-shared", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def _mirror(place: Path) -> Path:
    """The project as links, without the compiled extension."""
    for source in (ROOT / "tests", ROOT / "localdb"):
        (place / source.name).symlink_to(source)
    (place / OURS).mkdir(parents=True)
    for source in (ROOT / "userspace_cni").iterdir():
        if source.name != OURS.name:
            (place / "userspace_cni" / source.name).symlink_to(source)
    for source in (ROOT / OURS).iterdir():
        if source.suffix != ".so" and source.name != "__pycache__":
            (place / OURS / source.name).symlink_to(source)
    (place / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider\npythonpath = .\n")
    return place


def _build(place: Path) -> None:
    modules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    of_room = {each["name"]: [ROOT / source for source in each["sources"]] for each in modules if each["name"].startswith(ROOM)}
    emit(f"{ROOM}._native", of_room[f"{ROOM}._native"], place / "_native.c")
    suffix, python = sysconfig.get_config_var("EXT_SUFFIX"), Path(sysconfig.get_path("include"))
    for name, sources in of_room.items():
        last = name.rpartition(".")[2]
        wrapper = [place / "_native.c"] if last == "_native" else []
        paths = [f"-I{place}" for place in {*(source.parent for source in sources), python}]
        subprocess.run(
            ["gcc", *FLAGS, *paths, "-o", place / OURS / f"{last}{suffix}", *wrapper, *sources, "-pthread"], check=True
        )


def _library(name: str) -> str:
    return subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()


def test_under_sanitizers(tmp_path: Path) -> None:
    """None of these tests makes our C touch what it must not; Python's own memory is checked as well."""
    place = _mirror(tmp_path)
    _build(place)
    environment = os.environ | {
        "LD_PRELOAD": f"{_library('libasan.so')}:{_library('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0,handle_segv=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(place),
    }
    names = ["back_end", "back_end_faults", "back_end_hostile", "back_end_packed", "back_end_packed_faults", "back_end_rings"]
    names += ["fastpath_misuse", "stream_generator", "burst"]
    tests = [f"tests/native/test_{name}.py" for name in names]
    # a sanitizer ends the process: its report must not be in pytest's hands then, and the last line on stdout names the test
    how = ["-v", "--capture=sys", "--timeout=100"]
    argv = [sys.executable, "-m", "pytest", "-c", "pytest.ini", *how, *tests]
    done = subprocess.run(argv, cwd=place, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    script = "from userspace_cni.fastpath import _frames, _native; print(_frames.__file__, _native.__file__)"
    loaded = [sys.executable, "-c", script]
    where = subprocess.run(loaded, cwd=place, env=environment, capture_output=True, text=True, check=True).stdout
    assert all(Path(file).is_relative_to(place) for file in where.split()), where
