"""`kubevirt manifests`: what a cluster needs for VMs on OVS-DPDK, printed as YAML with a word on each object. Asks no cluster."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import click
import yaml

from kubevirt import manifests
from kubevirt.manifests import PAGES, Manifest, ManifestOptions, hco_manifests, kubevirt_manifests, nad_manifests, vm_manifests
from kubevirt.plugin_manifests import BINDING_MAX, plugin_manifests
from kubevirt.plugin_schema import FIRST, Version, format_version, read_version
from userspace_cni.cli import view
from userspace_cni.cli.command_line import ProgramCommand
from userspace_cni.pod.quantity import amount

_MAKERS: Final = {
    "kubevirt": kubevirt_manifests,
    "hco": hco_manifests,
    "plugin": plugin_manifests,
    "nad": nad_manifests,
    "vm": vm_manifests,
}
"""What can be asked for, in the order in which it is applied."""
_DEFAULT: Final = ("kubevirt", "nad", "vm")
_WIDTH: Final = 110
_QUEUES_MAX: Final = 256
_CPUS_MAX: Final = 512
_OPERATORS: Final = frozenset({"kubevirt", "hco", "plugin"})


def _matching(what: str, pattern: re.Pattern[str]) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """The check of an option's value, which may be left out."""

    def check(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
        if value is not None and not pattern.fullmatch(value):
            raise click.BadParameter(f"{value!r} is no {what}: it must match {pattern.pattern}")
        return value

    return check


def _version(_: click.Context, __: click.Parameter, value: str) -> Version:
    version = read_version(value)
    if not version:
        raise click.BadParameter(f"{value!r} is not a version of KubeVirt, such as {format_version(FIRST)}")
    return version


_LABEL: Final = _matching("name", manifests.LABEL)
_IMAGE: Final = _matching("image", manifests.IMAGE)
_BRIDGE: Final = _matching("bridge", manifests.BRIDGE)
_USUAL: Final = ManifestOptions()


@click.command(
    "manifests",
    cls=ProgramCommand,
    examples=(
        "userspace-cni kubevirt manifests > all.yaml",
        "userspace-cni kubevirt manifests nad vm --bridge br0 --vlan 100 --memory 1Gi --hugepages 2Mi",
    ),
)
@click.argument("what", nargs=-1, type=click.Choice(tuple(_MAKERS)), metavar="[WHAT]...")
@click.option("--namespace", callback=_LABEL, default=_USUAL.namespace, show_default=True, help="Of the network and the VM.")
@click.option("--name", "network", callback=_LABEL, default=_USUAL.network, show_default=True, help="The network's name.")
@click.option("--binding", callback=_LABEL, default=_USUAL.binding, show_default=True, help="Name of the binding in KubeVirt.")
@click.option("--image", callback=_IMAGE, default=_USUAL.image, show_default=True, help="The sidecar's image, as nodes pull it.")
@click.option("--bridge", callback=_BRIDGE, default=_USUAL.bridge, show_default=True, help="Bridge of OVS-DPDK on every node.")
@click.option("--vlan", type=click.IntRange(1, 4094), help="VLAN of the ports; else none.")
@click.option("--mtu", type=click.IntRange(68, 65535), help="MTU of ports and guests; by default the switch's.")
@click.option("--cni-version", type=click.Choice(manifests.CNI_VERSIONS), default=_USUAL.cni_version, show_default=True,
              help="CNI version of the network; from 1.1.0 on with the MTU.")  # fmt: skip
@click.option("--vm", "machine", callback=_LABEL, default=_USUAL.machine, show_default=True, help="The sample VM's name.")
@click.option("--disk", callback=_IMAGE, default=_USUAL.disk, show_default=True, help="Its containerdisk.")
@click.option("--hugepages", type=click.Choice(tuple(PAGES)), default=_USUAL.hugepages, show_default=True, help="Page size.")
@click.option(
    "--memory", metavar="AMOUNT", default=_USUAL.memory, show_default=True, help="Its memory, a multiple of the page size."
)
@click.option("--cpus", type=click.IntRange(1, _CPUS_MAX), default=_USUAL.cpus, show_default=True, help="Its vCPUs.")
@click.option("--dedicated", is_flag=True, help="Pin its vCPUs (the node's CPU manager must be static).")
@click.option("--queues", type=click.IntRange(1, _QUEUES_MAX), help="Queue pairs of its interface, at most its vCPUs; else one.")
@click.option("--operator-namespace", callback=_LABEL, help="Of the KubeVirt or HyperConverged CR.")
@click.option("--kubevirt", metavar="VERSION", callback=_version, default=format_version(_USUAL.kubevirt), show_default=True,
              help="The cluster's KubeVirt, for plugin: 1.10 has another form of it.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As a JSON list of the objects, without comments.")
def manifests_command(what: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Print manifests for KubeVirt, made to measure: a stream of YAML documents, each with a comment on how it is applied.

    \b
    WHAT is any of these; without it, kubevirt nad vm:
      kubevirt  registers the binding and its sidecar: a merge patch for the KubeVirt CR
      hco       the same for the HyperConverged CR, where that operator owns the KubeVirt CR
      nad       the network: a NetworkAttachmentDefinition for Multus
      vm        a VM with an interface on it, to try it out
      plugin    instead of kubevirt, on KubeVirt 1.9 and newer with structured plugins: Plugin and admission policy

    \b
    For example:
      userspace-cni kubevirt manifests kubevirt --image registry.example/sidecar:1 > binding.yaml
      kubectl patch kubevirt kubevirt -n kubevirt --type merge --patch-file binding.yaml
      userspace-cni kubevirt manifests nad vm --bridge br0 --vlan 100 | kubectl apply -f -
    """
    chosen = [name for name in _MAKERS if name in (what or _DEFAULT)]
    wanted = ManifestOptions(
        **{**options, "operator_namespace": options["operator_namespace"] or ""}, injected="plugin" in chosen
    )
    _check(chosen, wanted)
    found = [manifest for name in chosen for manifest in _MAKERS[name](wanted)]
    if as_json:
        view.show_json([manifest.object for manifest in found])
    else:
        click.echo(_text(found), nl=False)


def _check(chosen: Sequence[str], wanted: ManifestOptions) -> None:
    """Raise UsageError for what cannot be together."""
    operators = _OPERATORS.intersection(chosen)
    if len(operators) > 1:
        raise click.UsageError(f"{' and '.join(sorted(operators))} each register binding {wanted.binding!r}: print one of them")
    if "plugin" in chosen and wanted.kubevirt < FIRST:
        raise click.UsageError(
            f"--kubevirt {format_version(wanted.kubevirt)}: structured plugins came with {format_version(FIRST)}; "
            "print kubevirt in place of plugin"
        )
    if "plugin" in chosen and len(wanted.binding) > BINDING_MAX:
        raise click.UsageError(f"--binding: it has {len(wanted.binding)} characters, and plugin takes {BINDING_MAX} at most")
    if wanted.network == "default":
        raise click.UsageError("--name: the VM's pod network is named 'default' already")
    if wanted.queues and wanted.queues > wanted.cpus:
        raise click.UsageError(
            f"--queues {wanted.queues}: a guest does not use more queues than it has CPUs (--cpus {wanted.cpus})"
        )
    memory, page = amount(wanted.memory), PAGES[wanted.hugepages]
    if not memory or memory % page:
        raise click.UsageError(
            f"--memory {wanted.memory}: it must be an amount as 2Gi, and a multiple of pages of {wanted.hugepages}"
        )


def _text(found: Iterable[Manifest]) -> str:
    return "---\n".join(f"{_comment(manifest.about)}{_yaml(manifest.object)}" for manifest in found)


def _comment(about: str) -> str:
    """Paragraphs, folded; what is indented is a command and stays as it is."""
    lines: list[str] = []
    for paragraph in about.split("\n\n"):
        lines += [paragraph] if paragraph.startswith(" ") else textwrap.wrap(paragraph, _WIDTH, break_on_hyphens=False)
        lines.append("")
    return "".join(f"# {line}".rstrip() + "\n" for line in lines[:-1])


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, so that a person can read them."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _yaml(value: object) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=4096)
    return text
