"""Commands that are written for transactions of ovs.db.idl, as ovsdbapp's are, within a group's transaction.

They change rows of the replica and may fail half way; a group's commands may not, and see nothing of each other. So they run in a
Trial, a transaction that is never sent, and only if all of them succeed what they wrote is added to the Draft as operations.
Within one IdlCommands a command sees what those before it wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import ovs.jsonrpc
from ovs.db import idl as ovs_idl

from userspace_cni.base.errors import RowsRefused, UserspaceError, on_one_line, quote, shorten
from userspace_cni.ovsdb.draft import Draft, Operation
from userspace_cni.ovsdb.groups import Command

S = TypeVar("S")
_SAID_MAX = 400


class IdlCommand(Protocol):
    """What a group needs of ovsdbapp's commands."""

    def run_idl(self, txn: Any) -> None:
        """Change rows, by the transaction."""

    def post_commit(self, txn: Any) -> None:
        """Take the result, when the server has committed it."""


class IdlCommands(Command[S]):
    """Runs the commands in order. `target`: as of Command; those of one target never share a transaction.

    The rows that they read have to be there: the session replicates everything. Raises RowsRefused with a command's own error.
    """

    _trial: Trial

    def __init__(self, session: S, commands: Sequence[IdlCommand], *, target: str) -> None:
        super().__init__(session)
        self.target = target
        self.failed: RowsRefused | None = None
        """What is wrong with a result, though the rows were committed."""
        self._commands = tuple(commands)
        self._first = 0

    def run_idl(self, txn: Draft) -> None:
        """Write all that the commands write, or nothing."""
        trial = Trial(txn)
        try:
            for each in self._commands:
                _run(each.run_idl, trial, each)
        except BaseException:
            trial.abort()
            raise
        else:
            self._first = txn.extend(trial.take())
            self._trial = trial
        finally:
            txn.idl.txn = txn

    def post_commit(self, txn: Draft) -> None:
        """Give the commands their results."""
        trial = self._trial
        trial.done(txn.answers(self._first, trial.count))
        try:
            for each in self._commands:
                _run(each.post_commit, trial, each)
        except RowsRefused as error:
            self.failed = error


class Trial(ovs_idl.Transaction):  # type: ignore[misc]
    """A transaction on a Draft's replica that is never sent. The replica is as before when it was aborted or taken."""

    def __init__(self, draft: Draft) -> None:
        draft.idl.txn = None  # a replica has one transaction at a time
        super().__init__(draft.idl)
        self.idl: Any = draft.idl
        self.count = 0

    def take(self) -> list[Operation]:
        """What was written, as operations."""
        replica, recorder = self.idl, _Recorder(self, self.idl)
        self.idl = recorder
        try:
            self.commit()
        finally:
            self.idl = replica
        if recorder.txn is not None:  # a value that no column can have: commit() has given up half way
            self.abort()
            raise RowsRefused("a command wrote a value of a wrong type", "its log line has the value")
        self.count = len(recorder.operations)
        return recorder.operations

    def done(self, answers: list[Any]) -> None:
        """Take the server's answers to what was taken."""
        if self.count:
            self._process_reply(ovs.jsonrpc.Message.create_reply(answers, self._request_id))


class _Recorder:
    """The connection to which a Trial commits. Its names are those that ovs.db.idl.Transaction.commit uses."""

    lock_name = None  # a Draft asserts the lock

    def __init__(self, trial: Trial, replica: Any) -> None:
        self.txn: Trial | None = trial
        self.state = replica.state
        self._db = replica._db  # noqa: SLF001
        self._session = self
        self._outstanding_txns: dict[Any, Trial] = {}
        self.operations: list[Operation] = []

    def send(self, message: Any) -> int:
        """Keep the operations, which follow the name of the database."""
        self.operations = message.params[1:]
        return 0


def _run(step: Any, trial: Trial, command: object) -> None:
    try:
        step(trial)
    except UserspaceError:
        raise
    except Exception as error:  # whatever ovsdbapp's commands raise: RuntimeError, its own, and those of ovs.db.idl
        said = shorten(on_one_line(str(error) or repr(error)), _SAID_MAX)
        raise RowsRefused(f"{type(command).__name__}: {said}", f"of the command {quote(command)}") from error
