"""A newer release's programs replace this machine's own for one command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lab.guests import roots
from tests.lab.lanes.programs import NotMade, Programs, programs
from tests.lab.lanes.table import Lane

DRIVERS = "usr/lib/x86_64-linux-gnu/dpdk"
SAYS = "#!/bin/sh\necho of the release\n"


@pytest.fixture
def made(tmp_path: Path) -> Programs:
    """A release with one program that this machine has and one that it lacks, and with DPDK drivers of its own."""
    made = Programs(tmp_path / "root", tmp_path / "tree", tmp_path / "callers")
    for name in ("ovs-vsctl", "of-the-release"):
        program = made.tree / "usr/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(SAYS)
        program.chmod(0o755)
    driver = made.root / DRIVERS / "pmds-99.0" / "librte_net_null.so.99"
    driver.parent.mkdir(parents=True)
    driver.touch()
    (made.root / "usr/share/openvswitch").mkdir(parents=True)
    (made.root / "usr/share/openvswitch/vswitch.ovsschema").write_text("of the release\n")
    return made


def told(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


def test_they_are_seen_by_the_command_alone(made: Programs) -> None:
    """The command sees the release's programs, schema and drivers instead of this machine's; other processes see none of them."""
    look = f"/usr/bin/ovs-vsctl; cat /usr/share/openvswitch/vswitch.ovsschema; ls /{DRIVERS}; ls /usr/bin/of-the-release || true"
    own = sorted(path.name for path in Path("/", DRIVERS).iterdir())
    seen = told(*made.inside, "sh", "-c", look).splitlines()
    assert seen == ["of the release", "of the release", *sorted([*own, "pmds-99.0"])]
    assert sorted(path.name for path in Path("/", DRIVERS).iterdir()) == own
    assert "of the release" not in told("ovs-vsctl", "--version")
    assert str(made.tree) not in Path("/proc/self/mounts").read_text()


def test_callers_are_found_first(made: Programs) -> None:
    """Programs that have to be started by their own path come first in PATH, before this machine's of the same name."""
    caller = made.callers / "ip"
    caller.parent.mkdir()
    caller.write_text(SAYS)
    caller.chmod(0o755)
    assert told(*made.inside, "sh", "-c", "command -v ip; ip").splitlines() == [str(caller), "of the release"]


def test_the_command_has_the_process(made: Programs) -> None:
    """The process that is started becomes the command itself, so that a signal to its id ends the command."""
    with subprocess.Popen([*made.inside, "sh", "-c", "echo $$"], stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate(timeout=60)[0] == f"{process.pid}\n"


def test_a_release_that_the_archive_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lane is made, the error has apt's words, and what was begun does not count as a lane."""
    monkeypatch.setattr(roots, "CACHE", tmp_path)
    with pytest.raises(NotMade, match=r"apt-get update: .*no-such-release"):
        programs(Lane("nothing", ("no-such-release",)))
    assert {path.suffix.partition("-")[0] for path in tmp_path.iterdir()} <= {".lock", roots._PART}
