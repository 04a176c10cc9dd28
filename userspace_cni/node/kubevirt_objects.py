"""KubeVirt's own object and its Plugins, as the API server has them, for a command that looks at them once.

In the files of which an administrator applied them the Plugins may be right: what the server has made of them is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from userspace_cni.base.errors import NoSuchResource, ObjectRefused
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.resources import KUBEVIRTS, PLUGINS


def kubevirt_objects(session: ApiSession) -> tuple[Sequence[Mapping[str, Any]], ObjectRefused | None]:
    """The Plugins and, where there are any, the KubeVirt objects; and why the account may not read all of it, None where it may.

    Raises Unavailable where the server cannot be asked.
    """
    objects = Objects(session)
    found: list[Mapping[str, Any]] = []
    for resource in (PLUGINS, KUBEVIRTS):
        try:
            listed = objects.list(resource)
        except NoSuchResource:
            listed = ()
        except ObjectRefused as refused:
            return found, refused
        if not listed:
            break
        # in a list the server may leave these out
        found += ({"apiVersion": resource.api_version, "kind": resource.kind, **each} for each in listed)
    return found, None
