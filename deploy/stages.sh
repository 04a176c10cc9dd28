# For scripts whose work takes long: prints on stderr which stage begins, and how many seconds the last one took.
#
#   stage NAME      begin this stage, and end the last one
#   stage_over      end the last stage
#
# Each line names the script that sources this file. A script that ends during a stage prints which one, and after how long.

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
