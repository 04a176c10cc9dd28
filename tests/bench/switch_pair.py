"""Two client ports of a switch of its own that polls without pause; a flow leads from each to the other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.bench.our_loads import Ends, frame_of
from tests.lab.lanes.programs import programs
from tests.lab.lanes.table import LANES, lane
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.vhost.front_end import FrontEndListener, FrontEndOptions

BRIDGE: Final = "br-bench"
INSTALLED: Final = "installed"
SWITCHES: Final = (INSTALLED, *(each.name for each in LANES))
"""This machine's own Open vSwitch, and those of other releases of Debian."""
_APP_PAGES: Final = "64"
"""2 MiB each, for the DPDK loop."""
_AT_A_TIME: Final = 32
_ENVIRONMENT: Final = {"PRIVATE_SWITCH_PMD_SLEEP": "0", "PRIVATE_SWITCH_APP_PAGES": _APP_PAGES}


@dataclass(frozen=True)
class SwitchPair:
    """The switch, the sockets of its two ports, and the core that is left to the programs at them."""

    switch: Switch
    sockets: tuple[str, str]
    core: int

    @property
    def versions(self) -> dict[str, str]:
        """Of Open vSwitch, and of the DPDK in it."""
        dpdk = str(self.switch.rows("Open_vSwitch")[0]["dpdk_version"]).removeprefix("DPDK ")
        return {"Open vSwitch": self.switch.appctl("version").split()[-1], "its DPDK": dpdk}

    @contextmanager
    def attached(self, options: FrontEndOptions) -> Iterator[Ends]:
        """Our front-ends at both ports, through which a frame has gone."""
        with ExitStack() as stack:
            listeners = [stack.enter_context(FrontEndListener(path, options, replace_dead=True)) for path in self.sockets]
            ends = Ends(*(stack.enter_context(listener.accept()).pairs for listener in listeners))
            for source, sinks in (ends, ends[::-1]):
                wait_until(partial(_has_passed, source, sinks), what="a frame through the switch")
            yield ends


def _has_passed(source: Sequence[QueuePair], sinks: Sequence[QueuePair]) -> bool:
    """Send a frame, and look on all queues, because the switch chooses one by its thread."""
    source[0].send_frames([frame_of(64)])
    return any(sink.receive_frames(_AT_A_TIME) for sink in sinks)


@contextmanager
def switch_pair(name: str, directory: Path) -> Iterator[SwitchPair]:
    """Of one of SWITCHES; this process stays on its own core meanwhile."""
    prefix = () if name == INSTALLED else programs(lane(name)).inside
    sockets = (str(directory / "a"), str(directory / "b"))
    with Switch(environment=_ENVIRONMENT, prefix=prefix) as switch:
        _wire(switch, sockets)
        core = _core_beside(switch)
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
        try:
            yield SwitchPair(switch, sockets, core)
        finally:
            os.sched_setaffinity(0, before)


def _wire(switch: Switch, sockets: tuple[str, str]) -> None:
    commands = ["add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev", "fail_mode=secure"]
    for name, path in zip("ab", sockets, strict=True):
        commands += ["--", "add-port", BRIDGE, name, "--", "set", "Interface", name, "type=dpdkvhostuserclient"]
        commands += [f"options:vhost-server-path={path}"]
    switch.vsctl(*commands)
    numbers = [switch.interface(name)["ofport"] for name in "ab"]
    for number, other in (numbers, numbers[::-1]):
        flow = f"in_port={number},actions=output:{other}"
        argv = ["ovs-ofctl", "add-flow", f"unix:{switch.rundir}/{BRIDGE}.mgmt", flow]
        subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)


def _core_beside(switch: Switch) -> int:
    """A core that is not the switch's polling thread's."""
    shown = wait_until(lambda: switch.appctl("dpif-netdev/pmd-rxq-show"))
    taken = {int(line.split("core_id ")[1].rstrip(":")) for line in shown.splitlines() if "core_id" in line}
    return next((core for core in sorted(os.sched_getaffinity(0)) if core not in taken), 0)
