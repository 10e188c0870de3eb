#!/usr/bin/env bash
# Prints the licences of all crates that are linked into the programs, with their texts. The
# packages contain the output, because most licences require that their text accompanies a program.
# The texts come from the sources of the crates, which cargo has after a build.
#
#   licences.sh [PACKAGE OR OPTION OF CARGO TREE]...    default: all programs
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$REPO"
export LC_ALL=C

for tool in cargo rustc; do
    have $tool || die "$tool is missing: run scripts/setup.sh build"
done
[ $# -gt 0 ] || set -- -p penstock -p penstock-lab -p penstock-vcpu-scx --features=penstock-vcpu-scx/bpf
SOURCES=${CARGO_HOME:-$HOME/.cargo}/registry/src
RUST=$(rustc --print sysroot)/share/doc/rust

# Macros and build scripts run at the build and are not part of a program. Crates with a path in
# brackets are ours.
linked_crates() {
    cargo tree --locked "$@" -e normal,no-proc-macro --prefix none --no-dedupe \
        --format '{p}|{l}' | grep '|' | grep -v '(/' | sed 's/ v/-/' | sort -u
}
# Prints the files of a crate that have the text of a licence. Of libbpf-sys, elfutils is not linked:
# the scheduler uses the library of the system.
licence_files() {
    find -L "$1" -maxdepth 2 -type f -not -path "$1/src/*" -not -path "$1/elfutils/*" \( -iname 'licen[sc]e*' \
        -o -iname 'copying*' -o -iname 'copyright*' -o -iname 'notice*' -o -iname 'unlicense*' \
        -o -ipath '*/licenses/*' \) -not -name '*.rs' | sort
}

declare -A SEEN
# print_text NAME FILE: prints a text, or the name of the earlier crate with the same text.
print_text() {
    local sum
    sum=$(sha256sum <"$2")
    if [ -n "${SEEN[$sum]:-}" ]; then
        say "--- ${2##*/}: the text is that of ${SEEN[$sum]}"
    else
        SEEN[$sum]="$1, ${2##*/}"
        say "--- ${2##*/}"
        case $2 in
        *.html) sed 's/<[^>]*>//g; /^ *$/d' "$2" ;;
        *) cat "$2" ;;
        esac
        say
    fi
}

CRATES=$(linked_crates "$@")
[ -n "$CRATES" ] || die "cargo tree lists no crate"
say "The programs contain code of these crates and of the standard library of Rust."
say "For each, the list has the licence and the texts that its authors distribute with it."
while IFS='|' read -r name licence; do
    say
    say "=== $name: $licence"
    dir=$(find "$SOURCES" -mindepth 2 -maxdepth 2 -type d -name "$name" -print -quit)
    [ -n "$dir" ] || die "$SOURCES has no sources of $name: run cargo fetch --locked"
    files=$(licence_files "$dir")
    # Some authors name the licence only in Cargo.toml.
    [ -n "$files" ] || sed -n '/^authors = \[.*\]/p; /^authors = \[$/,/^\]/p; /^repository = "http/p' "$dir/Cargo.toml"
    while [ -n "$files" ] && IFS= read -r file; do
        print_text "$name" "$file"
    done <<<"$files"
done <<<"$CRATES"
say
say "=== $(rustc --version), standard library: MIT OR Apache-2.0 and the licences below"
for file in "$RUST"/COPYRIGHT-library.html "$RUST"/licenses/{Apache-2.0,MIT,BSD-2-Clause}.txt; do
    [ ! -e "$file" ] || print_text "the standard library" "$file"
done
