"""The groups in which tests run: what may run in parallel, and what has to be made first for each kind of test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.lab.lanes.table import LANES
from tests.lab.suite import seconds
from tests.lab.suite.exercised import ROOT
from tests.lab.suite.seconds import longest_first

CORES: Final = 2
"""The least that a machine has."""
ROOTLESS: Final = ("-n", str(2 * CORES), "--dist", "worksteal")
"""These tests have no switch, and wait for half of their time."""
SHARED: Final = ("-n", str(CORES), "--dist", "loadfile", "--no-loadscope-reorder")
"""Each process has a switch of its own, whose polling threads sleep when they are idle.

We set the order of the files, because pytest-xdist begins last with files of few tests, some of which are long.
"""
ALL_OURS: Final = ("-n", str(2 * CORES), *SHARED[2:])
"""For a machine on which nothing else runs: each process waits for more than half of its time."""
BESIDE: Final = ("-n", str(CORES), *ROOTLESS[2:])
"""The rootless tests while others need most of the machine."""
_LOOK_S: Final = 2.0
_BUSY_PERCENT: Final = 50.0
ORDERED: Final = ("shared", "guests")
"""The groups whose longest files begin first."""
CLUSTER: Final = ("tests/cluster",)
GUESTS: Final = ("tests/kubevirt",)
"""Emulated virtual machines keep a core busy while they boot: one for each core, and nothing beside them."""
ALONE: Final = ("tests/ovs/test_cli_ping.py", "tests/ovs/test_cli_load.py", "tests/guest")
"""Ping and load look at every unix socket of the machine before they take a port, and measure.

The guest with a full kernel has two emulated processors, each of which uses one of the machine's.
"""
QUICK: Final = (
    "tests/unit",
    "tests/agent/test_agent_smoke.py",
    "tests/cni/test_smoke.py",
    "tests/crash/test_localdb_kill.py",
    "tests/host/test_veths.py",
    "tests/native/test_shim_binary.py",
    "tests/ovs/test_ports.py",
    "tests/runtimes/test_ctr.py",
)
"""The rootless tests, and a sample of each kind that needs neither a cluster nor a virtual machine."""

LANE: Final = (
    "tests/ovs",
    "tests/ovn",
    "tests/cni",
    *(
        f"tests/agent/test_agent_{name}.py"
        for name in ("changes", "handed", "health", "killed", "live", "mixed", "network", "notices", "returns", "smoke")
    ),
    *(f"tests/agent/test_agent_{name}.py" for name in ("switch_killed", "together", "two_nodes", "watch")),
    *(f"tests/runtimes/test_{name}.py" for name in ("cnitool", "containerd_cri", "containerd_killed", "cri_sandboxes", "ctr")),
    *(f"tests/runtimes/test_{name}.py" for name in ("ordinary_sandboxes", "routes_in_pods", "runtime_network")),
)
"""Tests that run on the programs of each lane: those that speak to the switch, those of the agent
that depend on the switch, and those in which a runtime calls the plugin.
"""
SAMPLE: Final = (
    "tests/agent/test_agent_live.py",
    "tests/agent/test_agent_smoke.py",
    "tests/cni/test_frames.py",
    "tests/cni/test_recordings.py",
    "tests/cni/test_smoke.py",
    "tests/ovn/test_logical_ports.py",
    "tests/ovn/test_ovn_setup.py",
    "tests/ovn/test_two_chassis.py",
    "tests/ovs/test_kernel_ports.py",
    "tests/ovs/test_mirrors.py",
    "tests/ovs/test_port_counters.py",
    "tests/ovs/test_port_limits.py",
    "tests/ovs/test_ports.py",
    "tests/ovs/test_private_switch.py",
    "tests/ovs/test_resident.py",
    "tests/ovs/test_vswitchd.py",
    "tests/runtimes/test_cnitool.py",
    "tests/runtimes/test_containerd_killed.py",
)
"""The part of these that each run of the suite has, on each lane: at most three minutes."""


@dataclass(frozen=True)
class Group:
    """Test files that one pytest runs, with its options, on the programs of `lane`, or on this machine's own."""

    name: str
    files: tuple[str, ...]
    options: tuple[str, ...] = ()
    lane: str = ""

    @property
    def beds(self) -> tuple[Bed, ...]:
        if self.lane:
            return (Bed(f"lane {self.lane}", "tests.lab.lanes.programs", self.lane),)
        return tuple(bed for bed in BEDS if bed.kind in kinds(self.files))


@dataclass(frozen=True)
class Groups:
    """Test files, each in one group: `rootless` and then `cluster`, and samples on the lanes, run beside `shared`; then `guests`,
    and `alone` after all.
    """

    rootless: Group
    shared: Group
    cluster: Group
    guests: Group
    alone: Group

    def __iter__(self) -> Iterator[Group]:
        return iter((self.rootless, self.shared, self.cluster, self.guests, self.alone))


@dataclass(frozen=True)
class Bed:
    """What tests of a kind, or on a lane, need, made once per machine by a module and kept. The module is told which it is."""

    what: str
    module: str
    kind: str


BEDS: Final = (
    Bed("the agent's image, from a minimal Debian 12", "tests.lab.runtimes.agent_image", "cluster"),
    Bed("the image of OVN, from the same", "tests.lab.runtimes.ovn_image", "cluster"),
    Bed("Kubernetes from Debian's source", "tests.lab.cluster.binaries", "cluster"),
    Bed("Debian 13's containerd, and cnitool from its source", "tests.lab.lanes.callers", "cluster"),
    Bed("Debian 13's QEMU and libvirt, beside this machine's own", "tests.lab.guests.trixie", "kubevirt"),
    Bed("kernel and initramfs of the virtual machines", "tests.lab.guests.guest", "kubevirt"),
    Bed("Debian 13's passt, testpmd and QEMU, as vhost-user peers", "tests.lab.peers.peer_programs", "native"),
    Bed("a vhost-user peer of rust-vmm's crates, from Debian 13's sources", "tests.lab.peers.rust_reflector", "native"),
    Bed("a guest with a full kernel, saved", "tests.lab.hardware.snapshot", "guest"),
)


def files(*places: str) -> tuple[str, ...]:
    """The test files below these files and directories of the tree; without names, all."""
    found = (path for place in places or ("tests",) for path in _below(ROOT / place))
    return tuple(sorted({str(path.relative_to(ROOT)) for path in found}))


def kinds(tests: Iterable[str]) -> frozenset[str]:
    """The kinds of these test files: the directories of `tests/`."""
    return frozenset(Path(each).parts[1] for each in tests)


def idle() -> bool:
    """Whether the machine has most of its time free for the tests. Takes two seconds."""
    return psutil.cpu_percent(_LOOK_S) < _BUSY_PERCENT


def groups(tests: Sequence[str], sharing: Sequence[str] = SHARED) -> Groups:
    """These test files, grouped by how they run. `sharing`: the options of those that share the machine."""
    rootless = tuple(each for each in tests if each.startswith("tests/unit/"))
    cluster, guests, alone = (_among(places, tests) for places in (CLUSTER, GUESTS, ALONE))
    known = seconds.read()
    shared = longest_first((each for each in tests if each not in {*rootless, *cluster, *guests, *alone}), known)
    return Groups(
        Group("unit", rootless, BESIDE if len(shared) > len(QUICK) else ROOTLESS),  # they are over long before many others
        Group("shared", shared, tuple(sharing)),
        Group("cluster", cluster),
        Group("guests", longest_first(guests, known), SHARED),
        Group("alone", alone),
    )


def samples() -> tuple[Group, ...]:
    """The tests that each run of the suite has on each lane."""
    ours = longest_first(files(*SAMPLE), seconds.read())
    return tuple(Group(f"lane {lane.name}", ours, SHARED, lane.name) for lane in LANES)


def _among(places: Iterable[str], tests: Sequence[str]) -> tuple[str, ...]:
    return tuple(each for each in tests if any(each == place or each.startswith(f"{place}/") for place in places))


def _below(place: Path) -> Iterable[Path]:
    return place.rglob("test_*.py") if place.is_dir() else (place,)
