"""What of the node's own part at the pod's bridge can be the cause: uplinks, and gateways of the node. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from userspace_cni.base.findings import Finding
from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, Findings, known

if TYPE_CHECKING:
    from userspace_cni.node.seen_specs import SeenSpec

_GATEWAY: Final = "gateway"
_BEYOND: Final = "what is beyond this node is not reached"
_SEE: Final = "`userspace-cni network` and the agent's log say more"


def judge_specs(sight: AttachmentSight) -> Findings:
    """Provider networks and gateways of the node at the pod's bridge."""
    specs = known(sight.specs) or ()
    wrong = [found for each in specs for found in (*_links(sight, each), *_held(sight, each))]
    yield from wrong
    if specs and not wrong:
        yield sight.well("node-network", ", ".join(f"{each.kind} {each.name} of the bridge" for each in specs))


def _links(sight: AttachmentSight, spec: SeenSpec) -> Iterator[Finding]:
    carries = "up" in spec.links.values()
    for link, state in spec.links.items():
        if state == "up":
            continue
        why = "the bond carries frames by its other interfaces alone" if carries else _BEYOND
        said = {
            "missing": ("uplink-missing", "is gone from the node", f"`ip link`, `dmesg`: look for the NIC; {_SEE}"),
            "down": ("uplink-down", "is down", f"`ip link set {link} up`"),
            "without a link": (
                "uplink-without-link",
                "has no link: cable, transceiver or the port at the other end",
                f"`ethtool {link}`",
            ),
        }
        name, what, remedy = said[state]
        message = f"uplink {link} of provider network {spec.name} at the pod's bridge {what}"
        yield sight.found(name, message, remedy, why, "warning" if carries else "error")


def _held(sight: AttachmentSight, spec: SeenSpec) -> Iterator[Finding]:
    if spec.problem:
        is_gateway = spec.kind == _GATEWAY
        name = "gateway-not-held" if is_gateway else "provider-network-not-ready"
        message = f"the node does not have {spec.kind.replace('-', ' ')} {spec.name} of the pod's bridge: {spec.problem}"
        why = "the pod's packets to other networks reach no next hop here" if is_gateway else _BEYOND
        yield sight.found(name, message, _SEE, why)
    for each in spec.concerns:
        yield sight.found("gateway-lacks", each, "`userspace-cni gateway status` tries it", severity="warning")
