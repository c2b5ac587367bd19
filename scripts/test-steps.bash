# The steps that run the tests. Sourced by scripts/test and .ci/run, after scripts/steps.bash.
. scripts/tools.bash

need_tools() {
    need_rust && need cc gcc && need redis-server redis-server && need lua5.4 lua5.4
}

# The examples that tests of guarantees run are always built. `.ci/run` sets `all_examples`, builds the others, and runs their
# tests: they take a sixth of the processor time of the build, and `openapi` needs dependencies of its own.
examples=(--example cluster --example lease --example redis --example reservation_id)

# The packages whose tests run. The oracle has no tests, and `envoy_rls` and `postgres` have scripts of their own.
tested=(--workspace --exclude envoy_rls --exclude postgres --exclude tower-ratelimit-oracle --all-features)

# The names of the test binaries, and the targets of all but `redis`, as arguments of cargo. `example` is the name of the
# tests of each package below `examples`.
binaries=() without_redis=(--lib --test example)
for main in tests/*/main.rs tests/*/*/main.rs simulate/tests/*/main.rs; do
    binary=$(basename "$(dirname "$main")")
    binaries+=("$binary")
    case $binary in
        redis) ;;
        examples) [ -z "${all_examples:-}" ] || without_redis+=(--test examples) ;;
        *) without_redis+=(--test "$binary") ;;
    esac
done

if [ -n "${all_examples:-}" ]; then
    examples=(--examples)
else
    tested+=(--exclude=example-{client,gate,observe,openapi,reqwest,routes,tonic})
fi
readonly examples tested

build_tests() {
    # Some tests run examples. Not all targets of `cargo test`: the programs have no unit tests.
    cargo build "${tested[@]}" "${examples[@]}"
    cargo test "${tested[@]}" --no-run "${without_redis[@]}" --test redis
}

tests_without_redis() {
    cargo test "${tested[@]}" --no-fail-fast "${without_redis[@]}"
}

documentation_tests() {
    cargo test "${tested[@]}" --doc
}

# With the same packages as all steps: otherwise the features of some dependencies differ, so all would be built twice.
# More tests at the same time than there are processors, because these tests mostly wait.
redis_tests() {
    RUST_TEST_THREADS=${RUST_TEST_THREADS:-4} cargo test "${tested[@]}" --test redis -- "$@"
}

# The tests of `RedisCell` load this module.
all_redis_tests() {
    REDIS_CELL=$(scripts/redis-cell)
    export REDIS_CELL
    redis_tests
}

# loom replaces the atomics and runs every order of their accesses. The profile optimizes, because there are very many
# orders. tokio and axum do not build with `cfg(loom)`. Tests with deadlines have priority over the models.
#
# A process for each model: loom maps a stack for each thread of each order, and in a process with several models each
# change of the mappings waits for the other threads. All models in one process took 300 s of processor time, these 128.
model_checks() {
    local program
    program=$(CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" \
        nice cargo test --lib --profile loom --no-default-features --no-run --message-format json-render-diagnostics |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
    "$program" loom --list | sed -n 's/: test$//p' >"$results/models"
    printf '%d models\n' "$(wc -l <"$results/models")"
    [ -s "$results/models" ]
    nice xargs --arg-file "$results/models" --max-procs "$(nproc)" --replace={} \
        bash -c 'output=$("$0" --exact "$1" 2>&1) || { printf "%s\n" "$output" >&2; exit 1; }' "$program" {}
}

# The steps of scripts/test and .ci/run. Those that wait for servers run beside those that compute. The models have a build
# folder of their own, so they begin beside the build of the tests, and use the processors that it leaves idle.

model_steps() {
    step "Model checks" model_checks
}

build_steps() {
    step "Tools of the tests" need_tools
    step "The Redis module redis-cell" scripts/redis-cell
    step "Build of the tests" build_tests
}

test_steps() {
    step "Tests without Redis" tests_without_redis
    step "Documentation tests" documentation_tests
}

redis_steps() {
    step "Redis tests" all_redis_tests
}
