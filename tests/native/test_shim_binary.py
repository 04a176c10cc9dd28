"""The shim as a file: small, static, at home anywhere; and the settings that it carries."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.agentless import PLAIN, SANITIZED, SOURCE, STRICT, Caller, refused
from userspace_cni import shim
from userspace_cni.result import LATEST, SUPPORTED_VERSIONS, version_answer

SMALL = 64 * 1024
PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3


def program_headers(path: str) -> set[int]:
    """Types of the program headers of a 64-bit ELF file."""
    raw = Path(path).read_bytes()
    (offset,) = struct.unpack_from("<Q", raw, 32)
    size, count = struct.unpack_from("<HH", raw, 54)
    return {struct.unpack_from("<I", raw, offset + index * size)[0] for index in range(count)}


def test_size_and_linkage(built: Callable[..., str]) -> None:
    """With musl it has at most 64 KiB; it names no loader and no library."""
    path = built("plain")
    assert Path(path).stat().st_size <= SMALL
    assert PT_LOAD in program_headers(path)
    assert not {PT_INTERP, PT_DYNAMIC} & program_headers(path)


def test_package_build(built: Callable[..., str]) -> None:
    """The package build has made it beside its source: executable, small, static, and of this source's version."""
    path = str(shim.BUILT)
    assert shim.BUILT.stat().st_mode & 0o111 == 0o111
    assert Path(path).stat().st_size <= SMALL
    assert PT_INTERP not in program_headers(path)
    done = subprocess.run([path], env={"CNI_COMMAND": "VERSION"}, capture_output=True, check=True)
    assert done.stdout == version_answer(None)


def test_glibc_build(place: Path) -> None:
    """Without musl, glibc's static library makes it, from the same source, without a warning."""
    path = str(place / "shim")
    subprocess.run(["gcc", *STRICT, "-O2", "-static", "-s", "-o", path, str(SOURCE)], check=True)
    assert PT_INTERP not in program_headers(path)
    done = subprocess.run([path], env={"CNI_COMMAND": "VERSION"}, capture_output=True, check=True)
    assert done.stdout == version_answer(None)


def test_strictest_warnings(place: Path) -> None:
    """Conversions, shadowing, lost qualifiers and what the analyzer sees are errors as well."""
    extra = ("-Wconversion", "-Wshadow", "-Wcast-qual", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Wvla", "-fanalyzer")
    subprocess.run(["gcc", *STRICT, *extra, "-O2", "-c", "-o", str(place / "shim.o"), str(SOURCE)], check=True)


def test_versions_in_the_source() -> None:
    """The versions in the source are Python's: in the answer, in the text for people and in errors."""
    source = SOURCE.read_text()
    assert re.search(r'#define VERSION_LATEST\t"(.*)"', source)
    assert f'#define VERSION_LATEST\t"{LATEST}"' in source
    assert f"CNI protocol versions supported: {', '.join(SUPPORTED_VERSIONS)}" in source


def test_no_allocation() -> None:
    """It asks for no memory: buffers are static."""
    assert not re.search(r"\b(malloc|calloc|realloc|alloca|free|strdup|asprintf|fopen|opendir)\b\s*\(", SOURCE.read_text())


def test_empty_environment(caller: Caller) -> None:
    """It needs nothing of the environment but the verb, and no working directory."""
    done = subprocess.run(["env", "-i", "CNI_COMMAND=VERSION", caller.program], capture_output=True, check=True)
    assert done.stdout == version_answer(None)
    gone = f'mkdir "$0/x"; cd "$0/x"; rmdir "$0/x"; exec env -i CNI_COMMAND=VERSION {caller.program}'
    done = subprocess.run(["sh", "-c", gone, str(caller.directory)], capture_output=True, check=True)
    assert done.stdout == version_answer(None)


def test_empty_chroot(built: Callable[..., str], place: Path) -> None:
    """In a root of its own, with nothing else there, it runs; a DEL that can not tell the boot is refused, not half-spooled."""
    shutil.copy(built("plain"), place / "userspace")
    caller = Caller("/userspace", place, {"USERSPACE_CNI_SOCKET": "/s", "USERSPACE_CNI_STATE_DIR": "/state"})

    def call(verb: str) -> subprocess.CompletedProcess[bytes]:
        command = [shutil.which("chroot") or "/usr/sbin/chroot", str(place), "/userspace"]
        return subprocess.run(command, env=caller.environ(verb), input=b"{}", capture_output=True, check=False)

    assert call("VERSION").stdout == version_answer(None)
    assert b'"code":11' in call("ADD").stdout
    deleted = call("DEL")
    assert deleted.returncode == 1
    assert b"/proc/sys/kernel/random/boot_id: path is absent" in deleted.stdout
    assert caller.entries == []


@pytest.mark.parametrize("command", [PLAIN, SANITIZED], ids=["plain", "sanitized"])
def test_settings_in_the_file(place: Path, command: tuple[str, ...]) -> None:
    """What is written into the file holds, to its longest, and the environment wins over it."""
    path = place / "shim"
    subprocess.run([*command, "-o", str(path), str(SOURCE)], check=True)
    caller = Caller(str(path), place, {"USERSPACE_CNI_SOCKET": "", "USERSPACE_CNI_STATE_DIR": ""})
    for socket, spool, spool_max in (("/a/b", "/c/d/spool", 1), ("/" + "s" * 106, "/" + "d" * 254, 999_999)):
        path.write_bytes(shim.fill(path.read_bytes(), socket, spool, spool_max))
        about = caller.run("").stderr
        assert f"agent's socket: {socket}\n" in about
        assert f"spool of DELs while it is away: {spool} (at most {spool_max})\n" in about
        refused(caller.run("ADD"), 11, socket)
    assert "agent's socket: /e\n" in caller.run("", USERSPACE_CNI_SOCKET="/e").stderr
    assert "away: /e/spool (at most 5)" in caller.run("", USERSPACE_CNI_STATE_DIR="/e", USERSPACE_CNI_SPOOL_MAX="5").stderr
