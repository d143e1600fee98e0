#!/usr/bin/env bash
# Installs the test suite's dependencies and builds the client drivers; prints and does only what has changed. Each step leaves
# a stamp named after a hash of the files that it depends on. `setup.sh static` and `setup.sh arm64` install the tools that
# build and test those binaries.
set -euo pipefail

cd "$(dirname "$0")/.."
cache=$PWD/.cache
stamps=$cache/stamps
mkdir -p "$stamps"

main() {
    case ${1:-tests} in
    static) static_packages ;;
    arm64) arm64_packages ;;
    tests) everything ;;
    esac
}

everything() {
    debian_packages
    step rabbitmq4 tests/rabbitmq4.sh -- tests/rabbitmq4.sh "$cache/rabbitmq4"
    step venv tests/requirements.txt -- python_environment
    [ -d tests/amqplib/node_modules ] && [ -d tests/websocket/node_modules ] || rm -f "$stamps"/npm-*
    step npm tests/{amqplib,websocket}/package{,-lock}.json -- node_packages
    step java tests/java/pom.xml tests/java/src/*.java -- java_driver
    step frameworks tests/frameworks/requirements.txt -- framework_python
    step spring tests/frameworks/spring/pom.xml tests/frameworks/spring/src/*.java -- spring_client
    step go tests/go/go.{mod,sum} tests/go/*.go tests/go/{holding,hostile,load,patience}/*.go -- go_driver
    # Cargo keeps its own stamps. The dev profile shares its dependencies with the unit tests; with --package instead, features
    # would be resolved for that package alone, and dependencies built twice.
    cargo build --quiet --locked --workspace --bin lapin-scenarios
}

# step NAME FILE... -- COMMAND: runs the command unless it has succeeded before with these files unchanged.
step() {
    local name=$1 files=()
    shift
    while [ "$1" != -- ]; do
        files+=("$1")
        shift
    done
    shift
    local stamp
    stamp=$stamps/$name-$(sha256sum "${files[@]}" "$0" | sha256sum | cut -c1-16)
    if [ -e "$stamp" ]; then
        return
    fi
    rm -f "$stamps/$name"-*
    echo "setting up: $name"
    quietly "$@"
    touch "$stamp"
}

# Runs a command and shows its output only if it fails.
quietly() {
    local log=$cache/setup.log
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        echo "failed: $*" >&2
        return 1
    fi
}

debian_packages() {
    local missing=()
    [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || missing+=(rabbitmq-server)
    # Servers behind relays.
    command -v redis-server >/dev/null || missing+=(redis-server)
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
    command -v setpriv >/dev/null || missing+=(util-linux)
    # To build a Debian package, and to test it.
    command -v strip >/dev/null || missing+=(binutils)
    command -v ip >/dev/null || missing+=(iproute2)
    command -v man >/dev/null || missing+=(man-db)
    command -v pkill >/dev/null || missing+=(procps)
    command -v systemd-analyze >/dev/null || missing+=(systemd)
    command -v chromium >/dev/null || missing+=(chromium)
    command -v chromedriver >/dev/null || missing+=(chromium-driver)
    # Debian packages this part of Python separately.
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    # Frameworks.
    command -v php >/dev/null || missing+=(php-cli)
    [ -e /usr/share/php/PhpAmqpLib/autoload.php ] || missing+=(php-amqplib)
    ruby -e 'require "bunny"' 2>/dev/null || missing+=(ruby-bunny)
    install_missing "${missing[@]}"
}

static_packages() {
    local missing=()
    command -v musl-gcc >/dev/null || missing+=(musl-tools)
    command -v "$(uname -m)-linux-gnu-strip" >/dev/null || missing+=(binutils)
    install_missing "${missing[@]}"
}

arm64_packages() {
    local missing=()
    command -v aarch64-linux-gnu-strip >/dev/null || missing+=(binutils-aarch64-linux-gnu)
    command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
    # Debian packages this part of Python separately.
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    install_missing "${missing[@]}"
}

# install_missing PACKAGE...: does nothing without arguments.
install_missing() {
    if [ $# -eq 0 ]; then
        return
    fi
    echo "setting up: $*"
    quietly as_root bash -c "$(declare -f install_without_starting); install_without_starting $*"
}

# Installs packages without starting their services, now or after a reboot: the tests start their own servers.
install_without_starting() {
    set -euo pipefail
    local policy=/usr/sbin/policy-rc.d
    export DEBIAN_FRONTEND=noninteractive
    if [ ! -e $policy ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
    fi
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "$@"
    if [ -d /run/systemd/system ]; then
        systemctl disable --quiet rabbitmq-server.service epmd.socket epmd.service redis-server.service \
            postgresql.service || true
    fi
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

python_environment() {
    virtual_environment "$cache/venv" tests/requirements.txt
}

# Separate from the harness's own environment, whose dependencies are pinned for other reasons.
framework_python() {
    virtual_environment "$cache/frameworks" tests/frameworks/requirements.txt
}

virtual_environment() {
    rm -rf "$1"
    python3 -m venv "$1"
    "$1/bin/pip" install --quiet --disable-pip-version-check --requirement "$2"
}

node_packages() {
    (cd tests/amqplib && npm ci --silent)
    (cd tests/websocket && npm ci --silent)
}

java_driver() {
    rm -rf "$cache/java"
    mvn --quiet --batch-mode --file tests/java/pom.xml compile
}

spring_client() {
    rm -rf "$cache/spring"
    mvn --quiet --batch-mode --file tests/frameworks/spring/pom.xml compile
}

go_driver() {
    (cd tests/go && go vet ./... && go build -mod=readonly -o "$cache/go/scenarios" . &&
        go build -mod=readonly -o "$cache/go/" ./holding ./hostile ./load)
}

main "$@"
