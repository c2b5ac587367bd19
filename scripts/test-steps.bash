# The steps that run the tests. Sourced by scripts/test, after scripts/steps.bash.

# need COMMAND PACKAGE: installs the Debian package if the command is missing.
need() {
    local command=$1 package=$2
    if command -v "$command" >/dev/null; then
        return
    fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        printf '%s is missing; install it (Debian: apt-get install -y %s)\n' "$command" "$package" >&2
        return 1
    fi
    printf '%s is missing: installing %s\n' "$command" "$package"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package"
}

# Not by `need`: the Rust of distributions is often too old.
need_rust() {
    local required present
    if ! command -v cargo >/dev/null; then
        printf 'cargo is missing; install Rust: https://rustup.rs\n' >&2
        return 1
    fi
    required=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    present=$(rustc --version | cut -d ' ' -f 2)
    if [ "$(printf '%s\n' "$required" "$present" | sort -V | sed -n 1p)" != "$required" ]; then
        printf 'Rust %s is too old: %s or later is required; run rustup update stable\n' "$present" "$required" >&2
        return 1
    fi
}

need_tools() {
    need_rust && need cc gcc && need redis-server redis-server && need lua5.4 lua5.4
}

# The targets of the test binaries but `redis`, as arguments of cargo.
without_redis=(--lib)
for main in tests/*/main.rs simulate/tests/*/main.rs; do
    binary=$(basename "$(dirname "$main")")
    if [ "$binary" != redis ]; then
        without_redis+=(--test "$binary")
    fi
done

build_tests() {
    # With the examples, which some tests run.
    cargo test --workspace --all-features --no-run
}

tests_without_redis() {
    cargo test --workspace --all-features --no-fail-fast "${without_redis[@]}"
}

documentation_tests() {
    cargo test --workspace --all-features --doc
}

# More tests at the same time than there are processors, because these tests mostly wait.
redis_tests() {
    RUST_TEST_THREADS=${RUST_TEST_THREADS:-4} cargo test --all-features --test redis -- "$@"
}

# Without the module the tests of `RedisCell` fail with a message.
with_redis_cell() {
    local module
    if module=$(scripts/redis-cell); then
        export REDIS_CELL=$module
    fi
}

all_redis_tests() {
    with_redis_cell
    redis_tests
}

# The tests that depend on the server's version: scripts, commands, expiry, permissions, errors. Left out are the slow
# tests of load and fail-over, and most differential tests.
readonly on_other_servers=(
    addresses:: basics:: clock:: conformance:: differential::several exactness:: keys:: lua:: order:: ttl::
)

redis_tests_on_other_servers() {
    with_redis_cell
    local name server status=0
    while read -r name server; do
        printf -- '--- %s\n' "$name"
        if [ -z "${server:-}" ]; then
            printf 'NOT CHECKED: see the messages above\n'
        else
            REDIS_SERVER=$server redis_tests "${on_other_servers[@]}" </dev/null || status=1
        fi
    done < <(scripts/redis-servers)
    return "$status"
}

# loom replaces the atomics and runs every order of their accesses. `--release`, because there are very many orders.
# tokio and axum do not build with `cfg(loom)`.
model_checks() {
    CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" \
        cargo test --lib --release --no-default-features loom
}

# Declares the test steps. The steps that wait for servers run beside those that compute.
test_steps() {
    step tests "Tools of the tests" need_tools
    step tests "The Redis module redis-cell" scripts/redis-cell
    step tests "Build of the tests" build_tests
    step tests "Tests without Redis" tests_without_redis
    step tests "Documentation tests" documentation_tests
    step tests "Model checks" model_checks
    begin_after servers "Build of the tests"
    step servers "Redis tests" all_redis_tests
    step servers "Redis tests on other servers" redis_tests_on_other_servers
}
