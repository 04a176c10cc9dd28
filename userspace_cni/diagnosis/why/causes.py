"""All judges of an attachment, and the order of what they find: a cause hides the consequences that it explains. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from userspace_cni.attachment.drift import sentence
from userspace_cni.base.findings import SEVERITIES, Finding
from userspace_cni.diagnosis.why.absent_causes import judge_refusals, judge_unknown, judge_whereabouts
from userspace_cni.diagnosis.why.attachment_sight import AbsentSight, AttachmentSight, Findings
from userspace_cni.diagnosis.why.bridge_causes import OF_BRIDGES
from userspace_cni.diagnosis.why.definition_causes import judge_annotations, judge_definition
from userspace_cni.diagnosis.why.link_causes import judge_guard, judge_link, judge_shaper
from userspace_cni.diagnosis.why.node_causes import judge_agent, judge_store, judge_switch
from userspace_cni.diagnosis.why.ovn_causes import judge_ovn
from userspace_cni.diagnosis.why.port_causes import judge_port
from userspace_cni.diagnosis.why.record_causes import judge_record
from userspace_cni.diagnosis.why.route_causes import judge_routes
from userspace_cni.diagnosis.why.socket_causes import judge_application, judge_directory, judge_hugepages, judge_socket
from userspace_cni.diagnosis.why.traffic_causes import OF_TRAFFIC
from userspace_cni.diagnosis.why.uplink_causes import judge_specs

_WORDED: Final = frozenset({"", "port", "directory", "pod-mount", "socket-file", "placed-socket", "guard", "link", "shaper"})
"""Kinds of steps whose drifts a judge words; others are told as they are."""


def judge_rest(sight: AttachmentSight) -> Findings:
    """Differences from what ADD made that no other judge words, as `check` tells them."""
    for kind, drifts in sight.drifts.items():
        if kind not in _WORDED:
            for each in drifts:
                yield sight.found(f"{kind}-differs", sentence(each), each.details)


JUDGES: Final[tuple[Callable[[AttachmentSight], Findings], ...]] = (
    judge_record,
    judge_switch,
    judge_port,
    *OF_BRIDGES,
    *OF_TRAFFIC,
    judge_directory,
    judge_socket,
    judge_hugepages,
    judge_application,
    judge_link,
    judge_guard,
    judge_shaper,
    judge_ovn,
    judge_specs,
    judge_routes,
    judge_annotations,
    judge_definition,
    judge_rest,
    judge_store,
    judge_agent,
)
"""In the order in which their findings are told, among those that are equally grave."""
OF_ABSENT: Final[tuple[Callable[[AbsentSight], Findings], ...]] = (
    judge_refusals,
    judge_whereabouts,
    judge_agent,
    judge_switch,
    judge_store,
    judge_unknown,
)
"""The same for a pod without an attachment."""

_OF_PORT: Final = (
    "port-",
    "vlan-",
    "mtu-",
    "limit-",
    "mirror-",
    "logical-",
    "link-",
    "application-",
    "switch-not-",
    "socket-missing",
    "flows-",
    "mac-elsewhere",
    "queues-",
)
_OF_SOCKET: Final = ("application-", "switch-not-", "hugepages-")
_BY_LINK: Final = ("address-", "route-", "gateway-silent", "pod-route", "rp-filter", "limit-missing")
_OF_LINK: Final = ("host-end-", "pod-end-", "link-", "guard-", "namespace-gone", "checksum-offload", *_BY_LINK)
EXPLAINS: Final[Mapping[str, tuple[str, ...]]] = {
    "record-unfinished": (*_OF_PORT, "bridge-", "directory-", "mount-", "socket-", "hugepages-", *_OF_LINK),
    "record-of-another-boot": (*_OF_PORT, "bridge-", "directory-", "mount-", "socket-", "hugepages-", *_OF_LINK),
    "del-spooled": (*_OF_PORT, *_OF_SOCKET, *_OF_LINK),
    "vswitchd-dead": (*_OF_PORT, "gateway-silent", "socket-dead", "switch-unfit", "agent-not-ready"),
    "vswitchd-stopped": (*_OF_PORT, "gateway-silent", "port-refused", "switch-unfit", "agent-not-ready"),
    "vswitchd-silent": (*_OF_PORT, "gateway-silent", "port-refused", "switch-unfit", "agent-not-ready"),
    "ovsdb-away": ("agent-not-ready",),
    "switch-unfit": ("agent-not-ready", "port-refused"),
    "store-full": ("agent-not-ready", "agent-dead", "agent-absent"),
    "store-unwritable": ("agent-not-ready",),
    "bridge-missing": (*_OF_PORT, "gateway-silent", *_OF_SOCKET),
    "bridge-datapath": (*_OF_PORT, *_OF_SOCKET),
    "port-missing": (*_OF_PORT, "gateway-silent", *_OF_SOCKET),
    "port-elsewhere": ("port-changed", "vlan-alone", "mtu-unlike"),
    "port-refused": ("socket-", "gateway-silent", "mtu-", "link-", *_OF_SOCKET),
    "vlan-changed": ("vlan-alone", "mtu-unlike", "gateway-silent"),
    "vlan-alone": ("gateway-silent",),
    "gateway-away": ("gateway-silent",),
    "flows-none": ("gateway-silent",),
    "flows-drop": ("gateway-silent",),
    "mtu-changed": ("mtu-unlike", "mtu-exceeded"),
    "duplicate-mac": ("mac-elsewhere",),
    "controller-away": ("flows-none",),
    "mirror-output-taken": ("flows-", "mirror-changed"),
    "port-down": ("flows-", "gateway-silent"),
    "port-no-receive": ("flows-", "gateway-silent"),
    "port-no-forward": ("gateway-silent",),
    "port-spanning-tree": ("flows-", "gateway-silent"),
    "directory-missing": ("mount-", "socket-", *_OF_SOCKET),
    "mount-missing": _OF_SOCKET,
    "mount-changed": _OF_SOCKET,
    "socket-dead": _OF_SOCKET,
    "socket-occupied": _OF_SOCKET,
    "socket-missing": _OF_SOCKET,
    "socket-unseen": _OF_SOCKET,
    "directory-unseen": ("application-", "hugepages-"),
    "application-other-path": ("application-never", "application-ended", "hugepages-"),
    "application-wrong-role": ("application-never", "application-ended", "hugepages-"),
    "hugepages-missing": ("application-never",),
    "namespace-gone": ("pod-end-", "host-end-", "link-", "port-", "guard-", *_BY_LINK),
    "host-end-missing": ("link-replaced", "port-", "pod-end-", "guard-", *_BY_LINK),
    "host-end-renamed": ("link-replaced", "port-", "guard-", "gateway-silent"),
    "host-end-foreign": ("link-replaced", "port-", "gateway-silent"),
    "host-end-down": ("port-", "gateway-silent"),
    "pod-end-moved": ("link-", *_BY_LINK),
    "pod-end-renamed": ("link-", "route-missing", "limit-missing"),
    "pod-end-down": ("route-", "address-", "gateway-silent", "pod-route"),
    "address-missing": ("route-missing", "gateway-silent", "pod-route"),
    "uplink-missing": ("gateway-silent", "provider-network-not-ready", "gateway-not-held"),
    "uplink-down": ("gateway-silent", "gateway-lacks"),
    "uplink-without-link": ("gateway-silent", "gateway-lacks"),
    "gateway-not-held": ("gateway-silent", "gateway-lacks"),
    "ovn-controller-dead": ("logical-port-",),
    "ovn-southbound-away": ("logical-port-",),
    "ovn-chassis-unset": ("logical-port-", "ovn-controller-dead", "ovn-southbound-away"),
    "ovn-bridge-missing": ("logical-port-",),
    "ovn-bridge-other": ("logical-port-",),
    "agent-dead": ("never-called",),
    "agent-absent": ("never-called",),
}
"""Which findings a cause explains, by how their names begin: they are told as its consequences only."""

_BY_AGENT: Final = (
    *("bridge-missing", "directory-changed", "guard-", "host-end-missing", "host-end-down", "limit-missing", "mount-missing"),
    *("port-missing", "port-refused", "socket-dead", "socket-missing"),
)
"""What a running agent makes again by itself, by how the names begin: without one it stays as it is."""
_AGENT_FIRST: Final = "start the agent first, which makes again what is lost"


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with an attachment, the cause first; what follows from that; what was looked at and is well, in words; and
    each question that could not be asked, with the reason."""

    name: str
    causes: tuple[Finding, ...] = ()
    consequences: tuple[Finding, ...] = ()
    well: tuple[str, ...] = ()
    unasked: tuple[tuple[str, str], ...] = ()

    @property
    def is_wrong(self) -> bool:
        return any(each.severity in ("error", "warning") for each in self.causes)


def diagnose(sight: AttachmentSight) -> Diagnosis:
    """What all judges find of an attachment."""
    return arrange(sight.name, [found for judge in JUDGES for found in judge(sight)], sight.unasked)


def diagnose_absence(sight: AbsentSight) -> Diagnosis:
    """Why a pod has no attachment here."""
    return arrange(sight.name, [found for judge in OF_ABSENT for found in judge(sight)], sight.unasked)


def arrange(name: str, findings: Iterable[Finding], unasked: Iterable[tuple[str, str]] = ()) -> Diagnosis:
    """The findings in the order of causes."""
    every = list(dict.fromkeys(findings))
    wrong = [each for each in every if each.severity != "good"]
    causes = [each for each in wrong if not _is_explained(each.name, wrong)]
    well = [each for each in every if each.severity == "good" and not _is_explained(f"{each.name}-", causes)]
    return Diagnosis(
        name,
        _with_agent(sorted(causes, key=lambda each: SEVERITIES.index(each.severity))),
        tuple(each for each in wrong if each not in causes),
        tuple(each.message for each in well),
        tuple(dict.fromkeys(unasked)),
    )


def _with_agent(causes: Sequence[Finding]) -> tuple[Finding, ...]:
    """The causes; where the first one stays because no agent runs, its remedy begins with that."""
    away = any(each.name in ("agent-dead", "agent-absent") and each.severity == "error" for each in causes)
    if not away or not causes[0].name.startswith(_BY_AGENT):
        return tuple(causes)
    return (replace(causes[0], remedy=f"{_AGENT_FIRST}; {causes[0].remedy}"), *causes[1:])


def _is_explained(name: str, among: Iterable[Finding]) -> bool:
    others = (other.name for other in among if other.name != name)
    return any(name.startswith(begins) for other in others for begins in EXPLAINS.get(other, ()))
