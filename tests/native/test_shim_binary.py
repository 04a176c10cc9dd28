"""The shim as a file: small, static, able to run anywhere; and the settings that it carries."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from itertools import chain, combinations, product
from pathlib import Path

import pytest

from tests.lab.node.agentless import PLAIN, SANITIZED, SOURCE, STRICT, Caller, filled, refused
from userspace_cni import shim
from userspace_cni.base.settings import Settings, load
from userspace_cni.cni.result import LATEST, SUPPORTED_VERSIONS, version_answer

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
    """It needs only the verb from the environment, and no working directory."""
    done = subprocess.run(["env", "-i", "CNI_COMMAND=VERSION", caller.program], capture_output=True, check=True)
    assert done.stdout == version_answer(None)
    gone = f'mkdir "$0/x"; cd "$0/x"; rmdir "$0/x"; exec env -i CNI_COMMAND=VERSION {caller.program}'
    done = subprocess.run(["sh", "-c", gone, str(caller.directory)], capture_output=True, check=True)
    assert done.stdout == version_answer(None)


def test_empty_chroot(built: Callable[..., str], place: Path) -> None:
    """It runs in a root without any other file; a DEL without a readable boot ID is refused, not half-spooled."""
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
    """Settings that are written into the file hold, up to their greatest lengths."""
    path = place / "shim"
    subprocess.run([*command, "-o", str(path), str(SOURCE)], check=True)
    caller = Caller(str(path), place, {"USERSPACE_CNI_SOCKET": "", "USERSPACE_CNI_STATE_DIR": ""})
    for settings in (
        Settings(socket="/a/b", state_dir="/c/d", spool_max=1),
        Settings(run_dir="/a"),
        Settings(run_dir="/" + "r" * 95, state_dir="/" + "d" * 248, spool_max=999_999),
        Settings(socket="/" + "s" * 106, run_dir="/" + "r" * 248),
    ):
        path.write_bytes(filled(path.read_bytes(), settings))
        assert settings_in_force(caller) == (settings.agent_socket, f"{settings.state_dir}/spool", settings.spool_max)
        refused(caller.run("ADD"), 11, settings.agent_socket)


NAMED = ("socket", "run_dir", "state_dir")
NOTHING = dict.fromkeys((f"USERSPACE_CNI_{key.upper()}" for key in NAMED), "")


def settings_in_force(caller: Caller, **environ: str) -> tuple[str, str, int]:
    """Socket, spool and its bound, as the binary prints them for people."""
    said = re.search(r"socket: (.*)\nspool of DELs while it is away: (.*) \(at most (\d+)\)\n", caller.run("", **environ).stderr)
    assert said
    return said[1], said[2], int(said[3])


def test_the_rule_is_the_agents(caller: Caller, tmp_path: Path) -> None:
    """Whichever of socket, run_dir and state_dir are in the file and the
    environment, binary and agent use the same socket and spool.
    """
    config = tmp_path / "config.toml"
    binary = Path(caller.program).read_bytes()
    chosen = list(chain.from_iterable(combinations(NAMED, count) for count in range(len(NAMED) + 1)))
    for in_file, in_environ in product(chosen, chosen):
        config.write_text("".join(f'{key} = "/file/{key}"\n' for key in in_file))
        environ = {f"USERSPACE_CNI_{key.upper()}": f"/environ/{key}" for key in in_environ}
        Path(caller.program).write_bytes(filled(binary, load({"USERSPACE_CNI_CONFIG": str(config)})))
        agent = load({"USERSPACE_CNI_CONFIG": str(config), **environ})
        assert settings_in_force(caller, **{**NOTHING, **environ}) == (
            agent.agent_socket,
            f"{agent.state_dir}/spool",
            agent.spool_max,
        )


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, []),
        ({"USERSPACE_CNI_SOCKET": "/run//a/agent.sock", "USERSPACE_CNI_STATE_DIR": "/state/"}, []),
        ({"USERSPACE_CNI_RUN_DIR": "/run/a/"}, []),
        ({"USERSPACE_CNI_SOCKET": "/x"}, [("USERSPACE_CNI_SOCKET", "/x", "/run/a/agent.sock")]),
        ({"USERSPACE_CNI_RUN_DIR": "/x"}, [("USERSPACE_CNI_RUN_DIR", "/x/agent.sock", "/run/a/agent.sock")]),
        ({"USERSPACE_CNI_STATE_DIR": "/x"}, [("USERSPACE_CNI_STATE_DIR", "/x", "/state")]),
        (
            {"USERSPACE_CNI_RUN_DIR": "/x", "USERSPACE_CNI_STATE_DIR": "/x"},
            [("USERSPACE_CNI_RUN_DIR", "/x/agent.sock", "/run/a/agent.sock"), ("USERSPACE_CNI_STATE_DIR", "/x", "/state")],
        ),
    ],
)
def test_an_environment_that_contradicts_the_file(caller: Caller, environ: dict[str, str], said: list[tuple[str, ...]]) -> None:
    """A call with another socket or other records than the file was installed for warns of each.

    The warning has the variable, what is used, and what was installed. Another path to the same directory is no contradiction,
    and VERSION prints nothing.
    """
    path = Path(caller.program)
    path.write_bytes(filled(path.read_bytes(), Settings(run_dir="/run/a", state_dir="/state")))
    warnings = [line for line in caller.run("STATUS", **{**NOTHING, **environ}).stderr.splitlines() if "level=warning" in line]
    assert len(warnings) == len(said)
    for line, words in zip(warnings, said, strict=True):
        assert [word for word in words if word not in line] == []
    assert caller.run("VERSION", **{**NOTHING, **environ}).stderr == ""
