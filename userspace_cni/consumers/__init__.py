"""The consumers of interfaces: what differs between a pod's application and a VM's QEMU, and the rules about each.

To add a kind of consumer: a module here, and a row in CONSUMERS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from userspace_cni.attachment.consumer import Consumer
from userspace_cni.consumers.kubevirt.kubevirt_consumer import KubevirtConsumer
from userspace_cni.consumers.pod import PodConsumer

CONSUMERS: Final[Mapping[str, Consumer]] = {"pod": PodConsumer(), "kubevirt": KubevirtConsumer()}
"""By their names in a network's key `consumer`."""
