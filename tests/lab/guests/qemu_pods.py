"""Launcher pods of one VM on a node, attached by the plugin, with QEMU itself in place of the launcher.

KubeVirt gives both pods of a migration the same definition: so the machine that runs in any of them is the same but for
`incoming`, and has its socket at the same path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.guests.guest import Nic, command_line
from tests.lab.guests.qemu import TRIXIE, Emulator, Machine, Qemu, VhostNic
from tests.lab.kube.pods import Pod
from tests.lab.node.node import Node
from tests.lab.runtimes.runtime import Call
from tests.lab.switch.switch import Switch
from userspace_cni.pod.launcher import VOLUME, interface_name, socket_path

BRIDGE = "br-test"
NETWORK = "blue"
IFNAME = interface_name(NETWORK)
GUEST = "10.9.0.2"


@dataclass
class Launcher:
    """The launcher pod virt-launcher-vm1-`suffix`, in its sandbox `netns`. `attached`: its interface as ADD's result has it.

    `bridge`: more of the network's `host.bridge`; `pings`: the addresses that the guest pings all the time.
    """

    node: Node
    suffix: str
    netns: str
    emulator: Emulator = TRIXIE
    attached: dict[str, Any] = field(default_factory=dict)
    bridge: Mapping[str, Any] = field(default_factory=dict)
    pings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.pod = Pod(f"virt-launcher-vm1-{self.suffix}", "tenant")
        self.public = self.node.empty_dir(self.pod.uid, VOLUME)

    def add(self) -> None:
        added = self._call("ADD")
        assert added.status == 0, (added.stdout, added.stderr)
        self.attached = added.document["interfaces"][0]

    def delete(self) -> None:
        deleted = self._call("DEL")
        assert (deleted.status, deleted.stdout) == (0, b""), deleted.stderr

    @property
    def switch(self) -> Switch:
        assert self.node.switch
        return self.node.switch

    @property
    def interface(self) -> dict[str, Any]:
        """The row of its interface in the switch, {} if there is none."""
        found = self.switch.rows("Port", f"external_ids:pod-name={self.pod.name}")
        return self.switch.interface(found[0]["name"]) if found else {}

    @property
    def network_info(self) -> dict[str, Any]:
        """What KubeVirt tells the pod's sidecar, of ADD's result and of the device-info file that ADD has written."""
        told = {"network": NETWORK, "mac": self.attached["mac"], "mtu": self.attached["mtu"]}
        return {"interfaces": [{**told, "deviceInfo": json.loads(self._device_info.read_text())}]}

    def qemu(self, *, incoming: bool = False) -> Qemu:
        mac = self.attached["mac"]
        nic = VhostNic(socket_path(IFNAME), mac, mtu=1500)
        machine = Machine(command_line(Nic(mac, f"{GUEST}/24"), ping=self.pings), (nic,), incoming=incoming)
        return Qemu(self.node.directory.parent / "vm1" / self.suffix, machine, self.public, self.emulator)

    def _call(self, command: str) -> Call:
        network = self.node.network(consumer="kubevirt", runtimeConfig={"CNIDeviceInfoFile": str(self._device_info)})
        network["host"] |= {"bridge": {"bridgeName": BRIDGE, **self.bridge}, "mtu": 1500}
        container = self.pod.uid.replace("-", "") * 2
        return self.node.run(command, network, self.netns, container, IFNAME, CNI_ARGS=self.pod.args)

    @property
    def _device_info(self) -> Path:
        return self.node.device_info / f"{self.pod.name}-device.json"


def forwarded_to(switch: Switch, mac: str, bridge: str = BRIDGE, vlan: int = 0) -> int:
    """The OpenFlow port at which the bridge has learnt the MAC in a VLAN (ovs-vswitchd(8), fdb/show), 0 for none."""
    entries = [line.split() for line in switch.appctl("fdb/show", bridge).splitlines()[1:]]
    return next((int(port) for port, where, learnt, _ in entries if (learnt, int(where)) == (mac, vlan)), 0)
