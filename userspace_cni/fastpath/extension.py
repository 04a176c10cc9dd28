"""Compiles the extension: named by `[tool.setuptools.cmdclass]`, used at build time and never imported by the program.

setuptools knows nothing of cffi, so this command lets cffi write its wrapper into the build directory (generated C is not
checked in) and links it with our own sources. Our own C is compiled with every warning an error; the generated one is not ours
to judge.
"""

from __future__ import annotations

from pathlib import Path

from cffi import FFI
from setuptools import Extension
from setuptools.command.build_ext import build_ext

STRICT = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]


class BuildExtension(build_ext):
    """build_ext which compiles our C strictly and adds the wrapper that cffi makes from the *.cdef beside it."""

    def build_extension(self, ext: Extension) -> None:
        """Compile `ext`, whose sources in pyproject.toml are our own C files."""
        own = [Path(source) for source in ext.sources]
        wrapper = Path(self.build_temp, *ext.name.split(".")).with_suffix(".c")
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        _emit(ext.name, own, wrapper)
        ext.extra_objects += self.compiler.compile(
            [str(source) for source in own],
            output_dir=self.build_temp,
            extra_postargs=STRICT,
            depends=[str(source.with_suffix(".h")) for source in own],
        )
        ext.include_dirs += sorted({str(source.parent.resolve()) for source in own})
        ext.sources = [str(wrapper)]
        super().build_extension(ext)


def _emit(name: str, sources: list[Path], wrapper: Path) -> None:
    ffi = FFI()
    for source in sources:
        ffi.cdef(source.with_suffix(".cdef").read_text(encoding="utf-8"))
    ffi.set_source(name, "".join(f'#include "{source.with_suffix(".h").name}"\n' for source in sources))
    ffi.emit_c_code(str(wrapper))
