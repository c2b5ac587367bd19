# The steps of .ci/run beside the tests: format, lints, documentation, each feature alone, and others. Sourced by
# .ci/run.

formatted() {
    component fmt rustfmt
    cargo fmt --all --check
}

lint() {
    component clippy clippy
    cargo clippy --workspace --all-targets --all-features -- -D warnings
}

features() {
    cargo metadata --no-deps --format-version 1 |
        sed -n 's/.*"name":"tower-ratelimit","version"//p' |
        grep -o '"features":{[^}]*}' | sed -n 1p |
        grep -o '"[^"]*":\[' | grep -v '^"default":' | tr -d '":['
}

# compiles ARGUMENT..: checks the library with these features, and fails if there is a warning. `--lib`: the dependencies
# of the tests would turn features on. No `-D warnings`: as a setting of the compiler it would compile the dependencies
# again.
compiles() {
    local output
    printf -- '--- cargo check --lib %s\n' "$*"
    output=$(cargo check --quiet --lib "$@" 2>&1) || {
        printf '%s\n' "$output" >&2
        return 1
    }
    if [ -n "$output" ]; then
        printf '%s\nthese warnings are errors; mend them\n' "$output" >&2
        return 1
    fi
}

# The steps "Lints" and "Package and its documentation" compile the library with all features.
each_feature() {
    local names feature
    names=$(features)
    compiles
    compiles --no-default-features
    for feature in $names; do
        compiles --no-default-features --features "$feature"
    done
}

# Fails if a file names a package registry or a path of one machine.
impersonal() {
    local found=0
    grep -rnIE --exclude-dir=.git --exclude=.git --exclude-dir=target --exclude=Cargo.lock \
        -e '(crates|pypi|npmjs|docker|ghcr|quay)\.(io|org|com)' \
        -e '(^|[^[:alnum:]_.-])/(work|root|home|Users)/[[:alnum:]._]' . || found=$?
    case $found in
        0) printf 'these lines name a registry or a path of one machine; remove them\n' >&2 && return 1 ;;
        1) printf 'nothing found\n' ;;
        *) return "$found" ;;
    esac
}

# Fails if a relative link in a Markdown file has no target.
linked() {
    local text target broken=0
    for text in *.md benches/*.md docs/*.md simulate/*.md; do
        while read -r target; do
            if [ ! -e "$(dirname "$text")/${target%%#*}" ]; then
                printf '%s: broken link: %s does not exist\n' "$text" "$target" >&2
                broken=1
            fi
        done < <(
            grep -oE '\]\([^)#:][^):]*\)' "$text" | sed 's/^](//; s/)$//'
            sed -nE 's/^\[[^]]+\]: ([^#:][^:]*)$/\1/p' "$text"
        )
    done
    return "$broken"
}

texts() {
    need python3 python3
    scripts/texts
}

# The benchmarks are a separate package. This step builds them only: times mean nothing on a busy machine.
benchmarks() {
    component fmt rustfmt
    component clippy clippy
    cargo fmt --manifest-path benches/Cargo.toml --check
    CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}" \
        cargo clippy --manifest-path benches/Cargo.toml --all-targets -- -D warnings
}

# The fuzz targets are a separate package. This step checks them only, with the setting of cargo-fuzz: the tests run the
# same checks on random input.
fuzz_targets() {
    component fmt rustfmt
    component clippy clippy
    cargo fmt --manifest-path fuzz/Cargo.toml --check
    CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}" RUSTFLAGS="${RUSTFLAGS:-} --cfg fuzzing" \
        cargo clippy --manifest-path fuzz/Cargo.toml --no-default-features -- -D warnings
}

# The model of the lease protocol is a separate package. It fails if the protocol violates the bound, or if a mistake
# does not.
lease_model() {
    component fmt rustfmt
    component clippy clippy
    cargo fmt --manifest-path model/Cargo.toml --check
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/model"
    cargo clippy --release --manifest-path model/Cargo.toml -- -D warnings
    cargo run --release --manifest-path model/Cargo.toml
}

# The tests that depend on the server's version: scripts, commands, expiry, permissions, errors. Left out are the slow
# tests of load and fail-over, and most differential tests.
readonly on_other_servers=(
    addresses:: circuit_breaker:: clock:: differential::memory_and_redis_agree:: exactness:: keys:: lua:: order:: ttl::
)

# Cluster and fail-over: the slow suites, once, on the server that differs most.
readonly on_valkey=(cluster:: fail_over::)

# Fails if a filter matches no test of Redis: cargo reports success for it.
each_filter_matches() {
    local tests filter status=0
    tests=$(redis_tests --list)
    for filter; do
        if ! grep -q "^$filter.*: test\$" <<<"$tests"; then
            printf 'no test has the prefix %s; change the filter in .ci/checks.bash\n' "$filter" >&2
            status=1
        fi
    done
    return "$status"
}

redis_tests_on_other_servers() {
    local servers name server status=0
    each_filter_matches "${on_other_servers[@]}" "${on_valkey[@]}" || return 1
    servers=$(scripts/redis-servers)
    REDIS_CELL=$(scripts/redis-cell)
    export REDIS_CELL
    while read -r name server; do
        printf -- '--- %s\n' "$name"
        local tests=("${on_other_servers[@]}")
        if [[ $name == *alkey* ]]; then tests+=("${on_valkey[@]}"); fi
        REDIS_SERVER=$server redis_tests "${tests[@]}" </dev/null || status=1
    done <<<"$servers"
    return "$status"
}

# `scripts/test` runs 200 of these seeds.
simulated_client() {
    SIMULATION_SEEDS=5000 cargo test --workspace --all-features --lib simulation_tests::seeds
}

# check NAME COMMAND..: a step that only computes. Tests have priority over it. Its build output is in another folder,
# because cargo locks the folder: such a step would stop the tests.
check() {
    step "$1" checked "${@:2}"
}

checked() {
    export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/checks
    renice -n 10 $BASHPID >/dev/null
    "$@"
}

server_steps() {
    step "Redis tests on other servers" redis_tests_on_other_servers
    step "Clients of other projects" scripts/foreign-clients
    step "nginx and Caddy" scripts/gateways
    step "A limiter in PostgreSQL" scripts/postgres
    step "The dashboard in a browser, and its alert rules" scripts/dashboard
    step "The playground in a browser" scripts/playground
}

check_steps() {
    check "Format" formatted
    check "Links" linked
    check "Texts" texts
    check "No registries, no paths of one machine" impersonal
    # First the steps that mostly use one processor: at the end, nothing else runs.
    check "Each feature alone" each_feature
    check "Lease model" lease_model
    check "Lints" lint
    check "Package and its documentation" scripts/package
    check "Benchmarks" benchmarks
    check "Fuzz targets" fuzz_targets
    check "Licences, oldest versions, foreign types" scripts/supply licences versions foreign
}
