# Runs steps in queues: the steps of a queue run one after another, and the queues at the same time. Sourced by
# scripts/test. Needs `set -euo pipefail`.
#
# Each step's output is printed when the step ends, so that outputs do not mix. A failed step stops no other step.

steps=()          # The names of the declared steps.
step_queues=()    # For each step its queue.
step_commands=()  # For each step its command, quoted for `eval`.
declare -A begins_after=()  # For a queue the step that it waits for.
times=()          # A line for each step that has run.
failed=()         # The names of the failed steps.

# step QUEUE NAME COMMAND..: declares a step.
step() {
    step_queues+=("$1")
    steps+=("$2")
    shift 2
    step_commands+=("$(printf '%q ' "$@")")
}

# begin_after QUEUE NAME: the queue begins when the step of this name has ended, failed or not.
begin_after() {
    begins_after[$1]=$2
}

# Runs a command with its output in `$logs/INDEX`, and writes `$logs/INDEX.result`: the status, the seconds, and the
# processor time of all its processes, in the user and in the system mode.
run_step() {
    local status TIMEFORMAT='%0R %0U %0S'
    {
        time {
            # A subshell outside of a condition: inside a condition bash ignores `set -e`.
            (set -e && eval "${step_commands[$1]}") >"$logs/$1" 2>&1 </dev/null
            status=$?
        }
    } 2>"$logs/$1.time"
    printf '%s %s\n' "$status" "$(cat "$logs/$1.time")" >"$logs/$1.new"
    mv "$logs/$1.new" "$logs/$1.result"
}

run_queue() {
    local index
    set +e
    for index in "${!steps[@]}"; do
        if [ "${steps[$index]}" = "${begins_after[$1]:-}" ]; then
            until [ -e "$logs/$index.result" ]; do sleep 0.1; done
        fi
    done
    for index in "${!steps[@]}"; do
        if [ "${step_queues[$index]}" = "$1" ]; then
            run_step "$index"
            printf '%s\n' "$index" >&3
        fi
    done
}

# Prints the output of a step that has ended.
report_step() {
    local name=${steps[$1]} status seconds user system
    read -r status seconds user system <"$logs/$1.result"
    printf '\n=== %s\n' "$name"
    cat "$logs/$1"
    if [ "$status" = 0 ]; then
        printf '=== %s: passed in %d s\n' "$name" "$seconds"
    else
        printf '=== %s: FAILED after %d s\n' "$name" "$seconds"
        failed+=("$name")
    fi
    times+=("$(printf '%5d s %5d s  %s' "$seconds" $((user + system)) "$name")")
}

# Runs the declared steps, and waits for all of them.
run_steps() {
    local queue index left
    logs=$(mktemp -d)
    mkfifo "$logs/ended"
    exec 3<>"$logs/ended"
    # Bash starts the queues with SIGINT ignored.
    trap 'trap "" TERM; kill 0; exit 130' INT
    for queue in $(printf '%s\n' "${step_queues[@]}" | sort -u); do
        run_queue "$queue" &
    done
    for ((left = ${#steps[@]}; left > 0; left--)); do
        read -r index <&3
        report_step "$index"
    done
    wait
    exec 3>&-
    rm -rf "$logs"
}

# Prints the time of each step: real time, and processor time of all processors.
print_times() {
    printf '\n=== Times: real, of processors\n'
    printf '%s\n' "${times[@]}"
}
