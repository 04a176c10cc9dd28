"""The sidecar as a structured plugin of KubeVirt, from 1.9 on: registration, admission policy and Plugin object. Pure.

There the sidecar's container is not KubeVirt's to make: an admission policy of Kubernetes adds it to the launcher pods of VMs
that ask for it by a label, and KubeVirt asks it at a socket below the plugin's own directory in a volume that every launcher
pod has once feature gate Plugins is on. Names are put into CEL as they are: `manifests.ManifestOptions` says which.

A Plugin's CEL sees the VM as KubeVirt's Go struct, and its fields by their Go names: Spec, Binding. An admission policy's sees
objects of the API by the names of JSON: spec, binding. KubeVirt's admitter refuses the wrong ones, and where its webhook is
bypassed every VM of the cluster fails at its start, whatever the plugin's failureStrategy is.

Sources: `plugin_schema`; KubeVirt's docs on plugins and VEP 190, pkg/virt-launcher/virtwrap/plugins/cel (types of conditions),
pkg/virt-controller/services (volume and directory), pkg/network/downwardapi (volume of network-info); MutatingAdmissionPolicy of
Kubernetes 1.36.
"""

from __future__ import annotations

from typing import Final

from kubevirt.manifests import KUBEVIRT_NAMESPACE, POD_LABEL, Manifest, ManifestOptions, Object, make_registration, registration
from kubevirt.plugin_schema import GUEST_DEFINITION, LAUNCHER, LAUNCHER_HOOKS, SOCKETS, format_version, hooks_field
from userspace_cni.pod import launcher

BINDING_MAX: Final = 49
"""Characters of a binding's name: with more, the sidecar's container would have a name that Kubernetes refuses."""

_SOCKETS_VOLUME: Final = "kubevirt-plugin-sockets"
_SOCKETS_DIRECTORY: Final = SOCKETS.rstrip("/")
_PODINFO_VOLUME: Final = "network-info-annotation"
_GATE: Final = '[{"op": "add", "path": "/spec/configuration/developerConfiguration/featureGates/-", "value": "Plugins"}]'
_WITHOUT_SIDECAR: Final = '[{"op": "remove", "path": "/spec/configuration/network/binding/%s/sidecarImage"}]'


def plugin_manifests(wanted: ManifestOptions) -> list[Manifest]:
    """The same binding with a sidecar that an admission policy injects, as structured plugin of `wanted.kubevirt`."""
    namespace = wanted.operator_namespace or KUBEVIRT_NAMESPACE
    name = _plugin_name(wanted)
    patch = f"kubectl patch kubevirt kubevirt --namespace {namespace} --type json --patch"
    policy: Object = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy"}
    return [
        Manifest(
            "KubeVirt 1.9 and newer, instead of `manifests kubevirt`: the binding without a sidecar of KubeVirt's own. Needed on "
            "clusters with feature gate Plugins and any Plugin object: what a binding's sidecar writes into the definition is "
            "lost there. Save it as a file of its own and merge it in:\n\n"
            f"    kubectl patch kubevirt kubevirt --namespace {namespace} --type merge --patch-file FILE\n\n"
            "The gate is in a list, which a merge patch would replace. Where the CR has that list, add to it:\n\n"
            f"    {patch} '{_GATE}'\n\n"
            "A merge patch leaves the sidecar of a binding that was registered with one (`manifests kubevirt`), and the two ways "
            "exclude each other. Where there is one, remove it:\n\n"
            f"    {patch} '{_WITHOUT_SIDECAR % wanted.binding}'",
            make_registration(namespace, wanted.binding, registration("")),
        ),
        Manifest(
            f"Puts the sidecar into the launcher pods of VMs whose template has label {POD_LABEL}: {wanted.binding}. "
            "Kubernetes 1.36 and newer (before that: v1beta1, and its feature gate). Apply it with kubectl apply -f FILE.",
            {**policy, "metadata": {"name": name}, "spec": _policy(wanted)},
        ),
        Manifest(
            "Puts that policy into force.",
            {
                **policy,
                "kind": "MutatingAdmissionPolicyBinding",
                "metadata": {"name": name},
                "spec": {"policyName": name},
            },
        ),
        Manifest(
            f"Has KubeVirt ask the sidecar, in the form of {_of(wanted)}. An API server drops the hook of the other form, "
            f"and VMs start without the interface. After an upgrade to {format_version(LAUNCHER)}, or back, print this again "
            "(--kubevirt) and apply it before any VM starts. A VM with the binding and without the label does not start: "
            "it has no sidecar.",
            {
                "apiVersion": "plugin.kubevirt.io/v1alpha1",
                "kind": "Plugin",
                "metadata": {"name": name},
                "spec": {
                    "condition": _uses(wanted),
                    "failureStrategy": "Fail",
                    hooks_field(wanted.kubevirt): [{"sidecar": _sidecar(wanted), "timeout": "30s"}],
                    "mutatingAdmissionPolicies": [{"name": name}],
                },
            },
        ),
    ]


def _plugin_name(wanted: ManifestOptions) -> str:
    return f"userspace-cni-{wanted.binding}"


def _plugin_socket(wanted: ManifestOptions) -> str:
    """Where KubeVirt wants it: below a directory with the plugin's name."""
    return f"{_SOCKETS_DIRECTORY}/{_plugin_name(wanted)}/hook.sock"


def _of(wanted: ManifestOptions) -> str:
    newer = hooks_field(wanted.kubevirt) == LAUNCHER_HOOKS
    return f"KubeVirt {format_version(LAUNCHER)} and newer" if newer else f"KubeVirt before {format_version(LAUNCHER)}"


def _sidecar(wanted: ManifestOptions) -> Object:
    sidecar: Object = {"socketPath": _plugin_socket(wanted)}
    if hooks_field(wanted.kubevirt) == LAUNCHER_HOOKS:
        sidecar["permittedHooks"] = [GUEST_DEFINITION]
    return sidecar


def _policy(wanted: ManifestOptions) -> Object:
    return {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
        },
        "matchConditions": [
            {"name": "launcher-pod", "expression": _labelled("kubevirt.io", "virt-launcher")},
            {"name": "asks-for-it", "expression": _labelled(POD_LABEL, wanted.binding)},
            {"name": "plugins-enabled", "expression": _has_volume(_SOCKETS_VOLUME)},
        ],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _injection(wanted)}}],
    }


def _labelled(label: str, value: str) -> str:
    labels = "object.metadata.labels"
    return f'has({labels}) && "{label}" in {labels} && {labels}["{label}"] == "{value}"'


def _has_volume(name: str) -> str:
    """A pod without volumes has no such field: an expression that reads it fails, and the pod is refused."""
    return f'has(object.spec.volumes) && object.spec.volumes.exists(v, v.name == "{name}")'


def _uses(wanted: ManifestOptions) -> str:
    """CEL over a VMI as a Go struct: whether an interface of it has the binding."""
    return f'vmi.Spec.Domain.Devices.Interfaces.exists(i, has(i.Binding) && i.Binding.Name == "{wanted.binding}")'


def _injection(wanted: ManifestOptions) -> str:
    """CEL that adds the container: the volume for the socket is KubeVirt's, of which each plugin has a directory of its own."""
    name, container = _plugin_name(wanted), "Object.spec.containers"
    security = f"{container}.securityContext"
    return f"""[
  JSONPatch{{
    op: "add",
    path: "/spec/containers/-",
    value: {container}{{
      name: "{name}",
      image: "{wanted.image}",
      env: [
        {container}.env{{name: "USERSPACE_CNI_KUBEVIRT_PLUGIN_SOCKET", value: "{_plugin_socket(wanted)}"}},
        {container}.env{{name: "USERSPACE_CNI_KUBEVIRT_BINDING", value: "{wanted.binding}"}}
      ],
      resources: {container}.resources{{
        requests: {{"cpu": "200m", "memory": "64M"}},
        limits: {{"cpu": "200m", "memory": "64M"}}
      }},
      securityContext: {security}{{
        allowPrivilegeEscalation: false,
        runAsNonRoot: true,
        runAsUser: {launcher.QEMU_ID},
        runAsGroup: {launcher.QEMU_ID},
        capabilities: {security}.capabilities{{drop: ["ALL"]}},
        seccompProfile: {security}.seccompProfile{{type: "RuntimeDefault"}}
      }},
      volumeMounts: [
        {container}.volumeMounts{{
          name: "{_SOCKETS_VOLUME}", mountPath: "{_SOCKETS_DIRECTORY}/{name}", subPath: "{name}"
        }}
      ] + ({_has_volume(_PODINFO_VOLUME)}
        ? [{container}.volumeMounts{{name: "{_PODINFO_VOLUME}", mountPath: "/etc/podinfo"}}]
        : [])
    }}
  }}
]
"""
