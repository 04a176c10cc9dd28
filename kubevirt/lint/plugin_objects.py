"""Plugin objects: whether KubeVirt asks their sidecars for a VM's definition, and finds these. Pure.

The form of a Plugin's hooks differs between KubeVirt's versions (`plugin_schema`), and an API server drops what it does not know.
What is left looks like a Plugin, KubeVirt asks no sidecar, and a VM starts without its interface and without an error.
"""

from __future__ import annotations

from typing import Final

from kubevirt.lint.reading import DocumentValue
from kubevirt.lint.registrations import RegisteredObjects, definition_hooks
from kubevirt.plugin_schema import (
    DOMAIN_HOOKS,
    FIRST,
    GUEST_DEFINITION,
    HOOK_POINTS,
    LAUNCHER,
    LAUNCHER_HOOKS,
    SOCKETS,
    Version,
    format_version,
    hooks_field,
)

_PRINT: Final = "print it again and apply it: `userspace-cni kubevirt manifests plugin --kubevirt {version}`"


def judge_plugins(cluster: RegisteredObjects) -> None:
    """Everything about the Plugins that were given; the feature gate that they need is judged with the others."""
    for spot in cluster.plugins:
        hooks = [*spot.child("spec").items(DOMAIN_HOOKS), *spot.child("spec").items(LAUNCHER_HOOKS)]
        _judge_version(spot, cluster.version)
        for hook in hooks:
            _judge_socket(spot, hook)
        for hook in definition_hooks(spot):
            _judge_strategy(spot, hook)
        for hook in spot.child("spec").items(LAUNCHER_HOOKS):
            if hook.has("sidecar"):
                _judge_points(hook.child("sidecar"), ours=cluster.is_our_plugin(spot))
    for spot in cluster.pruned:
        _judge_pruned(spot, cluster.version)


def _judge_version(spot: DocumentValue, version: Version | None) -> None:
    """Hooks in a form that the cluster's KubeVirt drops."""
    spec = spot.child("spec")
    there = [field for field in (DOMAIN_HOOKS, LAUNCHER_HOOKS) if spec.has(field)]
    if version and version < FIRST:
        spot.find(
            "plugin-version",
            "error",
            f"KubeVirt is {format_version(version)}, and has no Plugins before {format_version(FIRST)}: the object is refused",
            "register the binding with its sidecarImage (`userspace-cni kubevirt manifests kubevirt`)",
        )
    elif version and there and there != [hooks_field(version)]:
        other = next(field for field in there if field != hooks_field(version))
        DocumentValue(spec.get(other), spec.at(other), spot.report).find(
            "plugin-version",
            "error",
            f"KubeVirt is {format_version(version)}, whose Plugins have {hooks_field(version)} and no {other}: the field is "
            "refused or dropped, no sidecar is asked, and VMs start without their interfaces",
            _PRINT.format(version=format_version(version)),
        )
    elif len(there) > 1:
        spec.find(
            "plugin-version",
            "warning",
            f"the Plugin has both {DOMAIN_HOOKS}, as before KubeVirt {format_version(LAUNCHER)}, and {LAUNCHER_HOOKS}, as since: "
            "each version refuses or drops the other's, and what was dropped does not come back with an upgrade",
            "have one of the two, and apply the other form when KubeVirt has been upgraded",
        )


def _judge_pruned(spot: DocumentValue, version: Version | None) -> None:
    which = format_version(version) if version else "VERSION"
    spot.child("spec").find(
        "plugin-pruned",
        "error",
        "the Plugin has no hook that asks a sidecar for a VM's definition: an API server drops hooks of another KubeVirt's form "
        f"({DOMAIN_HOOKS} before {format_version(LAUNCHER)}, {LAUNCHER_HOOKS} since). VMs start without their interfaces, "
        "and without an error",
        f"{_PRINT.format(version=which)}; then restart the VMs that were started meanwhile",
    )


def _judge_points(sidecar: DocumentValue, *, ours: bool) -> None:
    points = sidecar.texts("permittedHooks")
    wrong = [point for point in points if point not in HOOK_POINTS]
    if not points or wrong:
        message = f"KubeVirt has no hook {wrong[0][:60]!r}" if wrong else "there are no permittedHooks, which KubeVirt demands"
        sidecar.find("plugin-hooks", "error", f"{message}: the API server refuses the Plugin", f"write [{GUEST_DEFINITION}]")
    elif ours and points != [GUEST_DEFINITION]:
        others = [point for point in points if point != GUEST_DEFINITION]
        message = (
            f"our sidecar does not know the hook {others[0]}: KubeVirt asks it, and the VM fails"
            if GUEST_DEFINITION in points
            else f"permittedHooks has no {GUEST_DEFINITION}: no sidecar is asked for the definition, and VMs start without their "
            "interfaces"
        )
        sidecar.find("plugin-hooks", "error", message, f"let permittedHooks be [{GUEST_DEFINITION}]")


def _judge_socket(spot: DocumentValue, hook: DocumentValue) -> None:
    name = spot.child("metadata").text("name")
    wanted = f"{SOCKETS}{name}/" if name else SOCKETS
    path = hook.child("sidecar").text("socketPath")
    if path and (not path.startswith(wanted) or ".." in path.split("/")):
        hook.child("sidecar").find(
            "plugin-socket",
            "error",
            f"socketPath is {path!r}: launchers look below {wanted}",
            f"let it be {wanted}<name>.sock, in a volume that sidecar and compute container share",
        )


def _judge_strategy(spot: DocumentValue, hook: DocumentValue) -> None:
    if (hook.text("failureStrategy") or spot.child("spec").text("failureStrategy")) == "Ignore":
        hook.find(
            "failure-ignored",
            "warning",
            "failureStrategy is Ignore: a VM whose sidecar fails starts without its vhost-user interfaces",
            "set failureStrategy to Fail",
        )
