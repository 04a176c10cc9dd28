#!/bin/bash
# What containers of OVN's databases run, DATABASE being nb or sb:
#
#     database.sh serve DATABASE     make or join its cluster, where this member has no file of it yet; then be its ovsdb-server
#     database.sh ready DATABASE     whether this member is in the cluster, and the cluster has a leader
#     database.sh upgrade            give both databases the schemas of this image, where theirs are older; ovn-northd needs them
#
# USERSPACE_CNI_OVN_NB and _SB have the members' addresses, as their clients have them; ADDRESS is this machine's.
#
# A cluster must be made only once: a second one would serve some of the clients, and nothing of the first would be in it. So only the
# member that is named first makes it, and only when each of the others has answered that it has no file either.
set -euo pipefail

data=/var/lib/ovn run=${OVN_RUNDIR:-/run/ovn} schemas=/usr/share/ovn

say() { printf 'database.sh: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# choose DATABASE: sets name, members, file and control
choose() {
    case ${1-} in
        nb) name=OVN_Northbound remotes=${USERSPACE_CNI_OVN_NB-} ;;
        sb) name=OVN_Southbound remotes=${USERSPACE_CNI_OVN_SB-} ;;
        *) fail "\"${1-}\" is no database: it is nb or sb" ;;
    esac
    file=$data/ovn$1_db.db control=$run/ovn$1_db.ctl schema=$schemas/ovn-$1.ovsschema
    IFS=, read -ra members <<<"$remotes"
    ((${#members[@]})) || fail "USERSPACE_CNI_OVN_${1^^} has no address"
}

# member_of ADDRESS: the member among `members` that has this address
member_of() {
    local member host=$1
    [[ $host != *:* ]] || host="[$host]" # of IPv6
    for member in "${members[@]}"; do
        [[ $member != *:"$host":* ]] || { printf '%s' "$member"; return; }
    done
    fail "this machine's address is $1, and the members are $remotes: label only their nodes, or name this one"
}

# raft MEMBER: where it speaks to the other members: two ports above
raft() { printf '%s:%s' "${1%:*}" $((${1##*:} + 2)); }

# cluster_of MEMBER: the cluster that it says it is in, zeros while it joins one; false where it does not answer
cluster_of() {
    local rows
    rows=$(ovsdb-client --timeout=5 --format=csv --no-headings dump "$1" _Server Database cid) || return
    grep -Ex '[0-9a-f-]{36}' <<<"$rows" || fail "$1 has no database that can be of a cluster"
}

# put_in_place: the file is whole before it has its name
put_in_place() {
    mv "$file.new" "$file"
    rm -f "$data/.${file##*/}.new.~lock~"
}

# make_file: join the cluster, or make it
make_file() {
    local others=() each cluster none=00000000-0000-0000-0000-000000000000 unknown told=''
    for each in "${members[@]}"; do [[ $each == "$me" ]] || others+=("$each"); done
    rm -f "$file.new" # of one that was killed
    if [[ $me == "${members[0]}" ]]; then
        while :; do
            unknown=''
            for each in ${others[@]+"${others[@]}"}; do
                cluster=$(cluster_of "$each" 2>/dev/null) || { unknown=$each; continue; }
                [[ $cluster == "$none" ]] || break 2
            done
            if [[ -z $unknown ]]; then
                say "making a cluster of $name"
                ovsdb-tool create-cluster "$file.new" "$schema" "$(raft "$me")"
                put_in_place
                return
            fi
            [[ $unknown == "$told" ]] ||
                say "there is no file of $name here, and $unknown, which may have one, does not answer: waiting for it"
            told=$unknown
            sleep 2
        done
    fi
    say "joining the cluster of $name"
    for each in "${!others[@]}"; do others[each]=$(raft "${others[each]}"); done
    ovsdb-tool join-cluster "$file.new" "$name" "$(raft "$me")" "${others[@]}"
    put_in_place
}

trap exit TERM # as the first process of a container it would not end
case ${1-} in
    serve)
        choose "${2-}"
        me=$(member_of "$ADDRESS")
        [[ -e $file ]] || make_file
        ! ovsdb-tool db-is-standalone "$file" ||
            fail "$file is a server's alone, as a package makes it, and no member's: stop that server, and move the file away"
        host=${me#*:}
        exec ovsdb-server -vconsole:info -vsyslog:off -vfile:off --unixctl="$control" \
            --remote="p${me%%:*}:${me##*:}:${host%:*}" "$file"
        ;;
    ready)
        choose "${2-}"
        status=$(ovs-appctl --timeout=5 --target="$control" cluster/status "$name")
        [[ $status == *"Status: cluster member"* && $status != *"Leader: unknown"* ]] || fail "$status"
        ;;
    upgrade)
        for each in nb sb; do
            choose "$each"
            found=$(ovsdb-client --timeout=30 get-schema-version "$remotes" "$name")
            wanted=$(ovsdb-tool schema-version "$schema")
            if ovsdb-tool compare-versions "$found" "<" "$wanted"; then
                say "$name: schema $found becomes $wanted"
                ovsdb-client --timeout=60 convert "$remotes" "$schema"
            fi
        done
        ;;
    *) fail "\"${1-}\" is no command: serve, ready or upgrade" ;;
esac
