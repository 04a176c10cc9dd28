"""A node whose agent is a driver of devices, with the parts around it: API server, scheduler and kubelet."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from tests.agent.living import LiveNode
from tests.cni.spec import row_of, switch_of
from tests.lab.dra.dra_kubelet import DraKubelet
from tests.lab.dra.scheduled_claims import Given, Scheduler
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.below import files_below
from tests.lab.node.node import mounts_below
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment.journal import Journal
from userspace_cni.dra.device_names import DRIVER, device_name
from userspace_cni.linux.boot import boot_id

BRIDGE: Final = "br-dev"
EARLIER_BOOT: Final = "00000000-0000-4000-8000-000000000000"
KIND = {"apiVersion": "userspace-cni.io/v1alpha1", "kind": "InterfaceParameters"}


class ClaimingNode:
    """The node with a bridge of its administrator's, whose agent is not started yet; `claiming` makes it.

    `name`: the node's, for the API server; two nodes on one switch have bridges of their own.
    """

    def __init__(self, live: LiveNode, api: ApiServer, name: str = "n1", bridge: str = BRIDGE) -> None:
        self.live, self.api, self.bridge = live, api, bridge
        self.scheduler = Scheduler(api, name)
        self.kubelet = DraKubelet(live.kubelet, live.directory / "dra_manager_state", self.scheduler.read)
        live.settings |= {"USERSPACE_CNI_DRA": "true"}
        live.follow(api, name)
        self.add_bridge(bridge)

    def add_bridge(self, name: str) -> None:
        switch_of(self.live).vsctl("add-br", name, "--", "set", "Bridge", name, "datapath_type=netdev")

    def start(self) -> None:
        """Start the agent, and wait until the kubelet may call it."""
        self.live.start()
        self.kubelet.await_driver(DRIVER)

    def pod(self, name: str = "app", namespace: str = "default") -> Pod:
        """A new pod that the API server has."""
        pod = Pod(name, namespace)
        pod.create(self.api)
        return pod

    def claim(self, name: str, pod: Pod, *bridges: str, parameters: Mapping[str, Any] | None = None, pod_claim: str = "") -> str:
        """A claim of a device of each of these bridges, by default of one, that is allocated to the pod; its UID.

        `pod_claim`: it is made of a template, and the pod calls it so.
        """
        names = bridges or (self.bridge,)
        shares = Given([device_name(each) for each in names], shares=[f"{number:04x}" for number, _ in enumerate(names)])
        said = {**KIND, **parameters} if parameters else None
        return self.scheduler.claim(name, pod, shares, parameters=said, pod_claim=pod_claim)

    def ports(self, bridge: str = "") -> list[str]:
        """Names of the ports of claims on the bridge, by default the first; without those that go meanwhile."""
        rows = {name: switch_of(self.live).interface(name) for name in switch_of(self.live).ports(bridge or self.bridge)}
        return [name for name, row in rows.items() if row.get("external_ids", {}).get("owner-kind") == "claim"]

    def port(self) -> dict[str, Any]:
        """Of the row of the only port of a claim on the bridge: the columns that change only when a program sets them."""
        [name] = self.ports()
        return row_of(self.live, name)

    def cdi_files(self) -> list[str]:
        """Names of the files that runtimes read."""
        return sorted(path.name for path in files_below(self.live.cdi))

    def await_prepared(self, count: int) -> None:
        """Wait until as many devices of claims have their port, which is open, and their file."""
        wait_until(lambda: self._open_ports() == len(self.cdi_files()) == count, what=f"{count} devices of claims")

    def _open_ports(self) -> int:
        rows = [switch_of(self.live).interface(name) for name in self.ports()]
        return sum(isinstance(row["ofport"], int) and row["ofport"] > 0 and row["error"] == [] for row in rows)

    def reboot(self) -> None:
        """Everything dies at once; what is in memory is gone, what is on disk is of another boot. Neither agent nor kubelet run.

        The kernel's boot id cannot be changed: so what is on disk gets another one.
        """
        self.kubelet.close()
        self.live.kill()
        journal = Journal(str(self.live.state), f"{self.live.directory}/run", print, boot_id)
        for record in journal.records():
            journal.write(replace(record, boot_id=EARLIER_BOOT))
        for name in self.ports():
            for table in ("Port", "Interface"):
                switch_of(self.live).vsctl("set", table, name, f"external_ids:boot-id={EARLIER_BOOT}")
        for point in mounts_below(self.live.directory):
            subprocess.run(["umount", point], check=True)
        for directory in (self.live.directory / "run", self.live.cdi):
            shutil.rmtree(directory)

    def require_nothing_left(self) -> None:
        """Neither the node, nor the kubelet's memory, has anything of any claim."""
        left = {kind: found for kind, found in self.live.leftovers().items() if (kind, found) != ("bridges", [BRIDGE])}
        assert (left, self.kubelet.remembers()) == ({}, [])


@contextmanager
def claiming(live: LiveNode) -> Iterator[ClaimingNode]:
    """The parts around this node, ended in the end; its kubelet runs."""
    with ApiServer() as api:
        node = ClaimingNode(live, api)
        with node.kubelet:
            yield node
