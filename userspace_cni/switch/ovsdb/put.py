"""What every command that writes the rows of a step does, whatever they are."""

from __future__ import annotations

from typing import Final, Generic, Literal, TypeVar

from userspace_cni.attachment.steps import NodeBridge, OvsPort, UplinkPort
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command, Refused
from userspace_cni.ovsdb.replica import Watch
from userspace_cni.switch.ovsdb.database import SwitchSession
from userspace_cni.switch.ovsdb.rounds import Round

DUPLICATES: Final = 10
"""How often another session may take the same name at the same moment, before the server's refusal becomes an error."""
S = TypeVar("S", NodeBridge, OvsPort, UplinkPort)


class Put(Command[SwitchSession], Generic[S]):
    """Writes the rows of the step, with these marks. `done`: ovs-vswitchd has gone through them; None unless it is to say so."""

    done: Watch[Literal[True]] | None

    def __init__(self, session: SwitchSession, step: S, marks: dict[str, str]) -> None:
        super().__init__(session)
        self.target = step.name
        self._step: S = step
        self._marks = marks
        self._round: Round | None = None
        self._duplicates = 0

    def post_commit(self, txn: Draft) -> None:  # noqa: ARG002 - the interface
        """Watch for ovs-vswitchd's answer: it can come now that the rows are there."""
        self.done = self._round.watch(self.api) if self._round else None

    def should_retry(self, refused: Refused) -> bool:
        """Whether another session has just taken a name: perhaps it has made what we need, or it shows whose it is."""
        self._duplicates += 1
        is_duplicate = refused.error == "constraint violation" and "identical values" in refused.details
        return is_duplicate and self._duplicates < DUPLICATES
