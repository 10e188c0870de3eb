#!/usr/bin/env bash
# Compiles a crate of this workspace for `checks.sh test`, as cargo's RUSTC_WORKSPACE_WRAPPER: called
# with the path of rustc and its arguments. One compilation also has the lints and the documentation,
# so that no crate is read a second and third time. Their warnings are the compiler's, and cargo shows
# them again when it does not compile. `checks.sh check` runs `cargo clippy` and `cargo doc` instead,
# which also read what only benches and examples have.
#
# Tests are compiled by clippy-driver. They contain the code of their crate. The compiler spends more
# time on a high optimisation of tests than they run, so tests have at most level 1.
#
# All else is compiled by rustc as ever, and then documented.
set -euo pipefail
compiler=$1
shift
test='' crate='' bin=''
for argument; do
    case $argument in
    --test) test=yes ;;
    --crate-name) crate=next ;;
    bin) bin=yes ;;
    *) [ "$crate" != next ] || crate=$argument ;;
    esac
done
if [ -n "$test" ]; then
    arguments=()
    for argument; do
        case $argument in opt-level=[23]) argument=opt-level=1 ;; esac
        arguments+=("$argument")
    done
    exec clippy-driver "$compiler" "${arguments[@]}"
fi
"$compiler" "$@"
# Without the name of one of our crates, cargo asks for the compiler's properties.
case $crate in penstock*) ;; *) exit ;; esac
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
arguments=() skip=''
for argument; do
    case $skip$argument in
    -C) skip=-C ;;
    -Cincremental=*) skip='' ;;
    -C*) arguments+=(-C "$argument") skip='' ;;
    --emit=*) ;;
    --out-dir | -o) skip=out ;;
    out*) skip='' ;;
    *) arguments+=("$argument") ;;
    esac
done
# Everything in a program is private, so that a link to a private item is none to complain about.
[ -z "$bin" ] || arguments+=(-A rustdoc::private-intra-doc-links)
rustdoc "${arguments[@]}" --document-private-items --out-dir "$out"
