"""Why a pod has no attachment on this node: refused, never called, elsewhere, or spelled otherwise. Pure."""

from __future__ import annotations

import shlex
from typing import Final

from userspace_cni.base.errors import quote
from userspace_cni.diagnosis.why.attachment_sight import AbsentSight, Findings, RefusalSight, known
from userspace_cni.node.seen_pod import NETWORKS, SeenPod

_SHOWN: Final = 3
_MINUTE: Final = 60
_HOUR: Final = 3600


def judge_refusals(sight: AbsentSight) -> Findings:
    """What the agent has answered to the pod's ADDs."""
    for each in known(sight.refusals) or ():
        times = f"{each.count} times, the last time" if each.count > 1 else "once,"
        message = f"ADD of its interface {each.ifname} was refused {times} {_ago(each)} (code {each.code}): {each.message}"
        told = each.details.replace("`", "'")  # what it quotes is no command of ours
        remedy = f"{told or 'see the message'}; the runtime tries again by itself"
        yield sight.found("add-refused", message, remedy, why="the pod does not start before it succeeds")


def judge_whereabouts(sight: AbsentSight) -> Findings:
    """What the API server and the runtime know of the pod."""
    pod, store = known(sight.pod), known(sight.store)
    if store and store.quarantined:
        message = "a record that mentions it could not be read and was put aside"
        shows = " and ".join(f"`cat {shlex.quote(each)}`" for each in store.quarantined[:_SHOWN]) + " shows it"
        remedy = f"{shows}; delete the pod, so that its owner recreates it, then remove the file"
        yield sight.found("record-quarantined", message, remedy, why="nothing else tells what the attachment has on this node")
    elif pod:
        yield from _of_pod(sight, pod)


def judge_unknown(sight: AbsentSight) -> Findings:
    """Nothing is known of a pod of this name."""
    store = known(sight.store)
    if known(sight.pod) or known(sight.refusals) or (store and store.quarantined):
        return
    near = f"did you mean {', '.join(sight.near)}? " if sight.near else ""
    find = "`kubectl get pods --all-namespaces -o wide` shows where it runs; write NAMESPACE/POD"
    if sandboxes := known(sight.sandboxes):
        message = f"the runtime has a sandbox of {', '.join(sandboxes)} here, and has never called this plugin for it"
        yield sight.found("never-called", message, _no_network(sandboxes[0]), why="none of its networks is this plugin's")
    elif sight.has_account and not any(what == sight.QUESTIONS["pod"] for what, _ in sight.unasked):
        message = "no attachment is named so, and the API server has no such pod: it was deleted since, or is spelled otherwise"
        there = "`kubectl get pods --all-namespaces` lists the pods that there are; write NAMESPACE/POD"
        yield sight.found("pod-unknown", message, f"{near}{there}")
    else:
        message = "no attachment on this node is named so"
        yield sight.found(
            "pod-unknown", message, f"{near}`userspace-cni list` has all; if it is another node's, ask there: {find}"
        )


def _of_pod(sight: AbsentSight, pod: SeenPod) -> Findings:
    whole = f"{pod.namespace}/{pod.name}"
    describe = f"`kubectl -n {pod.namespace} describe pod {pod.name}`"
    if not pod.node:
        message = f"pod {whole} is not scheduled to a node yet ({pod.phase or 'no phase'})"
        yield sight.found("pod-unscheduled", message, f"{describe} says what it waits for")
    elif pod.node != sight.node:
        message = f"pod {whole} is on node {pod.node}, and this is node {sight.node}"
        remedy = f"ask there: `kubectl userspace why {whole}`, or `userspace-cni why {whole}` on {pod.node}"
        yield sight.found("pod-elsewhere", message, remedy)
    elif known(sight.refusals):
        return
    elif not pod.networks:
        message = f"pod {whole} is on this node ({pod.phase}), and this plugin was never called for it"
        why = f"it has no annotation {NETWORKS}, and the cluster's own network is not this plugin's"
        yield sight.found("never-called", message, _no_network(whole), why)
    else:
        asked = quote(pod.networks)
        message = f"pod {whole} is on this node ({pod.phase}) and asks for {asked}, and this plugin was never called for it"
        yield sight.found("never-called", message, *_of_networks(sight, describe))


def _of_networks(sight: AbsentSight, describe: str) -> tuple[str, str]:
    """What to do about networks for which the plugin was not called, and why it was not."""
    missing = known(sight.missing)
    if missing:
        named = ", ".join(map(quote, missing[:_SHOWN]))
        why = (
            f"the network definition {named} does not exist"
            if len(missing) == 1
            else f"network definitions do not exist: {named}"
        )
        there = "`kubectl get network-attachment-definitions --all-namespaces` shows those that do"
        return f"create what is missing, or correct the pod's annotation {NETWORKS} and recreate the pod: {there}", why
    events = f"{describe}: its events say what Multus answered"
    if missing is not None:
        return events, "its networks exist, so that they are of another plugin, or Multus does not run here"
    shows = "`kubectl get network-attachment-definitions --all-namespaces` shows whether they exist and are of type userspace"
    return f"{events}; {shows}", "its networks are of another plugin, or do not exist, or Multus does not run here"


def _no_network(pod: str) -> str:
    return f"if {pod} is to have an interface, name its network in the annotation {NETWORKS}, and recreate the pod"


def _ago(refusal: RefusalSight) -> str:
    if refusal.ago_s < 2 * _MINUTE:
        return f"{refusal.ago_s:.0f} s ago"
    if refusal.ago_s < 2 * _HOUR:
        return f"{refusal.ago_s / _MINUTE:.0f} min ago"
    return f"{refusal.ago_s / _HOUR:.0f} h ago"
