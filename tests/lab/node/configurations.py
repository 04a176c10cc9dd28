"""A network's configuration as a runtime passes it, read as ADD reads it."""

from __future__ import annotations

import json
from typing import Any

from userspace_cni.cni.options import Options, read_options
from userspace_cni.cni.request import Request, read_environment, read_network
from userspace_cni.consumers import CONSUMERS

ENVIRON = {"CNI_CONTAINERID": "c0ffee", "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "net1"}


def request_of(cni_args: str = "", **keys: Any) -> Request:
    """ADD of a network with these keys."""
    stdin = json.dumps({"cniVersion": "1.1.0", "name": "n", "type": "userspace", **keys}).encode()
    return Request(read_environment({**ENVIRON, "CNI_ARGS": cni_args}, "ADD"), read_network(stdin, "ADD"), stdin)


def read(warnings: list[str] | None = None, cni_args: str = "", **keys: Any) -> Options:
    """The options of a network with these keys; warnings and advice are added to `warnings`."""
    warn = (warnings if warnings is not None else []).append
    return read_options(request_of(cni_args, **keys), CONSUMERS, warn, warn)
