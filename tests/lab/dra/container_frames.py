"""A program in a container, the application at the ports of its claims: `container_frames.py ask|answer`

It learns of its sockets from the metadata of its devices, makes them, waits until the switch is connected to each, and has frames
pass: who asks sends on all of its ports until an answer has come on each, who answers sends back what comes.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

from userspace_cni.fastpath import FrontEnd, FrontEndListener

METADATA = Path("/var/run/kubernetes.io/dra-device-attributes")
ASKED = bytes.fromhex("02000000000202000000000188b5") + b"asked".ljust(50, b".")
ANSWERED = bytes.fromhex("02000000000102000000000288b5") + b"answered".ljust(50, b".")
TRIES = 600
PAUSE_S = 0.1


def main() -> int:
    """0 once a frame has come and gone at each port."""
    act = {"ask": ask, "answer": answer}[sys.argv[1]]
    with ExitStack() as stack:
        listeners = [stack.enter_context(FrontEndListener(path)) for path in sockets()]
        ports = [stack.enter_context(each.accept(60)) for each in listeners]
        print(json.dumps({"ports": len(ports), "well": [act(each) for each in ports]}))
    return 0


def sockets() -> list[str]:
    """The paths that the metadata of the container's devices have: each file begins with the newest version."""
    files = sorted(METADATA.glob("*/*/*/*metadata.json"))
    told = [json.loads(each.read_text().splitlines()[0]) for each in files]
    devices = [device for each in told for request in each["requests"] for device in request["devices"]]
    return [each["attributes"]["vhost-user-path"]["string"] for each in devices]


def ask(port: FrontEnd) -> bool:
    """Send until an answer has come."""
    for _ in range(TRIES):
        port.send([ASKED])
        if ANSWERED in port.receive(PAUSE_S):
            return True
    return False


def answer(port: FrontEnd) -> bool:
    """Answer the first question, and wait until who asks has gone or asks no more."""
    for _ in range(TRIES):
        if ASKED in port.receive(PAUSE_S):
            break
    else:
        return False
    port.send([ANSWERED])
    while ASKED in port.receive(1.0):
        port.send([ANSWERED])
    return True


if __name__ == "__main__":
    sys.exit(main())
