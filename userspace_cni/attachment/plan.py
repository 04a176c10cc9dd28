"""Says what an attachment consists of, and derives every name in it. Pure: no files, sockets, clock or randomness.

An attachment is a tuple of steps, applied in the order of the tuple and undone in reverse. `socket_plan` plans vhost-user
interfaces, `link_plan` kernel links.
"""

from __future__ import annotations

from userspace_cni.attachment.consumer import Consumer
from userspace_cni.attachment.facts import Facts, LinkFacts, SocketFacts
from userspace_cni.attachment.neighbours import require_apart
from userspace_cni.attachment.planned import Attachment
from userspace_cni.cni.options import Options
from userspace_cni.cni.request import Request
from userspace_cni.cni.result import ResultAddresses


def plan(request: Request, options: Options, consumer: Consumer, facts: Facts, addresses: ResultAddresses) -> Attachment:
    """Plan everything that has to become true for this ADD, with every name in it. `consumer`: the one that `options` names.

    Raises BadEnvironment or InvalidConfig for names that cannot be part of a socket path, for impossible addresses and routes,
    for a port that would impersonate a link of the node or another namespace's pod, or change a link, for a device plugin's
    allocation and a claim's device that contradict the configuration; UnsupportedField for what the kind of interface cannot do.
    """
    joined = facts.joined if isinstance(facts, SocketFacts) else None
    if joined:
        from userspace_cni.attachment.joined_plan import as_claimed, require_same, with_joined

        require_same(options, facts, joined)
        options = as_claimed(options, joined)
    attachment = _plan(request, options, consumer, facts, addresses)
    if attachment.port:
        require_apart(attachment.port, addresses, facts)
    return with_joined(attachment, joined) if joined else attachment


def _plan(request: Request, options: Options, consumer: Consumer, facts: Facts, addresses: ResultAddresses) -> Attachment:
    if isinstance(facts, LinkFacts):
        from userspace_cni.attachment.link_plan import plan_link

        return plan_link(request, options, consumer, facts, addresses)
    from userspace_cni.attachment.socket_plan import plan_socket

    assert isinstance(facts, SocketFacts)  # noqa: S101 - there are two kinds
    return plan_socket(request, options, consumer, facts, addresses)
