"""The project's node in the guest: its agent's specs, its plugin as a runtime calls it, and the network beyond its NICs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.lab.hardware.full_guest import FullGuest
from tests.lab.hardware.snapshot import SETTINGS, SETTINGS_TEXT

OUTSIDE: Final = "/run/netns/outside"
WAIT_S: Final = 60
"""Seconds to wait for an answer; a few are enough."""
_VARIABLES: Final = f"CNI_PATH=/opt/cni/bin:/usr/lib/cni CNI_IFNAME=net1 USERSPACE_CNI_CONFIG={SETTINGS}"
_FAILED: Final = 1
_NOT_YET: Final = 503
"""The status of an answer when the agent had too little time."""


def _by_name(page: str) -> dict[str, Any]:
    return {each["name"]: each for each in json.loads(page)["specs"]}


@dataclass(frozen=True)
class GuestNode:
    """What a test does on the node in `guest`."""

    guest: FullGuest

    def has(self, specs: str) -> dict[str, Any]:
        """Write these tables to the settings, and have the agent apply them; the status of each by its name."""
        self.guest.do("tee", SETTINGS, stdin=SETTINGS_TEXT + specs)
        return self.looked()

    def looked(self) -> dict[str, Any]:
        """The same after another pass of the agent, repeated while its time for that is too short on a busy machine."""
        found: dict[str, Any] = {}

        def decided() -> bool:
            status, body = self.guest.answer("/api/v1/network", "POST")
            assert status in (200, _NOT_YET), (status, body)
            if status == _NOT_YET:
                return False
            found.clear()
            found.update(_by_name(body))
            return not any("out of time" in each["problem"] for each in found.values())

        self.guest.until(decided, "the agent to have looked at all")
        return found

    def statuses(self) -> dict[str, Any]:
        """The status of each spec, by its name, as of the agent's last pass."""
        return _by_name(self.guest.page("/api/v1/network"))

    def ready(self, name: str = "net1") -> bool:
        """Whether the agent reported the spec as ready in its last pass."""
        return bool(self.statuses()[name]["ready"])

    def ask(self, verb: str, pod: str, network: dict[str, Any]) -> dict[str, Any]:
        """The plugin's answer to a call for the pod's interface net1; {} for none. An error is returned as it is printed."""
        called = f"CNI_COMMAND={verb} CNI_CONTAINERID={pod} CNI_NETNS=/run/netns/{pod} {_VARIABLES} /opt/cni/bin/userspace"
        done = self.guest.run("sh", "-c", called, stdin=json.dumps(network))
        assert done.code in (0, _FAILED), done
        found: dict[str, Any] = json.loads(done.stdout or "{}")
        return found

    def add(self, pod: str, network: dict[str, Any]) -> dict[str, Any]:
        """Make the pod's namespace, and attach it; the plugin's answer, which must be no error."""
        self.guest.do("ip", "netns", "add", pod)
        answer = self.ask("ADD", pod, network)
        assert "code" not in answer, answer
        return answer

    def delete(self, pod: str, network: dict[str, Any]) -> None:
        """Detach the pod, without an error."""
        assert self.ask("DEL", pod, network) == {}

    def outside(self, *argv: str) -> str:
        """The output of a command beyond the NICs."""
        return self.guest.do("nsenter", f"--net={OUTSIDE}", *argv)

    def reaches(self, address: str, pod: str = "", *options: str) -> bool:
        """Whether an echo request to the address is answered: from the pod, or from outside."""
        namespace = f"/run/netns/{pod}" if pod else OUTSIDE
        argv = ("ping", "-n", "-q", "-c", "1", "-i", "0.2", "-w", str(WAIT_S), *options, address)
        return self.guest.run("nsenter", f"--net={namespace}", *argv).code == 0


def veth_network(bridge: str, address: str, **host: Any) -> dict[str, Any]:
    """A network of kernel interfaces on the bridge; its only pod has this address with length. `host`: more keys of that block.

    `vlanId` is a key of the bridge.
    """
    on_bridge = {"bridgeName": bridge, **({"vlanId": host.pop("vlanId")} if "vlanId" in host else {})}
    ipam = {"type": "static", "addresses": [{"address": address}]}
    return {"cniVersion": "1.0.0", "name": "net", "type": "userspace", "ipam": ipam} | {
        "host": {"iftype": "veth", "bridge": on_bridge, **host}
    }


def provider(interface: str, name: str = "net1", **keys: str) -> str:
    """A table of the settings: a provider network with this interface. `keys`: more keys, with values as in TOML."""
    return _provider(name, interface=json.dumps(interface), **keys)


def bonded_provider(members: Sequence[str], mode: str, lacp: str = "") -> str:
    """The same, of net1 with a bond of OVS."""
    said = f'members = {json.dumps(members)}, mode = "{mode}"' + (f', lacp = "{lacp}"' if lacp else "")
    return _provider("net1", bond=f"{{{said}}}")


def _provider(name: str, **keys: str) -> str:
    return f'[[provider_network]]\nname = "{name}"\n' + "".join(f"{key} = {value}\n" for key, value in keys.items())
