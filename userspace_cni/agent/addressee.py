"""Checks that a call is for this agent.

A call finds its agent by the socket alone, whose path is from the caller's environment or written into the binary. An incomplete
environment, or a binary that was not installed again, leads to a wrong agent. So a call names the directories of its records and
locks, and an agent of others must refuse it: it would attach the interface to a switch that the caller does not know, and the
caller's DEL would look for the record in another directory.
"""

from __future__ import annotations

from collections.abc import Mapping

from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.base.whereabouts import PREFIX
from userspace_cni.cni.protocol import WrongAgent


def require_addressee(addressee: Mapping[str, str], settings: Settings, root: HostRoot) -> None:
    """Raise WrongAgent unless the caller's settings `addressee` equal ours, links followed as the host follows them."""
    for key, theirs in addressee.items():
        ours = getattr(settings, key)
        if theirs != ours and (not theirs.startswith("/") or root.resolve(theirs) != root.resolve(ours)):
            raise WrongAgent(
                f"the call is not for the agent on {settings.agent_socket}: its {key} is {ours}, the call's is {theirs}",
                f"unset {PREFIX}{key.upper()} in the caller's environment, or set {PREFIX}RUN_DIR or {PREFIX}SOCKET for the "
                "agent that is meant; after a change of this node's settings run `userspace-cni install` again",
            )
