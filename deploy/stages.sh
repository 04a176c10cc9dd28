# For scripts whose work takes long: prints on stderr which stage begins, and how many seconds the last one took.
#
#   stage NAME      begin this stage, and end the last one
#   stage_over      end the last stage
#   followed READ COMMAND...    run the command, and print what it does meanwhile: it writes lines to descriptor 3, and for each of them
#                               READ LINE, a function, may set `text`. A terminal shows the newest text all the time, with the seconds
#                               so far; elsewhere a line is printed every STAGE_EVERY_S seconds, by default ten.
#
# Each line names the script that sources this file. A script that ends during a stage prints which one, and after how long.

STAGE='' STAGE_BEGAN=0 STAGES_OF=$(basename "$0" .sh) STAGE_EVERY_S=${STAGE_EVERY_S:-10}

stage_over() {
    [[ -z $STAGE ]] || echo "$STAGES_OF: $STAGE: done in $((SECONDS - STAGE_BEGAN)) s" >&2
    STAGE=''
}

stage() {
    stage_over
    STAGE=$1 STAGE_BEGAN=$SECONDS
    echo "$STAGES_OF: $STAGE ..." >&2
}

followed() {
    local read=$1 status=0 to follower screen=
    shift
    [[ ! -t 2 || ${TERM:-dumb} == dumb ]] || screen=yes
    exec {to}> >(follow "$read" "$screen" 8<&- 9<&-)
    follower=$!
    "$@" 3>&"$to" || status=$?
    exec {to}>&-
    kill "$follower" 2>/dev/null || :   # what the command left running may hold the descriptor
    wait "$follower" 2>/dev/null || :
    [[ -z $screen ]] || printf '\r\033[K' >&2
    return "$status"
}

follow() {
    local text='' line status printed=$SECONDS began=$SECONDS
    while :; do
        status=0
        IFS= read -r -t 1 line || status=$?
        ((status == 0 || status > 128)) || break   # more than 128: none came in a second
        ((status)) || "$1" "$line"
        [[ -n $text ]] || continue
        if [[ -n $2 ]]; then
            printf '\r\033[K%s: %.100s (%s s so far)' "$STAGES_OF" "$text" "$((SECONDS - began))" >&2
        elif ((SECONDS - printed >= STAGE_EVERY_S)); then
            echo "$STAGES_OF: $text ($((SECONDS - began)) s so far)" >&2
            printed=$SECONDS
        fi
    done
    trap - EXIT
}

trap '[[ -z $STAGE ]] || echo "$STAGES_OF: $STAGE: ended after $((SECONDS - STAGE_BEGAN)) s, unfinished" >&2' EXIT
