"""What the API server has of KubeVirt's Plugins: one that lost its hooks is not to be seen in the files that were applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubevirt.lint.linted_documents import ManifestDocument, judge
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.findings import Finding
from userspace_cni.cli.site import Site
from userspace_cni.diagnosis.traps import findings_of
from userspace_cni.node.kubevirt_objects import kubevirt_objects

_PLACE: Final = "cluster"
_TRAPS: Final = frozenset({"failure-ignored", "plugin-hooks", "plugin-pruned", "plugin-socket", "plugin-version", "plugins-gate"})


def judge_plugins(site: Site) -> tuple[Sequence[Finding], str]:
    """What is wrong with the cluster's Plugins, and why they could not be looked at, "" where they could.

    Without an account for the API server, and in a cluster without Plugins, there is nothing to be found. An account that may not
    read them is a note: most need not.
    """
    node = site.drivers
    if not node.installation.has_account:
        return (), ""
    try:
        objects, refused = kubevirt_objects(node.installation.clients.of("").session)
    except UserspaceError as error:
        return (), f"KubeVirt's Plugins could not be looked at: {error}"
    traps = judge([ManifestDocument(_PLACE, each) for each in objects]).findings
    found = findings_of(each for each in traps if each.name in _TRAPS)
    if refused:
        message = f"not all of KubeVirt's Plugins and its version was looked at: {refused.message}"
        remedy = refused.details or "see the ClusterRole in deploy/cluster/base"
        found.append(Finding("not-given", "note", _PLACE, message, remedy))
    return found, ""
