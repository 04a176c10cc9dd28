"""What ovs-vswitchd has counted at our ports, asked at the moment of the question.

It is asked itself, by OpenFlow, a request per bridge: 400 ports take it 1 ms, and are 45 kB. OVSDB has the same numbers, up to
five seconds old, beside dozens of others that were not asked for (Interface.statistics): there 400 ports cost ovsdb-server 70 ms
and the reader 50, and no session monitors them, for the agent would be busy with that all day. So OVSDB is asked only where
ovs-vswitchd cannot be: one request on a connection of its own (`transact` with a `select`: RFC 7047, 4.1.3 and 5.2.2).

It must never wait longer than its deadline, and leaves nothing open.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from userspace_cni.attachment.steps import OWNER
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused, Unavailable
from userspace_cni.dataplane.json_parser import Parser
from userspace_cni.dataplane.openflow import messages
from userspace_cni.dataplane.openflow.management import Management

_ID: Final = 1
_OURS: Final = {
    "op": "select",
    "table": "Interface",
    "where": [["external_ids", "includes", ["map", [["owner", OWNER]]]]],
    "columns": ["name", "external_ids", "statistics"],
}
_REQUEST: Final = json.dumps({"id": _ID, "method": "transact", "params": ["Open_vSwitch", _OURS]}).encode()
_TCP: Final = re.compile(r"(?:\[([^]]+)\]|([^:\[\]]+)):([0-9]{1,5})")
_CHUNK: Final = 1 << 18


@dataclass(frozen=True)
class Counters:
    """One of our ports. `marks`: its external_ids; `statistics`: by the names that Interface.statistics has for them in
    ovs-vswitchd.conf.db(5) (rx is what the switch received); a counter that this kind of port does not have is absent."""

    name: str
    marks: Mapping[str, str]
    statistics: Mapping[str, int]


def ask_bridge(path: str, ports: Mapping[int, tuple[str, Mapping[str, str]]], deadline: Deadline) -> list[Counters]:
    """The counters of these ports of the bridge whose management socket is `path`: names and marks by OpenFlow number.

    A port that is gone by now is left out. Raises Unavailable when there is no answer by the deadline, SwitchRefused by a bridge
    that speaks no version of OpenFlow in which its counters come.
    """
    found: list[Counters] = []
    with Management(path, deadline, messages.COUNTED_VERSIONS) as bridge:
        xid = next(bridge.xids)
        bridge.send(messages.ask_counted(bridge.version, xid), deadline)
        last = False
        while not last:
            came = bridge.receive(deadline)
            if came.kind == messages.ERROR:
                raise messages.refusal(came, f"counters at {path}")
            if came.xid != xid:
                continue
            counted, last = messages.counted(came)
            found += [Counters(*ports[number], statistics) for number, statistics in counted.items() if number in ports]
    return found


def ask(ovsdb: str, deadline: Deadline) -> list[Counters]:
    """The counters of every interface with our owner mark, test ports and those of other installations among them.

    `ovsdb`: `unix:PATH` or `tcp:HOST:PORT`. Raises Unavailable when it does not answer by the deadline, SwitchRefused with what
    it says instead of an answer.
    """
    what = f"OVSDB at {ovsdb}"
    try:
        with closing(_connected(ovsdb, deadline, what)) as connection:
            connection.sendall(_REQUEST)
            answer = _answer(connection, deadline, what)
    except TimeoutError as error:
        raise Unavailable(f"{what}: no answer in time", "is ovsdb-server stopped or overloaded?") from error
    except OSError as error:
        raise Unavailable(f"{what}: {error.strerror or error}", "is ovsdb-server running?") from error
    try:
        return _read(answer)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SwitchRefused(f"{what}: reading counters: {str(answer)[:200]}", "is it the database of ovs-vswitchd?") from error


def _connected(ovsdb: str, deadline: Deadline, what: str) -> socket.socket:
    kind, _, place = ovsdb.partition(":")
    if kind == "unix":
        return _connected_unix(Path(place), deadline, what)
    found = _TCP.fullmatch(place)
    if kind != "tcp" or found is None:
        raise Unavailable(f"{what}: neither unix:PATH nor tcp:HOST:PORT", "setting ovsdb")
    return socket.create_connection((found[1] or found[2], int(found[3])), deadline.require(what))


def _connected_unix(path: Path, deadline: Deadline, what: str) -> socket.socket:
    """However long the path is: that of a socket has room for 107 bytes."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(deadline.require(what))
        directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
        try:
            connection.connect(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
    except BaseException:
        connection.close()
        raise
    return connection


def _answer(connection: socket.socket, deadline: Deadline, what: str) -> Any:
    """The message with our id; others (a server's echo) are not for somebody who is about to leave."""
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    parser = Parser()
    while True:
        connection.settimeout(deadline.require(what))
        data = connection.recv(_CHUNK)
        if not data:
            raise Unavailable(f"{what}: it closed the connection", "see the log of ovsdb-server")
        text = decode(data)
        while text:
            text = text[parser.feed(text) :]
            if parser.is_done():
                message = parser.finish()
                if not isinstance(message, dict) or message.get("id") == _ID:
                    return message
                parser = Parser()


def _read(answer: Any) -> list[Counters]:
    rows = answer["result"][0]["rows"]
    return [Counters(row["name"], _map(row["external_ids"]), _map(row["statistics"])) for row in rows]


def _map(value: Any) -> dict[str, Any]:
    kind, pairs = value
    if kind != "map":
        raise ValueError(kind)
    return {key: item for key, item in pairs}  # noqa: C416 - dict() would take pairs that are none
