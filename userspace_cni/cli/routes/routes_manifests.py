"""`routes manifests`: what a cluster needs for routes in pods, printed as YAML. Asks no cluster.

The definition is the very file that deploy/cluster applies: in the package it is a link to it, in a wheel its copy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
import yaml

from userspace_cni.cli import view
from userspace_cni.cli.command_line import ProgramCommand

DEFINITION: Final = Path(__file__).with_name("definition.yaml")
NAME: Final = "userspace-cni-routes"
_ACCOUNT: Final = "userspace-cni"
"""Of the agents, and the namespace in which it is, as deploy/cluster has it."""
_LABELS: Final = {"app.kubernetes.io/name": "userspace-cni"}
_ABOUT: Final = f"""\
# What agents read and write for routes, for the account {_ACCOUNT} in the namespace {_ACCOUNT}. The manifests of deploy/cluster
# have these rights already. No one gets the right to write Routes by them: that is for administrators alone.
"""


@click.command("manifests", cls=ProgramCommand, examples=("userspace-cni routes manifests > routes.yaml",))
@click.option("--json", "as_json", is_flag=True, help="As a JSON list of the objects.")
def manifests_command(as_json: bool) -> None:
    """Print the definition of the resource Route, and the rights that agents need for it: a stream of YAML documents for
    `kubectl apply -f -`. The manifests of deploy/cluster have both already.
    """
    definition = DEFINITION.read_text(encoding="utf-8")
    if as_json:
        view.show_json([yaml.safe_load(definition), *_rights()])
        return
    role, binding = (yaml.safe_dump(each, sort_keys=False) for each in _rights())
    click.echo(f"{definition.rstrip()}\n---\n{_ABOUT}{role}---\n{binding}", nl=False)


def _rules() -> list[dict[str, list[str]]]:
    """What agents read for routes, and what they tell pods; the role of deploy/cluster has it, too."""
    from userspace_cni.routes.watching import ALL

    groups = dict.fromkeys(each.group for each in ALL)
    read = {group: [each.plural for each in ALL if each.group == group] for group in groups}
    return [
        *({"apiGroups": [group], "resources": plurals, "verbs": ["list", "watch"]} for group, plurals in read.items()),
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    ]


def _rights() -> tuple[dict[str, Any], dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    about = {"apiVersion": f"{group}/v1", "metadata": {"name": NAME, "labels": dict(_LABELS)}}
    subject = {"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": _ACCOUNT}
    return (
        {**about, "kind": "ClusterRole", "rules": _rules()},
        {
            **{key: dict(each) if isinstance(each, dict) else each for key, each in about.items()},
            "kind": "ClusterRoleBinding",
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": NAME},
            "subjects": [subject],
        },
    )
