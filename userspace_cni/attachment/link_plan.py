"""Says what an attachment with a kernel link consists of, and derives every name in it. Pure."""

from __future__ import annotations

from userspace_cni.attachment.facts import LinkFacts
from userspace_cni.attachment.planned import Attachment
from userspace_cni.cni.options import Options
from userspace_cni.cni.request import Request
from userspace_cni.cni.result import Addresses


def plan_link(request: Request, options: Options, facts: LinkFacts, addresses: Addresses) -> Attachment:
    """Plan a veth whose host end is a port of the switch."""
    raise NotImplementedError
