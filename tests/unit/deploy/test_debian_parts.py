"""What deploy/debian puts on a node agrees with the program: the file of settings, the unit's capabilities."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.debian import settings_file
from deploy.debian_package import PARTS
from userspace_cni.base.settings import TABLE, Settings, load
from userspace_cni.node import surroundings


def test_each_line_of_the_settings_file_says_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is, the file changes nothing; with the sign taken away from each line it is valid and says what holds anyway."""
    assert settings_file.main() == 0
    shown = capsys.readouterr().out
    assert all(line.startswith("#") or not line for line in shown.splitlines())
    file = tmp_path / "config.toml"
    keys = re.findall(r"^#(\w+) = ", shown, re.MULTILINE)
    assert keys == list(TABLE)
    file.write_text(re.sub(r"^#(?=\w+ = )", "", shown, flags=re.MULTILINE))
    usual = Settings()
    assert load({"USERSPACE_CNI_CONFIG": str(file)}) == Settings(shared_dirs=usual.usual_shared_dirs)


def test_the_unit_leaves_the_agent_the_capabilities_that_it_uses() -> None:
    """The bounding set has those that the agent looks for at its start, and no other one."""
    unit = (PARTS / "userspace-cni.service").read_text()
    [bounding] = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    assert sorted(bounding.split()) == sorted(
        f"CAP_{name}" for name in surroundings._CAPABILITIES | surroundings._CAPABILITIES_ELSEWHERE
    )


def test_the_unit_gives_the_agent_no_mounts_of_its_own() -> None:
    """No directive that makes a mount namespace is set: Open vSwitch has to see what the agent mounts for pods."""
    unit = (PARTS / "userspace-cni.service").read_text()
    directives = {line.partition("=")[0] for line in unit.splitlines() if line[:1].isupper()}
    apart = re.compile(r"Protect\w+|Private\w+|\w*Paths|\w+Directory|MountFlags")
    assert not [each for each in directives if apart.fullmatch(each)]


@pytest.mark.parametrize("kept", ["another agent's plugin", ""])
def test_configuring_puts_back_a_plugin_that_a_killed_removal_took_off(kept: str, tmp_path: Path) -> None:
    """dpkg only configures the package then: the plugin that was put aside is back, or ours where there was none."""
    places = ("opt/cni/bin", "usr/lib/cni", "var/lib/kubelet/seccomp", "run/systemd/system")
    script = (PARTS / "postinst").read_text().replace("deb-systemd-helper", "false")
    for place in places:
        script = script.replace(f"/{place}", str(tmp_path / place))
    for place in places[:3]:
        (tmp_path / place).mkdir(parents=True)
    plugin = tmp_path / "opt/cni/bin/userspace"
    if kept:
        plugin.with_name(".userspace.kept").write_text(kept)
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}", "USERSPACE_CNI_CONFIG": "/dev/null"}
    subprocess.run(["sh", "-c", script, "postinst", "configure", "0.1.0"], env=environment, check=True)
    assert [path.name for path in plugin.parent.iterdir()] == ["userspace"]
    assert (plugin.read_bytes() == kept.encode()) == bool(kept)
    assert (tmp_path / "usr/lib/cni/userspace").exists() != bool(kept)
