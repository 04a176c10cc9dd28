"""Transactions of an OVSDB database written by hand: the least that they cost, also where a benchmark must not spend more."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any, Self


class RawDatabase:
    """A connection with the database at `remote` (unix:PATH) that does nothing but transactions."""

    def __init__(self, remote: str, schema: str = "OVN_Northbound") -> None:
        self._schema = schema
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(remote.removeprefix("unix:"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def transact(self, *operations: Mapping[str, Any]) -> list[Any]:
        """The results; AssertionError for an error."""
        self._socket.sendall(json.dumps({"method": "transact", "params": [self._schema, *operations], "id": 0}).encode())
        pieces: list[bytes] = []
        while True:  # an answer ends with a brace, and has its id last
            pieces.append(self._socket.recv(1 << 20))
            if pieces[-1].endswith(b"}") and (answer := _decoded(b"".join(pieces))) is not None:
                break
        assert answer["error"] is None, answer["error"]
        assert not any(isinstance(each, dict) and each.get("error") for each in answer["result"]), answer
        found: list[Any] = answer["result"]
        return found

    def select(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """These columns of all rows."""
        [found] = self.transact({"op": "select", "table": table, "where": [], "columns": list(columns)})
        rows: list[dict[str, Any]] = found["rows"]
        return rows


def _decoded(text: bytes) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    return found
