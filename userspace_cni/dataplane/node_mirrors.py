"""The mirrors of the node's settings, kept on their bridges. It must never touch a mirror of another owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from userspace_cni.dataplane.flow_renewal import FlowRenewal

if TYPE_CHECKING:
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.base.mirrors import NodeMirror
    from userspace_cni.dataplane.ovsdb.client import Client
    from userspace_cni.dataplane.ovsdb.session import Session
    from userspace_cni.dataplane.vswitchd import Daemon


class NodeMirrors:
    """Brings a switch to a list of mirrors; needs a resident client. `store`: the id of our state directory."""

    def __init__(self, client: Client, daemon: Daemon, store: Callable[[], str]) -> None:
        self._client = client
        self._flows = FlowRenewal(daemon)
        self._store = store

    def keep(self, wanted: Sequence[NodeMirror], links: frozenset[str], deadline: Deadline) -> Mapping[NodeMirror, str]:
        """Make these mirrors, remove those of ours that are not among them; why some cannot be made. Raises Unavailable.

        `links`: which of the outputs are kernel links where the switch is.
        """
        from userspace_cni.dataplane.ovsdb.node_mirrors import KeepMirrors, has_any

        def keep(session: Session) -> Mapping[NodeMirror, str]:
            if not wanted and not session.look(lambda session: has_any(session, self._store())):
                return {}
            command = KeepMirrors(session, wanted, self._store(), links)
            session.transact([command], deadline)
            if command.flows_after is not None:
                self._flows.after(session, command.flows_after, deadline)
            return command.problems

        return self._client.use(keep, frozenset(), "keeping the node's mirrors", deadline)
