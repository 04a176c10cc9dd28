"""Builds the package: named by `[tool.setuptools.cmdclass]`, used at build time and never imported by the program.

Compiled are three things. Extensions with *.cdef: cffi writes a wrapper into the build directory (generated C is not checked in),
and it is linked with our own sources. Extensions without, which use the C interface of Python. The shim: a static executable that
setuptools takes for another extension, so that wheels and editable installs contain it too. Our own C is compiled with every
warning an error, the generated C is not.

Wheels and archives of the sources get the record of which build they are (`pod/program_build`). A wheel made from such an archive
has the archive's record.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, Final

from cffi import FFI
from setuptools import Extension
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError

STRICT = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
SHIM = "userspace_cni.shim.userspace"
SHIM_FLAGS = [*STRICT, "-Os", "-static", "-s", "-fstack-protector-strong", "-ffunction-sections", "-Wl,--gc-sections"]
RECORDER: Final = Path("userspace_cni/pod/program_build.py")


class BuildPython(build_py):
    """Command build_py: writes the record of the build into what becomes a wheel. An editable install stays without one."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            _record(Path(self.build_lib))


class BuildArchive(sdist):
    """Command sdist: writes the record of the build into the archive, which has no clone's git."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        _record(Path(base_dir))

    def make_archive(self, base_name: Any, format: str, *where: Any, **who: Any) -> str:  # noqa: A002 -- its name there
        """With SOURCE_DATE_EPOCH the same sources give the same bytes: order, times, modes and owner depend on nothing else."""
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if not epoch or format != "gztar":
            return str(super().make_archive(base_name, format, *where, **who))
        path, top = Path(f"{base_name}.tar.gz"), Path(who["base_dir"])
        with (
            path.open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(epoch)) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for source in sorted(each for each in top.rglob("*") if each.is_file()):
                content = source.read_bytes()
                member = tarfile.TarInfo(str(source))
                member.size, member.mtime, member.mode = len(content), int(epoch), 0o644
                archive.addfile(member, io.BytesIO(content))
        return str(path)


class BuildExtension(build_ext):
    """Command build_ext: compiles our C strictly, adds the wrapper that cffi makes from the *.cdef files, and links the shim."""

    def get_ext_filename(self, fullname: str) -> str:
        """The path of the result, by its full or its last name; the shim is an executable and gets no module's suffix."""
        if fullname in (SHIM, SHIM.rpartition(".")[2]):
            return fullname.replace(".", "/")
        return str(super().get_ext_filename(fullname))  # type: ignore[no-untyped-call]

    def build_extension(self, ext: Extension) -> None:
        """Compile `ext`; its sources in pyproject.toml are our own C files."""
        own = [Path(source) for source in ext.sources]
        if ext.name == SHIM:
            _link_static(own, Path(self.get_ext_fullpath(ext.name)))
            return
        if not any(source.with_suffix(".cdef").exists() for source in own):
            ext.extra_compile_args += STRICT
            super().build_extension(ext)
            return
        wrapper = Path(self.build_temp, *ext.name.split(".")).with_suffix(".c")
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        emit(ext.name, own, wrapper)
        ext.extra_objects += self.compiler.compile(
            [str(source) for source in own],
            output_dir=self.build_temp,
            extra_postargs=STRICT,
            depends=sorted(str(header) for place in {source.parent for source in own} for header in place.glob("*.h")),
        )
        ext.include_dirs += sorted({str(source.parent.resolve()) for source in own})
        ext.sources = [str(wrapper)]
        super().build_extension(ext)


def emit(name: str, sources: list[Path], wrapper: Path) -> None:
    """Write the C of module `name` to `wrapper`; it includes the header of each of the `sources` that has a *.cdef."""
    ffi = FFI()
    declared = [source for source in sources if source.with_suffix(".cdef").exists()]
    for source in declared:
        ffi.cdef(source.with_suffix(".cdef").read_text(encoding="utf-8"))
    ffi.set_source(name, "".join(f'#include "{source.with_suffix(".h").name}"\n' for source in declared))
    ffi.emit_c_code(str(wrapper))


def _record(target: Path) -> None:
    """Write the record below `target`, unless the sources have one already, which was copied there."""
    record = RECORDER.with_name("build.json")
    if not record.exists():
        made = subprocess.run([sys.executable, "-I", RECORDER], check=True, stdout=subprocess.PIPE).stdout
        place = target / record
        place.unlink(missing_ok=True)  # it may be a link to a file of the sources
        place.write_bytes(made)


def _link_static(sources: list[Path], target: Path) -> None:
    """Make the executable: small with musl where its compiler is present, else with glibc's static library."""
    compiler = shutil.which("musl-gcc") or "gcc"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run([compiler, *SHIM_FLAGS, "-o", target, *sources], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CompileError(f"linking {target.name} statically: {error}; it needs musl-gcc, or gcc and a static libc") from error
