"""One machine at a port that was made by hand, beside its peer, for tests without the plugin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lab.guests.guest_peer import peer_at
from tests.lab.guests.qemu import Machine, Qemu
from tests.lab.switch.switch import Switch
from userspace_cni.pod.launcher import DIRECTORY, QEMU_ID, socket_path

BRIDGE, PORT = "br-device", "vm-device"
SOCKET = socket_path("pod1")
_SHOWN = 100
"""Lines of the log of ovs-vswitchd."""
MAC, ADDRESS = "02:00:00:00:00:0a", "10.9.0.2/24"


@contextmanager
def guest_at_port(switch: Switch, machine: Machine) -> Iterator[Qemu]:
    """The machine, whose one interface is at SOCKET, at PORT with the MTU of its device; its script is done. One at a time."""
    (nic,) = machine.nics
    with TemporaryDirectory(prefix="uc-") as directory:
        public = Path(directory) / "public"
        sockets = public / DIRECTORY
        sockets.mkdir(parents=True)
        os.chown(sockets, QEMU_ID, QEMU_ID)
        columns = [
            "type=dpdkvhostuserclient",
            f"options:vhost-server-path={sockets / Path(SOCKET).name}",
            f"mtu_request={nic.mtu}",
        ]
        switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
        switch.vsctl("add-port", BRIDGE, PORT, "--", "set", "Interface", PORT, *columns)
        try:
            with (
                peer_at(switch, BRIDGE, Path(directory), nic.mtu),
                Qemu(Path(directory) / "vm" / "qemu", machine, public) as started,
            ):
                try:
                    started.until("GUEST ready")
                except AssertionError as error:
                    lines = (switch.dir / "ovs-vswitchd.log").read_text().splitlines()
                    log = [line for line in lines if "|coverage|" not in line]
                    error.add_note("\n".join([f"the port: {switch.interface(PORT)}", "ovs-vswitchd:", *log[-_SHOWN:]]))
                    raise
                yield started
        finally:
            switch.vsctl("del-br", BRIDGE)
