# To be sourced by scripts whose work takes long: says on stderr which part of it begins, and how many seconds the one before took.
#
#   stage NAME      this part begins, and the one before is over
#   stage_over      the last one is over
#
# Who sources it is named in each line; a script that ends amid a stage says in which, and after how long.

STAGE='' STAGE_BEGAN=0 STAGES_OF=$(basename "$0" .sh)

stage_over() {
    [[ -z $STAGE ]] || echo "$STAGES_OF: $STAGE: done in $((SECONDS - STAGE_BEGAN)) s" >&2
    STAGE=''
}

stage() {
    stage_over
    STAGE=$1 STAGE_BEGAN=$SECONDS
    echo "$STAGES_OF: $STAGE ..." >&2
}

trap '[[ -z $STAGE ]] || echo "$STAGES_OF: $STAGE: ended after $((SECONDS - STAGE_BEGAN)) s, unfinished" >&2' EXIT
