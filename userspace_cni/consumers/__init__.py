"""Who uses an interface: what differs between a pod's application and a VM's QEMU, and the rules about each.

Another kind of consumer is a module here, and a row in CONSUMERS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from userspace_cni.attachment.consumer import Consumer
from userspace_cni.consumers.kubevirt.consumer import KubevirtConsumer
from userspace_cni.consumers.pod import PodConsumer

CONSUMERS: Final[Mapping[str, Consumer]] = {"pod": PodConsumer(), "kubevirt": KubevirtConsumer()}
"""By the name that a network's key `consumer` has for each."""
