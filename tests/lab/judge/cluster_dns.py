"""Names of Services for the cluster of Kubernetes' cases, as Debian has no CoreDNS: a program with the arguments ADDRESS SOCKET.

It answers A and AAAA over UDP, from what the API server has at the moment of the question: the Service's addresses, those of its
endpoints if it has none, or the name that it is another name of. The cases that run ask for nothing else.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from tests.lab.node.agent import get

DOMAIN: Final = "cluster.local"
PORT: Final = 53
A: Final = 1
CNAME: Final = 5
AAAA: Final = 28
_SUFFIX: Final = f".svc.{DOMAIN}"
_HEADER: Final = struct.Struct("!6H")
_KINDS: Final = {A: 4, AAAA: 6}
_FAILED: Final = 2
_NO_SUCH_NAME: Final = 3
_ANSWER: Final = 0x8580  # an answer, with authority; recursion was desired and is available
_TTL_S: Final = 1
_LONGEST: Final = 512
_ALIASES: Final = 4
Look = Callable[[str], Mapping[str, Any]]
"""A path of the API server -> what is there, {} for nothing."""


@dataclass(frozen=True)
class Question:
    """What is asked: `name` in small letters, without the last dot; `text` is the question as it came."""

    number: int
    name: str
    kind: int
    text: bytes

    @classmethod
    def read(cls, message: bytes) -> Question:
        """Raises ValueError, struct.error and IndexError for what is no question of one name."""
        number, _, questions, *_ = _HEADER.unpack_from(message)
        if questions != 1:
            raise ValueError(f"{questions} questions")
        labels, at = [], _HEADER.size
        while length := message[at]:
            labels.append(message[at + 1 : at + 1 + length].decode("ascii").lower())
            at += 1 + length
        [kind] = struct.unpack_from("!H", message, at + 1)
        return cls(number, ".".join(labels), kind, message[_HEADER.size : at + 5])


def answer(question: Question, look: Look) -> bytes:
    """The message that answers it."""
    records: list[bytes] = []
    name, known = question.name, True
    for _ in range(_ALIASES):
        alias, addresses = find(name, look)
        if alias:
            records.append(_record(name, CNAME, _labels(alias)))
            name = alias
            continue
        known = addresses is not None or bool(records)
        family = _KINDS.get(question.kind)
        found = [address for address in map(ip_address, addresses or ()) if address.version == family]
        records += [_record(name, question.kind, address.packed) for address in found]
        break
    header = _HEADER.pack(question.number, _ANSWER | (0 if known else _NO_SUCH_NAME), 1, len(records), 0, 0)
    return header + question.text + b"".join(records)


def refuse(question: Question) -> bytes:
    """The message that says nothing of the name, because the API server did not."""
    return _HEADER.pack(question.number, _ANSWER | _FAILED, 1, 0, 0, 0) + question.text


def find(name: str, look: Look) -> tuple[str, list[str] | None]:
    """What a name stands for: another name, or addresses; None if there is no such name."""
    service, _, namespace = name.removesuffix(_SUFFIX).partition(".")
    if not name.endswith(_SUFFIX) or not namespace or "." in namespace:
        return "", None
    spec = look(f"/api/v1/namespaces/{namespace}/services/{service}").get("spec")
    if spec is None:
        return "", None
    if spec["type"] == "ExternalName":
        return str(spec["externalName"]).rstrip(".").lower(), []
    if spec["clusterIP"] != "None":
        return "", list(spec.get("clusterIPs") or [spec["clusterIP"]])
    endpoints = look(f"/api/v1/namespaces/{namespace}/endpoints/{service}")
    return "", [each["ip"] for subset in endpoints.get("subsets") or () for each in subset.get("addresses", ())]


def _record(name: str, kind: int, data: bytes) -> bytes:
    return _labels(name) + struct.pack("!HHIH", kind, 1, _TTL_S, len(data)) + data


def _labels(name: str) -> bytes:
    return b"".join(bytes([len(each)]) + each.encode("ascii") for each in name.split(".")) + b"\0"


def _questions(listening: socket.socket) -> Iterator[tuple[Question, Any]]:
    while True:
        message, asker = listening.recvfrom(_LONGEST)
        try:
            yield Question.read(message), asker
        except (ValueError, IndexError, struct.error) as error:
            print(f"{asker}: no question: {error}", flush=True)


def main(address: str, proxy: str) -> None:
    """Answer at this address, with what is at the socket of a `kubectl proxy`."""

    def look(path: str) -> Mapping[str, Any]:
        status, body = get(proxy, path)
        if status not in {200, 404}:
            raise OSError(f"{path}: {status}")
        return dict(json.loads(body)) if status == 200 else {}

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind((address, PORT))
        for question, asker in _questions(listening):
            try:
                told = answer(question, look)
            except OSError as error:
                print(f"{question.name}: {error}", flush=True)
                told = refuse(question)
            listening.sendto(told, asker)


if __name__ == "__main__":
    main(*sys.argv[1:])
