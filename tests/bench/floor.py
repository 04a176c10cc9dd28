"""The least that a port costs: transactions written by hand, over a connection that is open already.

What ovsdb-server and ovs-vswitchd take for a port, and nothing of any library: JSON-RPC (RFC 7047) over a socket, a monitor of
the few columns in which the answer comes. Every other way to make a port is compared with this one.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TIMEOUT_S = 60.0
_MONITORED = {
    "Interface": {"columns": ["name", "ofport", "external_ids"]},
    "Open_vSwitch": {"columns": ["cur_cfg"]},
}
_NEXT = (
    {"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["next_cfg", "+=", 1]]},
    {"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["next_cfg"]},
)
"""Ask ovs-vswitchd to report when it has processed what was written so far.

The answer's second result has the number to wait for.
"""


class Floor:
    """One connection with the database at `ovsdb` (unix:PATH), for client ports on `bridge` with sockets in `directory`."""

    def __init__(self, ovsdb: str, bridge: str, directory: Path) -> None:
        self._bridge = bridge
        self._directory = directory
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.connect(ovsdb.removeprefix("unix:"))
        self._text = ""
        self._last = 0
        self._open: set[str] = set()
        self._installed: set[str] = set()
        self._done = 0
        self._ports: dict[str, str] = {}
        self._await_answer(self._ask("monitor", ["Open_vSwitch", None, _MONITORED]))

    def close(self) -> None:
        self._socket.close()

    def add(self, names: Iterable[str]) -> float:
        """These ports in one transaction, until ovs-vswitchd has opened the last; wall seconds."""
        return self._add(list(names), {})

    def add_logical(self, name: str) -> tuple[float, float]:
        """A port that is OVN's logical port of this name; wall seconds until it is open, and from then until OVN has it."""
        self._installed.discard(name)
        opened, then = self._add([name], {"iface-id": name}), time.perf_counter()
        while name not in self._installed:
            self._take(self._message())
        return opened, time.perf_counter() - then

    def _add(self, wanted: list[str], ids: dict[str, str]) -> float:
        operations: list[dict[str, Any]] = []
        for number, name in enumerate(wanted):
            options = {"vhost-server-path": f"{self._directory}/{name}"}
            row = {"name": name, "type": "dpdkvhostuserclient", "options": _map(options), "external_ids": _map(ids)}
            port = {"name": name, "interfaces": ["named-uuid", f"i{number}"]}
            operations += [
                {"op": "insert", "table": "Port", "row": port, "uuid-name": f"p{number}"},
                {"op": "insert", "table": "Interface", "row": row, "uuid-name": f"i{number}"},
            ]
        operations.append(self._mutation("insert", [["named-uuid", f"p{number}"] for number in range(len(wanted))]))
        self._open.difference_update(wanted)
        began = time.perf_counter()
        results = self._transact(operations)
        while not self._open.issuperset(wanted):
            self._take(self._message())
        taken = time.perf_counter() - began
        self._ports.update({name: result["uuid"][1] for name, result in zip(wanted, results[::2], strict=False)})
        return taken

    def delete(self, names: Iterable[str]) -> float:
        """Delete these ports in one transaction, and wait until ovs-vswitchd has closed them; wall seconds."""
        gone = [["uuid", self._ports.pop(name)] for name in names]
        began = time.perf_counter()
        self._finish([self._mutation("delete", gone)])
        return time.perf_counter() - began

    def settle(self) -> None:
        """Wait until ovs-vswitchd has done the work of earlier calls: a DEL does not wait for it, and the next call would."""
        self._finish([])

    def _finish(self, operations: list[dict[str, Any]]) -> None:
        number = self._transact([*operations, *_NEXT])[-1]["rows"][0]["next_cfg"]
        while self._done < number:
            self._take(self._message())

    def _mutation(self, mutator: str, ports: list[list[str]]) -> dict[str, Any]:
        mutations = [["ports", mutator, ["set", ports]]]
        return {"op": "mutate", "table": "Bridge", "where": [["name", "==", self._bridge]], "mutations": mutations}

    def _transact(self, operations: list[dict[str, Any]]) -> list[Any]:
        results: list[Any] = self._await_answer(self._ask("transact", ["Open_vSwitch", *operations]))
        assert all(isinstance(result, dict) and "error" not in result for result in results), results
        return results

    def _ask(self, method: str, params: list[Any]) -> int:
        self._last += 1
        self._send({"id": self._last, "method": method, "params": params})
        return self._last

    def _await_answer(self, number: int) -> Any:
        """Wait for the answer to a request; updates of the monitor that arrive before it are applied."""
        while (message := self._message()).get("id") != number or "method" in message:
            self._take(message)
        assert message["error"] is None, message
        if isinstance(message["result"], dict):  # of the monitor
            self._see(message["result"])
        return message["result"]

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("method") == "update":
            self._see(message["params"][1])
        elif message.get("method") == "echo":
            self._send({"id": message["id"], "result": message["params"], "error": None})

    def _see(self, tables: dict[str, Any]) -> None:
        rows = [change.get("new", {}) for change in tables.get("Interface", {}).values()]
        self._open.update(row["name"] for row in rows if isinstance(row.get("ofport"), int) and row["ofport"] > 0)
        self._installed.update(row["name"] for row in rows if row and ["ovn-installed", "true"] in row["external_ids"][1])
        for change in tables.get("Open_vSwitch", {}).values():
            self._done = change["new"]["cur_cfg"]

    def _send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode())

    def _message(self) -> dict[str, Any]:
        decoder = json.JSONDecoder()
        while True:
            self._text = self._text.lstrip()
            if self._text:
                try:
                    message, end = decoder.raw_decode(self._text)
                except ValueError:
                    pass  # the rest is to come
                else:
                    self._text = self._text[end:]
                    assert isinstance(message, dict), message
                    return message
            data = self._socket.recv(1 << 20)
            assert data, "ovsdb-server closed the connection"
            self._text += data.decode()


def _map(pairs: dict[str, str]) -> list[Any]:
    return ["map", [list(each) for each in pairs.items()]]
