"""Installing the plugin: the static binary with the settings in force, or the launcher; complete and tried, or not at all."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from userspace_cni import shim
from userspace_cni.cli.main import userspace_cni
from userspace_cni.cli.node.install import NAMES, InstallError, install_launcher, install_shim
from userspace_cni.cli.node.seccomp import PROFILE
from userspace_cni.cni.result import version_answer
from userspace_cni.pod.program_build import recorded_build


@pytest.fixture(autouse=True)
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty settings file instead of this machine's."""
    path = tmp_path / "config.toml"
    path.touch()
    for name in [name for name in os.environ if name.startswith("USERSPACE_CNI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("USERSPACE_CNI_CONFIG", str(path))
    return path


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """A directory for plugins that does not exist yet."""
    return tmp_path / "opt" / "bin"


def about(path: Path) -> str:
    """The installed binary's answer in an environment without settings."""
    return subprocess.run([path], env={}, capture_output=True, text=True, check=True).stderr


def install(*options: str) -> Result:
    """Run `userspace-cni install`."""
    return CliRunner().invoke(userspace_cni, ["install", *options])


def test_shim_is_installed(bin_dir: Path) -> None:
    """The binary is installed as executable, alone, and answers; only its settings, and what it is of, differ from the build."""
    path, _ = install_shim(str(bin_dir))
    assert path == bin_dir / "userspace"
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert [entry.name for entry in bin_dir.iterdir()] == ["userspace"]
    done = subprocess.run([path], env={"CNI_COMMAND": "VERSION"}, capture_output=True, check=True)
    assert done.stdout == version_answer(None)
    # the defaults are the same in C and in Python
    assert path.read_bytes() == shim.fill_build(shim.BUILT.read_bytes(), recorded_build().summary)


def test_settings_of_the_file(bin_dir: Path, settings_file: Path) -> None:
    """The binary reads no TOML: the values of the settings file are written into it."""
    settings_file.write_text('run_dir = "/run/x"\nstate_dir = "/srv/x/"\nspool_max = 7\n')
    path, settings = install_shim(str(bin_dir))
    assert (settings.agent_socket, settings.state_dir, settings.spool_max) == ("/run/x/agent.sock", "/srv/x", 7)
    assert "agent's socket: /run/x/agent.sock\n" in about(path)
    assert "/srv/x/spool (at most 7)\n" in about(path)


def test_settings_of_the_environment(bin_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values from the installing user's environment are written into it, too."""
    monkeypatch.setenv("USERSPACE_CNI_SOCKET", "/run/y.sock")
    path, _ = install_shim(str(bin_dir))
    assert "agent's socket: /run/y.sock\n" in about(path)


def test_settings_are_read_back(bin_dir: Path, settings_file: Path, tmp_path: Path) -> None:
    """An installed binary's settings can be read from the file; other files and other versions are recognised."""
    settings_file.write_text('run_dir = "/run/x"\nstate_dir = "/srv/x/"\nspool_max = 7\n')
    path, settings = install_shim(str(bin_dir))
    carried = shim.read_settings(path.read_bytes())
    assert carried == shim.BinarySettings("", "/run/x", "/srv/x", "7")
    assert carried.agent_socket == settings.agent_socket
    assert shim.read_settings(install_launcher(str(tmp_path)).read_bytes()) is None
    with pytest.raises(ValueError, match="another version"):
        shim.read_settings(shim.BUILT.read_bytes().replace(b"shim/settings/2", b"shim/settings/3"))


def test_which_build_it_is_of(bin_dir: Path) -> None:
    """A person asks the installed binary with --version; one that was not installed says what writes it."""

    def answer(program: Path, **environment: str) -> str:
        argv = [str(program), "--version"]
        return subprocess.run(argv, env=environment, stdin=-3, capture_output=True, text=True, check=True).stdout

    path, _ = install_shim(str(bin_dir))
    assert answer(path) == f"userspace-cni {recorded_build().summary}\n"
    assert f"\nuserspace-cni {recorded_build().summary}\n" in about(path)
    assert shim.read_build(path.read_bytes()) == recorded_build().summary
    assert answer(shim.BUILT).startswith("userspace-cni unknown: `userspace-cni install` writes")
    assert shim.read_build(shim.BUILT.read_bytes()) == shim.read_build(b"another file") == ""
    assert answer(path, CNI_COMMAND="VERSION").encode() == version_answer(None)
    with pytest.raises(ValueError, match="has to fit 95 bytes"):
        shim.fill_build(shim.BUILT.read_bytes(), "x" * 96)


def test_umask_does_not_matter(bin_dir: Path) -> None:
    """With any umask a runtime can execute the file."""
    before = os.umask(0o777)
    try:
        bin_dir.parent.mkdir(mode=0o755)
        bin_dir.parent.chmod(0o755)
        bin_dir.mkdir()
        bin_dir.chmod(0o755)
        path, _ = install_shim(str(bin_dir))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_replaced_while_it_runs(bin_dir: Path) -> None:
    """A running binary can be replaced: its call goes on, the next one gets the new file."""
    path, _ = install_shim(str(bin_dir))
    inode = path.stat().st_ino
    environ = {"CNI_COMMAND": "ADD", "USERSPACE_CNI_SOCKET": str(bin_dir / "absent")}
    with subprocess.Popen([path], env=environ, stdin=-1, stdout=-1, stderr=-1) as running:
        for install_one in (lambda: install_shim(str(bin_dir)), lambda: install_launcher(str(bin_dir))):
            install_one()
            assert path.stat().st_ino != inode
            inode = path.stat().st_ino
        out, _ = running.communicate(b"{}", timeout=60)
    assert b'"code":11' in out
    assert [entry.name for entry in bin_dir.iterdir()] == ["userspace"]


def test_not_built(bin_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the built binary the error says how to make it, and which option needs none; no file is touched."""
    monkeypatch.setattr(shim, "BUILT", tmp_path / "absent")
    with pytest.raises(InstallError, match=r"absent: No such file.*pip install.*--standalone"):
        install_shim(str(bin_dir))
    assert not bin_dir.exists()


def test_no_shim(bin_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no shim of this version, or has two blocks of settings, is refused."""
    for content in (b"\x7fELF", shim.BUILT.read_bytes() * 2):
        (tmp_path / "other").write_bytes(content)
        monkeypatch.setattr(shim, "BUILT", tmp_path / "other")
        with pytest.raises(InstallError, match="block of settings is missing or there twice"):
            install_shim(str(bin_dir))
        monkeypatch.undo()
    assert not bin_dir.exists()


def test_binary_that_does_not_work(bin_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not answer VERSION is not installed, and the former file stays."""
    path, _ = install_shim(str(bin_dir))
    before = path.read_bytes()
    (tmp_path / "broken").write_bytes(b"#!/bin/false\n" + before)
    monkeypatch.setattr(shim, "BUILT", tmp_path / "broken")
    with pytest.raises(InstallError, match=r"did not answer VERSION; is .* mounted noexec"):
        install_shim(str(bin_dir))
    assert path.read_bytes() == before
    assert [entry.name for entry in bin_dir.iterdir()] == ["userspace"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("USERSPACE_CNI_SOCKET", "/" + "x" * 107, "socket .* has to fit 107 bytes"),
        ("USERSPACE_CNI_STATE_DIR", "/" + "x" * 249, "state_dir .* has to fit 249 bytes"),
        ("USERSPACE_CNI_RUN_DIR", "/" + "x" * 97, "socket .* has to fit 107 bytes"),
        ("USERSPACE_CNI_SPOOL_MAX", "0", "environment variable USERSPACE_CNI_SPOOL_MAX"),
    ],
)
def test_settings_that_cannot_be_carried(
    bin_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    """A setting that the binary cannot carry, or that is refused everywhere, is an error before anything is written."""
    monkeypatch.setenv(name, value)
    with pytest.raises(InstallError, match=said):
        install_shim(str(bin_dir))
    assert not bin_dir.exists()


@pytest.mark.parametrize("standalone", [False, True])
def test_bin_dir_that_is_none(tmp_path: Path, standalone: bool) -> None:
    """A directory that cannot be made is an error that names it."""
    (tmp_path / "f").touch()
    with pytest.raises(InstallError, match=f"writing {tmp_path}/f/bin/userspace"):
        install_launcher(f"{tmp_path}/f/bin") if standalone else install_shim(f"{tmp_path}/f/bin")


def test_command(bin_dir: Path) -> None:
    """The command says what it installed, and which socket and spool the file will use."""
    done = install("--bin-dir", str(bin_dir))
    assert done.exit_code == 0
    assert done.output == (
        f"installed {bin_dir}/userspace: the agent's socket is /run/userspace-cni/agent.sock, "
        "its records are in /var/lib/cni/userspace, DELs while it is away go to /var/lib/cni/userspace/spool, at most 1024\n"
    )


def test_command_for_the_launcher(bin_dir: Path) -> None:
    """With --standalone it is the launcher of this interpreter."""
    done = install("--standalone", "--bin-dir", str(bin_dir))
    assert done.exit_code == 0
    assert done.output.startswith(f"installed {bin_dir}/userspace: it carries no settings, each call reads its environment")
    assert (bin_dir / "userspace").read_text().startswith(f"#!/bin/sh\nexec {sys.executable} -I -S -c ")


def test_the_launcher_finds_what_the_interpreter_has(bin_dir: Path) -> None:
    """From another directory and without an environment it answers VERSION and offers the commands under their name."""
    path = install_launcher(str(bin_dir))
    done = subprocess.run([path], env={"CNI_COMMAND": "VERSION"}, cwd="/", input=b"", capture_output=True, check=True)
    assert done.stdout == version_answer(None)
    done = subprocess.run([path, "--help"], env={}, cwd="/", capture_output=True, check=True)
    assert done.stdout.startswith(b"Usage: userspace-cni ")


def test_command_that_fails(tmp_path: Path) -> None:
    """A failure is one line that names what to look at, and exit code 1; a missing option is 2."""
    (tmp_path / "f").touch()
    done = install("--bin-dir", str(tmp_path / "f" / "bin"))
    assert done.exit_code == 1
    assert done.output == (
        f"Error: writing {tmp_path}/f/bin/userspace: Not a directory; is {tmp_path}/f/bin a directory that root can write?\n"
    )
    assert install().exit_code == 2


def test_mirror_types_are_installed_when_asked(bin_dir: Path) -> None:
    """With --mirrors each chained type has a file of its own; another program's file of that name is refused."""
    assert install("--mirrors", "--bin-dir", str(bin_dir)).exit_code == 0
    found = {path.name: path for path in bin_dir.iterdir()}
    assert found.keys() == set(NAMES) - {"ovn_cni"}
    assert len({path.stat().st_ino for path in found.values()}) == len(found)
    assert len({path.read_bytes() for path in found.values()}) == 1
    theirs = found["ovs-mirror-consumer"]
    theirs.write_bytes(b"\x7fELF of ovs-cni")
    refused = install("--standalone", "--mirrors", "--bin-dir", str(bin_dir))
    assert (refused.exit_code, "another program has this file" in refused.output) == (1, True)
    assert theirs.read_bytes() == b"\x7fELF of ovs-cni"
    assert found["userspace"].read_bytes() == found["ovs-mirror-producer"].read_bytes()


def test_the_seccomp_profile(bin_dir: Path, tmp_path: Path) -> None:
    """It is put below the kubelet's directory, readable for all, and a second time in place of what was there."""
    seccomp = tmp_path / "seccomp"
    target = seccomp / "userspace-cni" / "dpdk.json"
    target.parent.mkdir(parents=True)
    target.write_text("{")
    for _ in range(2):
        done = install("--bin-dir", str(bin_dir), "--seccomp-dir", str(seccomp))
        assert done.exit_code == 0, done.output
    assert f"installed {target}: pods name it as localhostProfile userspace-cni/dpdk.json" in done.output
    assert target.read_bytes() == PROFILE.read_bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert [path.name for path in target.parent.iterdir()] == ["dpdk.json"]


def test_a_profile_that_cannot_be_written(bin_dir: Path, tmp_path: Path) -> None:
    """The plugin is installed all the same, and the error says what is not; exit code 1."""
    (tmp_path / "f").touch()
    done = install("--bin-dir", str(bin_dir), "--seccomp-dir", str(tmp_path / "f" / "seccomp"))
    assert done.exit_code == 1
    said = f"Error: the plugin is installed, the seccomp profile is not: writing {tmp_path}/f/seccomp/userspace-cni/dpdk.json"
    assert [line.partition(": ")[0] for line in done.output.splitlines()] == [f"installed {bin_dir}/userspace", "Error"]
    assert said in done.output
    assert (bin_dir / "userspace").exists()


def test_a_plugin_that_cannot_be_written(tmp_path: Path) -> None:
    """Then no profile is installed either; a second try does both."""
    (tmp_path / "f").touch()
    assert install("--bin-dir", str(tmp_path / "f" / "bin"), "--seccomp-dir", str(tmp_path / "seccomp")).exit_code == 1
    assert not (tmp_path / "seccomp").exists()


@pytest.mark.parametrize("option", ["--bin-dir", "--seccomp-dir"])
def test_an_empty_name_of_a_directory(option: str, bin_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would mean the working directory: refused, and nothing is written anywhere."""
    bin_dir.parent.mkdir()
    monkeypatch.chdir(bin_dir.parent)
    done = install("--bin-dir", str(bin_dir), option, "")
    assert (done.exit_code, "it names no directory" in done.output) == (2, True)
    assert list(bin_dir.parent.iterdir()) == []


def test_what_the_profile_allows() -> None:
    """It refuses what it does not name; it names what DPDK and ordinary programs need, and nothing that controls a node."""
    profile = json.loads(PROFILE.read_text())
    allowed = [name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]]
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert len(allowed) == len(set(allowed))
    assert {"get_mempolicy", "mbind", "set_mempolicy", "mmap", "mlockall", "memfd_create", "openat", "socket"} <= set(allowed)
    ruling = {
        "mount",
        "umount2",
        "unshare",
        "setns",
        "pivot_root",
        "bpf",
        "ptrace",
        "init_module",
        "kexec_load",
        "keyctl",
        "reboot",
    }
    assert ruling & set(allowed) == set()
    [clone] = [rule for rule in profile["syscalls"] if rule["names"] == ["clone"]]
    assert clone["args"] == [{"index": 0, "value": 0x7E020000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]  # no new namespace
