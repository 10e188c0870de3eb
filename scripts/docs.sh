#!/usr/bin/env bash
# Builds the site of the documentation in target/book. The site has docs/, the pages outside docs/
# that docs/SUMMARY.md names, and the lab's report if there are results.
#
#   RESULTS=DIR   results of `penstock-lab run --out DIR`; default: target/results
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$REPO"

TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
SOURCE=$TARGET/book-src BOOK=$TARGET/book
RESULTS=${RESULTS:-$TARGET/results}

# Files outside docs/ to which its pages link.
linked() {
    grep -rhoE --include='*.md' '\]\((\.\./)+(crates|dashboards|scripts)/[^)#]+' docs | sed 's/.*\.\.\///'
}

have mdbook || {
    say "installing mdbook, which makes the site; takes some minutes, once"
    cargo install --locked --no-default-features --features search mdbook
}
rm -rf "$SOURCE" "$BOOK"
mkdir -p "$SOURCE"
cp -r docs examples packaging LICENSE-* ./*.md "$SOURCE"
linked | sort -u | while read -r file; do
    install -D -m 644 "$file" "$SOURCE/$file"
done
# Paths of the summary are relative to docs/. The book begins one directory above.
sed 's#](#](docs/#; s#](docs/\.\./#](#' docs/SUMMARY.md >"$SOURCE/SUMMARY.md"
rm "$SOURCE/docs/SUMMARY.md"
mv "$SOURCE/docs/book.toml" "$SOURCE/book.toml"

if compgen -G "$RESULTS/*.json" >/dev/null; then
    LAB=$(lab_bin)
    [ -x "$LAB" ] || die "$LAB: build it for the report (make build), or move $RESULTS away"
    "$LAB" report "$RESULTS" --out "$SOURCE/report" >/dev/null
    printf '\n---\n\n- [Results](report.md)\n' >>"$SOURCE/SUMMARY.md"
    printf '# Results\n\nThe [report](report/report.html) compares published, simulated and live values.\n' >"$SOURCE/report.md"
else
    say "no report: $RESULTS has no results (penstock-lab run all --out $RESULTS)"
fi
(cd "$SOURCE" && mdbook build --dest-dir "$BOOK" 2>&1) | sed 's/^/     /'
say "site: $BOOK/index.html"
