"""KubeVirt's own object and its Plugins, as the API server has them, for a command that looks at them once.

In the files of which an administrator applied them the Plugins may be right: what the server has made of them is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from userspace_cni.base.errors import NoSuchResource
from userspace_cni.kube.credentials import Session
from userspace_cni.kube.objects import Objects
from userspace_cni.kube.resources import KUBEVIRTS, PLUGINS


def kubevirt_objects(session: Session) -> Sequence[Mapping[str, Any]]:
    """The Plugins and, where there are any, the KubeVirt objects. None in a cluster without them.

    Raises UserspaceError where any of it cannot be read: ObjectRefused where the account may not.
    """
    objects = Objects(session)
    try:
        plugins = objects.list(PLUGINS)
        operators = objects.list(KUBEVIRTS) if plugins else ()
    except NoSuchResource:
        return ()
    # in a list the server may leave these out
    return [
        {"apiVersion": resource.api_version, "kind": resource.kind, **each}
        for resource, found in ((PLUGINS, plugins), (KUBEVIRTS, operators))
        for each in found
    ]
