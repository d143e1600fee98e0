#!/usr/bin/env bash
# Puts Debian testing's RabbitMQ, a 4.x, and all that it needs into a directory, without touching the system: packages are fetched by
# apt with lists of its own and unpacked, not installed. harness/releases.py runs commands with the directory's usr in place of /usr.
#
#     tests/rabbitmq4.sh DIRECTORY
#
# Where that can't be, DIRECTORY has only a file `missing`, which says why.
set -euo pipefail

SUITE=testing
# Beside the server's own dependencies: what its scripts call, and packages take for granted.
PACKAGES=(rabbitmq-server bash coreutils dash findutils grep hostname mawk procps sed)
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

directory=$(realpath --canonicalize-missing "$1")

main() {
    rm -rf "$directory"
    mkdir -p "$directory"
    if ! can_mount 2>/dev/null; then
        echo "this user may not mount directories" >"$directory/missing"
    elif [ -z "$(mirror)" ]; then
        echo "apt knows no mirror of Debian" >"$directory/missing"
    else
        fetch
        unpack
    fi
}

can_mount() {
    local user=()
    [ "$(id -u)" -eq 0 ] || user=(--user --map-root-user)
    unshare "${user[@]}" --mount mount --bind /usr /usr
}

# That which this machine uses.
mirror() {
    apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Component: main' | sed -n 1p
}

fetch() {
    mkdir -p "$directory"/apt/{lists,archives}/partial
    echo "deb [signed-by=$KEYRING] $(mirror) $SUITE main" >"$directory/apt/sources.list"
    : >"$directory/apt/status"
    apt update -qq
    apt install --download-only --no-install-recommends --yes -qq "${PACKAGES[@]}"
}

apt() {
    apt-get -o Dir::State="$directory/apt" -o Dir::State::Status="$directory/apt/status" -o Dir::Cache="$directory/apt" \
        -o Dir::Etc::SourceList="$directory/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
        -o APT::Sandbox::User= -o Acquire::Languages=none "$@"
}

unpack() {
    local package
    for package in "$directory"/apt/archives/*.deb; do
        dpkg-deb --extract "$package" "$directory/root"
    done
    # Last of all: what is here is whole.
    mv "$directory/root/usr" "$directory/usr"
    rm -rf "$directory"/{apt,root}
}

main
