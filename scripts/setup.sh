#!/usr/bin/env bash
# Makes .venv what requirements/lock.txt says, after checking Python, Java, Maven and make.
#
# Root gets missing programs by apt; anybody else gets one message that names them. A C compiler is not needed, but
# without one the extensions are left out (docs/adr/0047, docs/adr/0055). If the files that decide the
# environment have not changed since the last complete set-up, nothing is done. Two set-ups at once take turns.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv
readonly MARKER=$VENV/.set-up
readonly SECONDS_FILE=$VENV/.set-up-seconds
readonly DECISIVE=(requirements/lock.txt requirements/uv.txt pyproject.toml statestore/testing/kafka.pom.xml scripts/setup.sh
    statestore/*/*.c statestore/kafka/wire/*.[ch])
readonly JAVA_LEAST=17

say() { printf 'set-up: %s\n' "$*"; }

die() {
    printf 'set-up: %s\n' "$@" >&2
    exit 1
}

main() {
    mkdir -p .scratch
    exec 9>.scratch/set-up.lock
    if command -v flock >/dev/null; then flock 9; fi
    local began=$SECONDS
    require_programs
    offer_compiler
    offer_spin
    local wanted
    wanted=$(fingerprint)
    if [[ -x $VENV/bin/python && $(cat "$MARKER" 2>/dev/null) == "$wanted" ]]; then
        say "nothing to do"
        return
    fi
    rm -f "$MARKER"
    install_environment
    echo $((SECONDS - began)) >"$SECONDS_FILE"
    echo "$wanted" >"$MARKER"
    say "took $((SECONDS - began)) s"
}

require_programs() {
    local missing
    missing=$(missing_programs)
    if [[ -n $missing && $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        # shellcheck disable=SC2046 # one package per word
        apt_install $(packages_of "$missing")
        hash -r
        missing=$(missing_programs)
    fi
    if [[ -n $missing ]]; then
        # shellcheck disable=SC2086 # one name per word
        die "missing: $(echo $missing)" \
            "on Debian 12, as root: apt-get install $(packages_of "$missing")" \
            "elsewhere: put Python 3.11 (with venv), a JDK of version $JAVA_LEAST or later, Maven and make on the PATH;" \
            "PYTHON=/path/to/python3.11 and JAVA_HOME name others than the PATH does"
    fi
}

missing_programs() {
    find_python >/dev/null || echo python3.11
    (($(java_version) >= JAVA_LEAST)) || echo "java-$JAVA_LEAST"
    command -v mvn >/dev/null || echo maven
    command -v make >/dev/null || echo make
}

offer_compiler() {
    if ! can_compile && [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        (apt_install gcc libc6-dev python3.11-dev) || true
        hash -r
    fi
    can_compile || say "no C compiler, or no Python.h (Debian: gcc, python3.11-dev): Kafka is read through librdkafka only, and records take longer"
}

# It searches the model of the commit protocol (docs/proof.md).
offer_spin() {
    if ! command -v spin >/dev/null && [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        (apt_install spin) || true
        hash -r
    fi
    command -v spin >/dev/null || say "no SPIN (Debian: spin): tests/model is skipped"
}

can_compile() {
    command -v cc >/dev/null &&
        "$(find_python)" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

packages_of() {
    local name packages=()
    for name in $1; do
        case $name in
            python3.11) packages+=(python3.11 python3.11-venv) ;;
            java-*) packages+=("openjdk-$JAVA_LEAST-jdk-headless") ;;
            *) packages+=("$name") ;;
        esac
    done
    echo "${packages[*]}"
}

apt_install() {
    say "installing $*"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"; } </dev/null >.scratch/apt.log 2>&1 ||
        die "apt-get could not install $*:" "$(tail -5 .scratch/apt.log)"
}

# The first Python 3.11 that can make a virtual environment.
find_python() {
    local candidate
    for candidate in "${PYTHON:-python3.11}" python3.11 python3; do
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

java_version() {
    local version
    version=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' || true)
    echo "${version:-0}"
}

# The folder counts: a virtual environment cannot be moved.
fingerprint() {
    { pwd && "$(find_python)" --version && { can_compile && echo compiled || echo plain; } && cat "${DECISIVE[@]}"; } | sha256sum | cut -d' ' -f1
}

install_environment() {
    if [[ $("$VENV/bin/python" --version 2>/dev/null) != "$("$(find_python)" --version)" ]]; then
        say "new environment in $VENV"
        "$(find_python)" -m venv --clear "$VENV"
    fi
    say "installing $(grep -c '==' requirements/lock.txt) locked packages (minutes when nothing is cached)"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
    use_pip_configuration
    # Compiled side by side here, not by the first command that imports it.
    uv_pip sync --compile-bytecode --require-hashes --build-constraints requirements/lock.txt requirements/lock.txt
    uv_pip install --no-deps --no-build-isolation -e .
    say "fetching Kafka's jars"
    "$VENV/bin/python" -c 'from statestore.testing.kafka_jars import kafka_libs; kafka_libs()'
    "$VENV/bin/python" -c 'from statestore.testing.class_archive import make_class_archive; make_class_archive()'
    say "fetching the schema registry of the tests"
    "$VENV/bin/python" -c 'from tests.schema_registry_rig import registry_home; registry_home()'
}

uv_pip() {
    UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180} "$VENV/bin/uv" pip "$1" --quiet --python "$VENV/bin/python" "${@:2}"
}

# uv does not read pip's configuration: hand on the index and the certificates it names.
use_pip_configuration() {
    local key value
    while IFS='=' read -r key value; do
        value=${value#\'} value=${value%\'}
        case $key in
            *.index-url) export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$value} ;;
            *.cert) export SSL_CERT_FILE=${SSL_CERT_FILE:-$value} ;;
        esac
    done < <("$VENV/bin/python" -m pip config list)
}

main "$@"
