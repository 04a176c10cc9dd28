"""ovsdbapp's API for OVN's northbound database over a session of ours, instead of ovsdbapp's own connection.

ovsdbapp has one connection for each class in a process, that reconnects for ever, and times out with all commands in the message.
Here its commands run in a transaction of our session (`ovsdb/idl_commands`), with a deadline: all of one block in one
transaction. Its traps stay: `may_exist` leaves what exists as it is, `lsp_set_options` replaces all
options, and the names of switches, routers and load balancers are not unique. So what is to be there is written by
`row_writing`; this is for what a person asks for once, and for reading.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final

from ovsdbapp import api
from ovsdbapp.backend.ovs_idl import idlutils
from ovsdbapp.schema.ovn_northbound.impl_idl import OvnNbApiIdlImpl

from userspace_cni.base.deadline import Deadline
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import LOAD_BALANCER, ROUTER, SWITCH
from userspace_cni.ovsdb.idl_commands import IdlCommands

TARGET: Final = "OVN_Northbound"
"""That of ovsdbapp's commands, of which nothing is known: no two callers' share a transaction."""
_INDEXED: Final = (SWITCH, ROUTER, LOAD_BALANCER)


class NorthboundApi(OvnNbApiIdlImpl):  # type: ignore[misc]
    """The API with each command of `OvnNbApiIdlImpl` for the tables of `northbound`, as long as the session lasts.

    Use `with api.transaction() as transaction: transaction.add(…)`, or `api.run(…)`: an error is always raised, whatever
    `check_error` says. `seconds`: what one transaction may take.
    """

    def __init__(self, session: NorthboundSession, *, seconds: float) -> None:
        api.API.__init__(self)  # not the base class's, which keeps the first connection that it gets for the whole process
        self._connection = _Connection(session, seconds)
        with session.held():
            for table in (*_INDEXED, *session.replica.database.unique):
                _keep_index(session, table)

    @property
    def ovsdb_connection(self) -> Any:
        return self._connection

    def create_transaction(self, check_error: bool = False, log_errors: bool = True, **_: Any) -> ApiTransaction:  # noqa: ARG002
        """A transaction on the session, which raises errors of ours."""
        return ApiTransaction(self._connection)

    def run(self, *commands: Any) -> list[Any]:
        """Run the commands in one transaction; returns their results. Raises Unavailable, RowsRefused."""
        transaction = ApiTransaction(self._connection)
        transaction.extend(commands)
        return transaction.commit()


class ApiTransaction(api.Transaction):  # type: ignore[misc]
    """Commands that are committed together when the `with` block ends without an error."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.commands: list[Any] = []

    def add(self, command: Any) -> Any:
        """Add it; returns it."""
        self.commands.append(command)
        return command

    def commit(self) -> list[Any]:
        """Run the commands; returns their results. Raises Unavailable, RowsRefused."""
        session = self._connection.session
        command = IdlCommands(session, self.commands, target=TARGET)
        session.transact([command], Deadline.after(self._connection.timeout))
        if command.failed:
            raise command.failed
        return [each.result for each in self.commands]


class _Connection:
    """A session, by the names that ovsdbapp has for its own connection."""

    is_running: Final = True

    def __init__(self, session: NorthboundSession, seconds: float) -> None:
        self.session = session
        self.timeout = seconds

    @property
    def idl(self) -> Any:
        return self.session.replica

    @property
    def lock(self) -> AbstractContextManager[None]:
        return self.session.held()


def _keep_index(session: NorthboundSession, table: str) -> None:
    """Have rows found by name without looking at each. ovs.db.idl fills an index only with rows that come after it."""
    rows = session.tables[table].rows if table in session.tables else None
    if rows is None or (name := idlutils.index_name("name")) in rows.indexes:
        return
    index = rows.index_create(name)
    index.add_column("name")
    for row in rows.values():
        index.add(row)
