"""What the administrator has said of logical ports. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from userspace_cni.base.logical_ports import NODE_SWITCH
from userspace_cni.ovn.cluster_pods import LogicalNetwork


@dataclass(frozen=True)
class PortRules:
    """`naming`: of logical ports; `default`: the cluster's default network, None where it is none of OVN's; `may_have`: whether
    pods of a namespace may have ports of a switch; `may_send`: whether these may send from any address; `adopts`: rows of our
    names without a mark become ours; `most`: ports of one pod; `kubeovn_read`: kube-ovn's annotations say limits, too."""

    naming: str
    default: LogicalNetwork | None
    may_have: Callable[[str, str], bool] = lambda _namespace, switch: switch == NODE_SWITCH
    may_send: Callable[[str, str], bool] = lambda _namespace, _switch: False
    adopts: bool = False
    most: int = 8
    kubeovn_read: bool = False
