"""The names of Services that pods of Kubernetes' cases ask for."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest

from tests.lab.judge.cluster_dns import AAAA, A, Question, answer, refuse

SERVICES: dict[str, dict[str, Any]] = {
    "web": {"spec": {"type": "ClusterIP", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"]}},
    "alias": {"spec": {"type": "ExternalName", "externalName": "web.blue.svc.cluster.local"}},
    "elsewhere": {"spec": {"type": "ExternalName", "externalName": "www.example.com"}},
    "none": {"spec": {"type": "ClusterIP", "clusterIP": "None"}},
}
ENDPOINTS = {"none": {"subsets": [{"addresses": [{"ip": "10.244.0.9"}], "notReadyAddresses": [{"ip": "10.244.0.10"}]}]}}


def look(path: str) -> dict[str, Any]:
    *_, namespace, kind, name = path.split("/")
    return {"services": SERVICES, "endpoints": ENDPOINTS}[kind].get(name, {}) if namespace == "blue" else {}


def asked(name: str, kind: int = A) -> bytes:
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
    return struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


@pytest.mark.parametrize(
    ("name", "kind", "code", "count", "address"),
    [
        ("web.blue.svc.cluster.local", A, 0, 1, "10.96.0.7"),
        ("WEB.blue.svc.cluster.local", AAAA, 0, 1, "fd00::7"),
        ("none.blue.svc.cluster.local", A, 0, 1, "10.244.0.9"),
        ("none.blue.svc.cluster.local", AAAA, 0, 0, ""),
        ("alias.blue.svc.cluster.local", A, 0, 2, "10.96.0.7"),
        ("elsewhere.blue.svc.cluster.local", A, 0, 1, ""),
        ("web.red.svc.cluster.local", A, 3, 0, ""),
        ("web.blue.svc.cluster.local.blue.svc.cluster.local", A, 3, 0, ""),
        ("web", A, 3, 0, ""),
    ],
)
def test_answers(name: str, kind: int, code: int, count: int, address: str) -> None:
    """A Service's own addresses, of the family that is asked for; those of the ready endpoints of one without; the name that it
    stands for, and what that has; and no such name."""
    told = answer(Question.read(asked(name, kind)), look)
    number, flags, _, answers, *_ = struct.unpack_from("!6H", told)
    assert (number, flags & 0xF, answers) == (7, code, count)
    assert told[12:].startswith(asked(name, kind)[12:])
    if address:
        assert told.endswith(socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address))


def test_what_is_not_known() -> None:
    """Where the API server did not answer, the name is not called absent."""
    told = refuse(Question.read(asked("web.blue.svc.cluster.local")))
    assert struct.unpack_from("!6H", told)[1] & 0xF == 2
    assert told[12:] == asked("web.blue.svc.cluster.local")[12:]


@pytest.mark.parametrize("message", [b"", b"\0" * 12, asked("web")[:-6], struct.pack("!6H", 7, 0, 1, 0, 0, 0) + b"\x05ab"])
def test_what_is_no_question(message: bytes) -> None:
    """It raises what the server catches."""
    with pytest.raises((ValueError, IndexError, struct.error)):
        Question.read(message)
