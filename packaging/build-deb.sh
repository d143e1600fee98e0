#!/usr/bin/env bash
# Builds a Debian package from a binary: build-deb.sh BINARY DIRECTORY [REVISION]; prints the package's path. The binary itself
# writes the man pages and completions, under qemu if it is for another processor. COMPRESSION=none is faster.
set -euo pipefail

binary=$(realpath "$1")
output=$(realpath -m "$2")
revision=${3:-1}
here=$(cd "$(dirname "$0")" && pwd)

processor=$(readelf --file-header "$binary" | sed -n 's/^ *Machine: *//p')
case $processor in
*X86-64) processor=x86_64 architecture=amd64 ;;
AArch64) processor=aarch64 architecture=arm64 ;;
*) echo "build-deb: $binary is for a processor that this script does not know: $processor" >&2 && exit 1 ;;
esac
program=("$binary")
if [ "$processor" != "$(uname -m)" ]; then program=("qemu-$processor" "$binary"); fi

version=$("${program[@]}" --version | cut -d' ' -f2)-$revision
package=$output/leveret_${version}_$architecture.deb
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

main() {
    install -D -m 755 "$binary" "$root/usr/bin/leveret"
    "$processor-linux-gnu-strip" --strip-unneeded "$root/usr/bin/leveret"
    install -D -m 644 "$here/leveret.service" "$root/lib/systemd/system/leveret.service"
    install -D -m 644 "$here/leveret.toml" "$root/etc/leveret/leveret.toml"
    documents
    control
    mkdir -p "$output"
    dpkg-deb --root-owner-group -Z"${COMPRESSION:-xz}" --build "$root" "$package" >/dev/null
    echo "$package"
}

documents() {
    local share=$root/usr/share
    "${program[@]}" man --output "$share/man/man1"
    gzip -9n "$share"/man/man1/*
    mkdir -p "$share/bash-completion/completions" "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d"
    "${program[@]}" completions bash >"$share/bash-completion/completions/leveret"
    "${program[@]}" completions zsh >"$share/zsh/vendor-completions/_leveret"
    "${program[@]}" completions fish >"$share/fish/vendor_completions.d/leveret.fish"
    local doc=$share/doc/leveret
    install -D -m 644 "$here/debian/copyright" "$doc/copyright"
    install -m 644 "$here/../CHANGELOG.md" "$doc/changelog"
    install -m 644 "$here"/../docs/{authentication,configuration,installation,migration,monitoring,mqtt-and-stomp,operations,pool,spool,troubleshooting,upgrades}.md "$doc"
    gzip -9n "$doc/changelog" "$doc"/*.md
    install -D -m 644 -t "$doc/examples" "$here"/grafana/*.json "$here"/kubernetes/*.yaml
    # Independent of the builder's umask.
    find "$share" -type d -exec chmod 755 {} +
    find "$share" -type f -exec chmod 644 {} +
}

control() {
    local debian=$root/DEBIAN size
    mkdir "$debian"
    size=$(du -sk --exclude=DEBIAN "$root" | cut -f1)
    sed -e "s|@VERSION@|$version|" -e "s|@ARCHITECTURE@|$architecture|" -e "s|@SIZE@|$size|" \
        -e "s|@DEPENDS@|$(libraries)|" -e 's|, $||' "$here/debian/control.in" >"$debian/control"
    install -m 644 "$here/debian/conffiles" "$debian/conffiles"
    install -m 755 "$here"/debian/{postinst,prerm,postrm} "$debian"
    # Without the conffiles, which dpkg checks itself.
    (cd "$root" && find usr lib -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$debian/md5sums"
    chmod 644 "$debian"/{control,md5sums}
    chmod 755 "$debian" "$root"/{etc,etc/leveret,lib,lib/systemd,lib/systemd/system,usr,usr/bin}
}

# The packages of the shared libraries, with the minimum version of libc that has all symbols; nothing for a static binary.
libraries() {
    local needed libc list=()
    needed=$(readelf -d "$root/usr/bin/leveret" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    libc=$(readelf -V "$root/usr/bin/leveret" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -1)
    if [ -n "$libc" ]; then list+=("libc6 (>= $libc)"); fi
    if grep -q '^libgcc_s' <<<"$needed"; then list+=("libgcc-s1"); fi
    if grep -q '^libstdc++' <<<"$needed"; then list+=("libstdc++6"); fi
    local IFS=,
    echo "${list[*]}" | sed 's/,/, /g'
}

main
