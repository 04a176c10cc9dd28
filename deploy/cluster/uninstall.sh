#!/bin/bash
# Takes the agents away from the cluster that kubectl reaches, and from its nodes everything of them: binary, records, sockets, mounts.
#
#   bash deploy/cluster/uninstall.sh [--force] [--timeout SECONDS]
#
# While a pod is attached nothing is changed: its pods are listed, to be deleted first. With --force they lose their interfaces, and a
# runtime cannot delete them any more (docs/operations.md). It may be run again, also after it was cut short, and waits at most
# --timeout (300) for the nodes. What nodes have in /etc/userspace-cni stays.
set -euo pipefail
here=$(dirname "$0") namespace=userspace-cni
force=() seconds=300
while (($#)); do
    case $1 in
        --force) force=(--force) ;;
        --timeout) seconds=${2:?--timeout needs SECONDS}; shift ;;
        *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
    esac
    shift
done

say() { printf 'uninstall: %s\n' "$*" >&2; }
ours() { kubectl --namespace "$namespace" "$@"; }
# of AGENTS JSONPATH: a value of the agents' pod template
of() { ours get daemonset userspace-cni --output "jsonpath={.spec.template.spec.$1}"; }
in_agent() { ours exec "$1" --container agent -- userspace-cni "${@:2}"; }
# nothing_on POD: whether nothing is attached on the agent's node; what is left of pods that have gone is removed first
nothing_on() {
    [[ $(in_agent "$1" list --json 2>/dev/null) == "[]" ]] && return
    in_agent "$1" gc >/dev/null 2>&1 || true
    [[ $(in_agent "$1" list --json) == "[]" ]]
}
there() { [[ -n $(ours get daemonset "$1" --ignore-not-found --output name) ]]; }

if there userspace-cni; then
    if ((${#force[@]} == 0)); then
        attached=0
        for pod in $(ours get pods --selector app.kubernetes.io/name=userspace-cni --field-selector status.phase=Running --output name); do
            nothing_on "$pod" && continue
            attached=1
            say "attached on the node of $pod:"
            in_agent "$pod" list || say "its agent cannot be asked: bring its node back, or delete the Node object of one that stays away"
        done
        ((attached == 0)) || {
            say "nothing was changed: delete these pods first, or give --force"
            exit 1
        }
    fi
    # before the agents go: until they have, each node waits. So a second run finds the image in one place or the other
    say "sending uninstall to every node"
    sed -e "s|IMAGE|$(of 'containers[0].image')|" -e "s|BIN|$(of 'volumes[?(@.name=="bin")].hostPath.path')|" \
        -e "s|SETTINGS|$(of 'volumes[?(@.name=="settings")].configMap.name')|" -e "s|, \"FORCE\"|${force:+, --force}|" \
        "$here/uninstall.yaml" | kubectl apply --filename -
    say "ending the agents"
    ours delete daemonset userspace-cni
fi
if there userspace-cni-uninstall; then
    say "waiting for the nodes, up to $seconds s"
    ours rollout status daemonset/userspace-cni-uninstall --timeout "${seconds}s" || {
        say "these nodes are not done:"
        ours get pods --selector app.kubernetes.io/name=userspace-cni-uninstall --output wide >&2
        for pod in $(ours get pods --selector app.kubernetes.io/name=userspace-cni-uninstall --field-selector status.phase=Pending --output name); do
            say "$pod:"
            ours logs "$pod" --container uninstall --tail 20 >&2 || true
        done
        say "put that right and run this again; a node that will not come back is left out once its Node object is deleted"
        exit 1
    }
    # with its pods, because the namespace's deletion looks for pods less and less often: a minute is lost to that
    ours delete daemonset userspace-cni-uninstall --cascade=foreground
fi
say "removing what is left in the cluster"
kinds=$(kubectl api-resources --output name)
for kind in validatingadmissionpolicybindings.admissionregistration.k8s.io validatingadmissionpolicies.admissionregistration.k8s.io \
    securitycontextconstraints.security.openshift.io clusterrolebindings.rbac.authorization.k8s.io clusterroles.rbac.authorization.k8s.io; do
    grep -qx "$kind" <<<"$kinds" && kubectl delete "$kind" userspace-cni userspace-cni-controller userspace-cni-report --ignore-not-found
done
# with their objects; not while an agent runs, for which the end of an object is the end of a wish
kubectl delete customresourcedefinitions --selector app.kubernetes.io/name=userspace-cni --ignore-not-found
kubectl delete namespace "$namespace" --ignore-not-found
say "done: nothing of userspace-cni is left"
