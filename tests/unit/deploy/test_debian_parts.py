"""What deploy/debian puts on a node agrees with the program: the file of settings, the unit's capabilities."""

from __future__ import annotations

import re
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
