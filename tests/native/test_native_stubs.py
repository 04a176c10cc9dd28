"""The types of the compiled extensions are those that they have: a stub is believed by every other check."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from userspace_cni import fastpath

ROOT = Path(fastpath.__file__).parents[2]
ROOMS = ("fastpath", "linux")
LOADER = """
from userspace_cni.{room}._native import lib
globals().update({{name: getattr(lib, name) for name in dir(lib)}})
"""


def declared(room: str) -> list[ast.stmt]:
    """What the stub says of `lib`."""
    stub = ast.parse((ROOT / "userspace_cni" / room / "_native.pyi").read_text(encoding="utf-8"))
    return next(each.body for each in stub.body if isinstance(each, ast.ClassDef) and each.name == "_Lib")


def python_type(c_type: Any) -> str:
    """What Python takes and gets for a type of C; bytes are given where C reads characters."""
    if c_type.kind == "pointer":
        return "bytes" if c_type.item.cname == "char" else "Any"
    return {"void": "None", "_Bool": "bool"}.get(c_type.cname, "int")


@pytest.mark.parametrize("room", ROOMS)
def test_every_signature_is_that_of_the_c(room: str) -> None:
    """Each function takes as many arguments as in C, of its kinds, and gives what it gives in C."""
    native = import_module(f"userspace_cni.{room}._native")
    told, real = {}, {}
    for function in declared(room):
        if isinstance(function, ast.FunctionDef):
            given = [ast.unparse(each.annotation) for each in function.args.posonlyargs if each.annotation]
            assert function.returns
            told[function.name] = (given, ast.unparse(function.returns))
            c_type = native.ffi.typeof(getattr(native.lib, function.name))
            real[function.name] = ([python_type(each) for each in c_type.args], python_type(c_type.result))
    assert told
    assert told == real


def test_stubtest_finds_no_difference(tmp_path: Path) -> None:
    """Nothing is declared that is not there, and nothing is there that is not declared: mypy's stubtest compares both.

    The variable `lib` has a type of its own for each extension, which only the stub knows: so its members are compared as those
    of a module.
    """
    for room in ROOMS:
        members = declared(room)
        for each in members:
            if isinstance(each, ast.FunctionDef):
                del (each.args.posonlyargs or each.args.args)[0]  # self
        text = ast.unparse(ast.Module(members, []))
        (tmp_path / f"lib_of_{room}.pyi").write_text(f"from typing import Any\n{text}\n")
        (tmp_path / f"lib_of_{room}.py").write_text(LOADER.format(room=room))
    known = tmp_path / "known"
    known.write_text("".join(f"userspace_cni.{room}._native.lib\n" for room in ROOMS))
    modules = [f"{name}{room}{rest}" for room in ROOMS for name, rest in (("userspace_cni.", "._native"), ("lib_of_", ""))]
    modules.append("userspace_cni.fastpath._frames")
    command = [
        sys.executable,
        "-m",
        "mypy.stubtest",
        "--mypy-config-file",
        str(ROOT / "pyproject.toml"),
        "--allowlist",
        str(known),
    ]
    path = f"{tmp_path}:{ROOT}"
    done = subprocess.run(
        [*command, *modules],
        cwd=tmp_path,
        env={"MYPYPATH": path, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"no issues found in {len(modules)} modules" in done.stdout
