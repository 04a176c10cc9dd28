"""The next start of a cluster returns what a killed run of these tests had taken of the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.lab.cluster.cluster import own_top
from tests.lab.cluster.node import images_directory, ovs_directory
from tests.lab.runtimes.containerd_host import CGROUPS
from tests.lab.runtimes.dockerfile import ROOT

_RUN = """
import sys
from tests.lab.cluster.cluster import own_top
from tests.lab.cluster.node import hold_images, ovs_directory
from tests.lab.runtimes.containerd_host import CGROUPS
from tests.lab.switch.switch import Switch
with own_top() as top:
    for controller in CGROUPS.glob("*/cgroup.procs"):
        (controller.parent / top.name / "pod").mkdir(parents=True)
    ovs_directory(top).mkdir(parents=True)
    hold_images(top)
    Switch(ovs_directory(top)).start()
    print(top, flush=True)
    sys.stdin.read()
"""
"""What a run uses of the machine beside its processes, which end with it: cgroups, hugepages, memory, files."""


def test_next_run_removes_what_a_killed_one_left() -> None:
    """While a run lives, another leaves its things alone; after SIGKILL the next removes cgroups, pages, memory and files."""
    with subprocess.Popen([sys.executable, "-c", _RUN], cwd=ROOT, stdin=-1, stdout=-1, text=True) as killed:
        assert killed.stdout
        top = Path(killed.stdout.readline().strip())
        with own_top():
            assert ovs_directory(top).is_dir()
            assert images_directory(top).is_mount()
        killed.kill()
    assert list(CGROUPS.glob(f"*/{top.name}"))
    with own_top():
        assert not top.exists()
    assert list(CGROUPS.glob(f"*/{top.name}")) == []
