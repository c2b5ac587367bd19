# Runs steps, and reports each one when it ends. Sourced by scripts/test and .ci/run, which need `set -euo pipefail`.
#
# A failed step stops no other step. Functions that call `step` can run at the same time, in the background: outputs do not
# mix.

results=$(mktemp -d)
# Bash starts background functions with SIGINT ignored.
trap 'trap "" TERM; kill 0; exit 130' INT

# step NAME COMMAND..: runs a command, and prints its output and its result. Notes its real time and the processor time of
# all its processes.
step() {
    local name=$1 log status seconds user system TIMEFORMAT='%0R %0U %0S'
    shift
    log=$(mktemp "$results/log.XXXXXX")
    set +e
    # Subshells: the outer one has no other children, whose times would count when they end meanwhile. Outside of a
    # condition, because inside of one bash ignores `set -e`.
    (time { (set -e && "$@") >"$log" 2>&1 </dev/null; }) 2>"$log.time"
    status=$?
    set -e
    read -r seconds user system <"$log.time"
    {
        flock 9
        printf '\n=== %s\n' "$name"
        cat "$log"
        if [ "$status" = 0 ]; then
            printf '=== %s: passed in %d s\n' "$name" "$seconds"
        else
            printf '=== %s: FAILED after %d s\n' "$name" "$seconds"
            printf '  %s\n' "$name" >>"$results/failed"
        fi
        printf '%5d s %5d s  %s\n' "$seconds" $((user + system)) "$name" >>"$results/times"
    } 9>"$results/lock"
}

# finish NAME: prints the times of all steps, and fails if a step has failed.
finish() {
    local failed=
    printf '\n=== Times: real, of processors\n'
    cat "$results/times"
    [ ! -e "$results/failed" ] || failed=$(cat "$results/failed")
    rm -rf "$results"
    if [ -n "$failed" ]; then
        printf '\n%s: these steps failed, see their output above:\n%s\n' "$1" "$failed" >&2
        return 1
    fi
    printf '\n%s: all steps passed.\n' "$1"
}
