#!/bin/bash
# Takes the agents away from the cluster that kubectl reaches, and from its nodes everything of them: binary, records, sockets, mounts.
# They are those of the DaemonSet userspace-cni in the namespace userspace-cni; while other pods have their label, nothing is changed.
#
#   bash deploy/cluster/uninstall.sh [--force] [--timeout SECONDS]
#
# While a pod is attached nothing is changed: its pods are listed, to be deleted first. With --force they lose their interfaces, and a
# runtime cannot delete them any more (docs/operations.md). It may be run again, also after it was cut short, and waits at most
# --timeout (300) for the nodes; SECONDS are whole ones. What nodes have in /etc/userspace-cni stays.
#
# A question that kubectl cannot ask ends it: no answer is never "it is not there". So each answer is assigned by a command of its own,
# which ends the script when it fails; in a condition, a loop's list or an argument it would not.
set -euo pipefail
here=$(dirname "$0") namespace=userspace-cni
force=() seconds=300
while (($#)); do
    case $1 in
        --force) force=(--force) ;;
        --timeout)
            seconds=${2-}
            # 0 is no end to kubectl, and what it does not take it would refuse once the agents have ended
            [[ $seconds =~ ^[1-9][0-9]{0,8}$ ]] ||
                { echo "uninstall: --timeout needs whole seconds, as 300; it got \"$seconds\"; nothing was changed" >&2; exit 2; }
            shift ;;
        *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
    esac
    shift
done

say() { printf 'uninstall: %s\n' "$*" >&2; }
ours() { kubectl --namespace "$namespace" "$@"; }
# template JSONPATH: a value of the agents' pod template; false when it has none
template() {
    local value
    value=$(ours get daemonset userspace-cni --output "jsonpath={.spec.template.spec.$1}") || return
    [[ -n $value ]] || { say "the DaemonSet userspace-cni has no $1, which the nodes are to be sent"; return 1; }
    printf '%s' "$value"
}
in_agent() { ours exec "$1" --container agent -- userspace-cni "${@:2}"; }
# attached_on POD: what its agent lists, as JSON. The agent ends with 1, too, where something of it is broken; a kubectl that cannot
# ask ends with 1 and prints nothing
attached_on() {
    local answer status=0
    answer=$(in_agent "$1" list --json) || status=$?
    ((status == 0)) || [[ $status == 1 && $answer == "["* ]] || return
    printf '%s' "$answer"
}
# nothing_on POD: whether its agent says that nothing is attached on the node; what is left of pods that have gone is removed first
nothing_on() {
    local attached
    attached=$(attached_on "$1") || return
    [[ $attached != "[]" ]] || return 0
    in_agent "$1" gc >/dev/null 2>&1 || true # asked again: whatever became of it
    attached=$(attached_on "$1") || return
    [[ $attached == "[]" ]]
}
# listed LINE TEXT: whether it is one of the text's lines
listed() { [[ $'\n'$2$'\n' == *$'\n'"$1"$'\n'* ]]; }
there() { listed "daemonset.apps/$1" "$daemonsets"; }

said='' changed=''
ended() {
    (($? == 0)) || [[ -n $said ]] ||
        say "failed, as the lines above say: ${changed:-nothing was changed}${changed:+; correct that and run this again}"
}
trap ended EXIT
# end WORDS: end it, with that as its last line
end() { said=1; say "$*"; exit 1; }

daemonsets=$(ours get daemonsets --output name)
# the agents' pods, of every namespace and DaemonSet; a line of each: NAMESPACE/NAME,NODE,KIND/NAME of its owner
fields='{range .items[*]}{.metadata.namespace}/{.metadata.name},{.spec.nodeName},'
fields+='{.metadata.ownerReferences[*].kind}/{.metadata.ownerReferences[*].name}{"\n"}{end}'
pods=$(kubectl get pods --all-namespaces --selector app.kubernetes.io/name=userspace-cni \
    --field-selector status.phase!=Failed,status.phase!=Succeeded --output "jsonpath=$fields")
kinds=$(kubectl api-resources --output name)
agents=() foreign=()
while IFS=, read -r pod node owner; do
    if [[ $pod == "$namespace"/* && $owner == DaemonSet/userspace-cni ]] && { there userspace-cni || there userspace-cni-uninstall; }; then
        agents+=("pod/${pod#*/},$node")
    elif [[ -n $pod ]]; then
        [[ $owner != / ]] || owner="no owner"
        foreign+=("$pod, node ${node:-not known yet}, of $owner")
    fi
done <<<"$pods"
if ((${#foreign[@]} > 0)); then
    say "these pods have the label of agents, and are not of a DaemonSet userspace-cni that is in the namespace $namespace:"
    for pod in "${foreign[@]}"; do say "$pod"; done
    end "nothing was changed: deploy the DaemonSet again where it has gone, or delete the pods with what makes them"
fi
if there userspace-cni; then
    image=$(template 'containers[0].image')
    bin=$(template 'volumes[?(@.name=="bin")].hostPath.path')
    settings=$(template 'volumes[?(@.name=="settings")].configMap.name')
    # agents of an earlier version have none, and put no profile on their nodes
    profiles=$(ours get daemonset userspace-cni --output 'jsonpath={.spec.template.spec.volumes[?(@.name=="seccomp")].hostPath.path}')
    seccomp=/seccomp/d
    [[ -z $profiles ]] || seccomp="s|PROFILES|$profiles|"
    if ((${#force[@]} == 0)); then
        nodes=$(ours get daemonset userspace-cni --output 'jsonpath={.status.desiredNumberScheduled}')
        # an agent that is meant for no node has asked none of those that are there, where one may have been before
        [[ $nodes != 0 ]] || there_are=$(kubectl get nodes --selector kubernetes.io/os=linux --output name)
        [[ -z ${there_are-} ]] || end "nothing was changed: the DaemonSet userspace-cni is meant for none of the cluster's nodes, so \
that none can be asked: see its nodeSelector and affinity, or give --force"
        asked=$'\n' answers=0 attached=0
        for agent in ${agents[@]+"${agents[@]}"}; do
            pod=${agent%,*} node=${agent##*,}
            # a node with two counts once
            listed "$node" "$asked" || { asked+=$node$'\n'; answers=$((answers + 1)); }
            nothing_on "$pod" && continue
            attached=1
            say "on the node of $pod:"
            told=$(in_agent "$pod" list) || [[ -n $told ]] ||
                say "its agent cannot be asked: bring its node back, or delete the Node object of one that stays away"
            [[ -z $told ]] || printf '%s\n' "$told"
        done
        ((attached == 0)) || end "nothing was changed: these pods have to go first; --force takes the network from running ones"
        [[ $nodes =~ ^[0-9]+$ ]] && ((answers >= nodes)) ||
            end "nothing was changed: nodes whose agents could be asked: $answers, nodes: ${nodes:-unknown}; wait for the others, or give --force"
    fi
    # before the agents go: until they have, each node waits. So a second run finds the image in one place or the other
    say "sending uninstall to every node"
    changed="the nodes may have been sent uninstall"
    sed -e "s|IMAGE|$image|" -e "s|BIN|$bin|" -e "s|SETTINGS|$settings|" -e "s|, \"FORCE\"|${force:+, --force}|" \
        -e "$seccomp" \
        "$here/uninstall.yaml" | kubectl apply --filename -
    say "ending the agents"
    ours delete daemonset userspace-cni
fi
if there userspace-cni || there userspace-cni-uninstall; then
    say "waiting for the nodes, up to $seconds s"
    ours rollout status daemonset/userspace-cni-uninstall --timeout "${seconds}s" || {
        say "these nodes are not done:"
        ours get pods --selector app.kubernetes.io/name=userspace-cni-uninstall --output wide >&2
        pods=$(ours get pods --selector app.kubernetes.io/name=userspace-cni-uninstall --field-selector status.phase=Pending --output name)
        for pod in $pods; do
            say "$pod:"
            ours logs "$pod" --container uninstall --tail 20 >&2 || true
        done
        end "correct that and run this again; a node that will not come back is left out once its Node object is deleted"
    }
    changed="the nodes are done, and what is left is in the cluster"
    # with its pods, because the namespace's deletion looks for pods less and less often: a minute is lost to that
    ours delete daemonset userspace-cni-uninstall --cascade=foreground
    nodes_done="nothing of userspace-cni is left"
fi
say "removing what is left in the cluster"
changed="some of it is left in the cluster"
for kind in validatingadmissionpolicybindings.admissionregistration.k8s.io validatingadmissionpolicies.admissionregistration.k8s.io \
    securitycontextconstraints.security.openshift.io clusterrolebindings.rbac.authorization.k8s.io clusterroles.rbac.authorization.k8s.io; do
    ! listed "$kind" "$kinds" || kubectl delete "$kind" \
        userspace-cni userspace-cni-controller userspace-cni-report userspace-cni-logical-ports userspace-cni-dra \
        userspace-cni-controller-dra --ignore-not-found
done
! listed deviceclasses.resource.k8s.io "$kinds" ||
    kubectl delete deviceclasses.resource.k8s.io --selector app.kubernetes.io/name=userspace-cni --ignore-not-found
# with their objects; not while an agent runs, for which the end of an object is the end of a spec
kubectl delete customresourcedefinitions --selector app.kubernetes.io/name=userspace-cni --ignore-not-found
kubectl delete namespace "$namespace" --ignore-not-found
say "done: ${nodes_done:-nothing of userspace-cni is left in the cluster; it had no agents, so no node was looked at}"
