"""Names by which a device of a claim is found in containers, which the agent and the sidecar of a VM each derive. Pure.

They must not change: a VM that migrates takes its socket's path to a node that may have another version.
"""

from __future__ import annotations

import re

SOCKET = "vhost.sock"
"""A VM's socket, in the device's own directory."""

_VARIABLE = "USERSPACE_CNI_DIRS_"


def variable(claim: str, request: str) -> str:
    """The environment variable with the directories of a request's devices. `claim`: as the pod calls it, or its own name where
    no template made it."""
    return _VARIABLE + re.sub("[^A-Z0-9]", "_", f"{claim}_{request}".upper())


def called(pod_claim: str, claim: str) -> str:
    """A claim in paths and names of its pod. `pod_claim`: what the pod calls one that was made of a template, "" for another."""
    return f"resourceclaimtemplates/{pod_claim}" if pod_claim else f"resourceclaims/{claim}"


def name_in_pod(called: str, request: str, index: int) -> str:
    """What tells a device apart from all others of its pod; the same in every pod of a VM whose claims are made of one template.

    `called`: the claim; `index`: which of the request's devices it is.
    """
    return f"{called}/{request}/{index}"
