"""The controls of Kubernetes' Pod Security Standards, as published for 1.36: which level the spec of a pod needs.

Each control names the fields of a pod and the values that its level allows. The admission controller of a cluster judges by the
same ones; here no cluster is needed. Fields of Windows are left out but for HostProcess, which no level below privileged allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

LEVELS = ("restricted", "baseline", "privileged")
"""From the strictest to the most permissive."""

Fields = Mapping[str, Any]
_CAPABILITIES = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_SYSCTLS = frozenset(
    (
        *(
            "kernel.shm_rmid_forced",
            "net.ipv4.ip_local_port_range",
            "net.ipv4.ip_unprivileged_port_start",
            "net.ipv4.tcp_syncookies",
        ),
        *(
            "net.ipv4.ping_group_range",
            "net.ipv4.ip_local_reserved_ports",
            "net.ipv4.tcp_keepalive_time",
            "net.ipv4.tcp_fin_timeout",
        ),
        *("net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
    )
)
_SELINUX_TYPES = frozenset(("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"))
_VOLUMES = frozenset(["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"])


def level_of(spec: Fields) -> str:
    """The first of LEVELS that allows a pod with this spec."""
    if any(_against_baseline(spec)):
        return "privileged"
    return "baseline" if any(_against_restricted(spec)) else "restricted"


def controls_broken(spec: Fields) -> list[str]:
    """What in the spec `restricted` does not allow, one sentence each."""
    return [*_against_baseline(spec), *_against_restricted(spec)]


def _containers(spec: Fields) -> Iterator[tuple[str, Fields, Fields]]:
    """Name, container and security context, of each kind of container."""
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(kind, ()):
            yield container["name"], container, container.get("securityContext", {})


def _contexts(spec: Fields) -> Iterator[tuple[str, Fields]]:
    yield "the pod", spec.get("securityContext", {})
    for name, _, context in _containers(spec):
        yield name, context


def _against_baseline(spec: Fields) -> Iterator[str]:
    yield from (f"{field} is true" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field))
    yield from (f"volume {each['name']} is a hostPath" for each in spec.get("volumes", ()) if "hostPath" in each)
    sysctls = (each["name"] for each in spec.get("securityContext", {}).get("sysctls", ()))
    yield from (f"sysctl {name}" for name in sysctls if name not in _SYSCTLS)
    for name, context in _contexts(spec):
        if context.get("windowsOptions", {}).get("hostProcess"):
            yield f"{name}: hostProcess"
        selinux = context.get("seLinuxOptions", {})
        if selinux.get("type", "") not in _SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
            yield f"{name}: seLinuxOptions {selinux}"
        if context.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in ("RuntimeDefault", "Localhost"):
            yield f"{name}: appArmorProfile"
        if context.get("seccompProfile", {}).get("type", "RuntimeDefault") not in ("RuntimeDefault", "Localhost"):
            yield f"{name}: seccompProfile {context['seccompProfile']['type']}"
    for name, container, context in _containers(spec):
        if context.get("privileged"):
            yield f"{name}: privileged"
        added = set(context.get("capabilities", {}).get("add", ())) - _CAPABILITIES
        yield from (f"{name}: capability {each}" for each in sorted(added))
        if context.get("procMount", "Default") != "Default":
            yield f"{name}: procMount"
        yield from (f"{name}: hostPort {port['hostPort']}" for port in container.get("ports", ()) if port.get("hostPort"))
        yield from (f"{name}: a probe or hook names a host" for handler in _handlers(container) if handler.get("host"))


def _handlers(container: Fields) -> Iterator[Fields]:
    asking = [container.get(f"{kind}Probe", {}) for kind in ("liveness", "readiness", "startup")]
    hooks = container.get("lifecycle", {})
    for handler in (*asking, hooks.get("postStart", {}), hooks.get("preStop", {})):
        yield from (handler[way] for way in ("httpGet", "tcpSocket") if way in handler)


def _against_restricted(spec: Fields) -> Iterator[str]:
    for volume in spec.get("volumes", ()):
        yield from (f"volume {volume['name']} is a {kind}" for kind in volume.keys() - {"name", "hostPath"} - _VOLUMES)
    pod = spec.get("securityContext", {})
    for name, _, context in _containers(spec):
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{name}: allowPrivilegeEscalation is not false"
        if context.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
            yield f"{name}: runAsNonRoot is not true"
        if "seccompProfile" not in context and "seccompProfile" not in pod:
            yield f"{name}: no seccompProfile"
        capabilities = context.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", ()):
            yield f"{name}: capabilities do not drop ALL"
        yield from (f"{name}: capability {each}" for each in sorted({*capabilities.get("add", ())} - {"NET_BIND_SERVICE"}))
    yield from (f"{name}: runAsUser 0" for name, context in _contexts(spec) if context.get("runAsUser") == 0)
