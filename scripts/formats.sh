#!/usr/bin/env bash
# What other programs read, as those programs see it: alert rules and metrics by Prometheus's
# `promtool`, JSON schemas and the examples by `ajv` in its strict mode. Needs no root.
#
# promtool is the installed one, or that of Debian's package `prometheus`, unpacked into the cache.
# ajv comes from the npm registry into the cache. PROMTOOL and AJV_DIR name others. Prints PASS,
# FAIL and SKIP lines.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$REPO" || exit 1

find_promtool() {
    local dir=$CACHE/prometheus
    if [ -n "${PROMTOOL:-}" ]; then
        echo "$PROMTOOL"
    elif have promtool; then
        command -v promtool
    elif [ -x "$dir/usr/bin/promtool" ] || fetch_package prometheus "$dir" >&2; then
        echo "$dir/usr/bin/promtool"
    fi
}

# The folder whose `node_modules` has ajv and a reader of TOML.
find_ajv() {
    local dir=${AJV_DIR:-$CACHE/ajv}
    have node || return
    if [ ! -d "$dir/node_modules/ajv" ] && have npm; then
        npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$dir" \
            ajv@8.20.0 smol-toml@1.9.1 >&2 </dev/null
    fi
    [ ! -d "$dir/node_modules/ajv" ] || echo "$dir"
}

# pages PROMTOOL: the tests that make metrics pages give them to promtool.
pages() {
    local log status
    log=$(mktemp)
    PROMTOOL=$1 cargo test --locked --workspace --bin penstock -- promtool >"$log" 2>&1
    status=$?
    # Two pages and the rule itself: a test that is not there has not passed.
    grep -q "^test result: ok. [3-9] passed" "$log" || status=1
    [ "$status" = 0 ] || tail -40 "$log"
    rm -f "$log"
    return "$status"
}

# valid DIR KIND FILE...: the schema of KIND compiles in strict mode and takes the files.
valid() {
    local dir=$1
    shift
    # Not `import`: that looks for packages beside the script alone.
    # shellcheck disable=SC2016 # the quotes are JavaScript's
    node --input-type=commonjs -e '
        const { createRequire } = require("node:module");
        const fs = require("node:fs");
        const [dir, kind, ...files] = process.argv.slice(1);
        const from = createRequire(dir + "/package.json");
        const Ajv = from("ajv/dist/2020").default;
        const { parse } = from("smol-toml");
        const schema = JSON.parse(fs.readFileSync(`docs/reference/${kind}.schema.json`, "utf8"));
        const valid = new Ajv({ strict: true, allErrors: true }).compile(schema);
        for (const file of files) {
            if (!valid(parse(fs.readFileSync(file, "utf8")))) {
                console.log(file, valid.errors);
                process.exitCode = 1;
            }
        }' "$dir" "$@" </dev/null
}

# of_kind KIND: the examples that have its tables.
of_kind() {
    local file
    for file in examples/*.toml; do
        case $1 in
        host) grep -q '^\[host\]' "$file" ;;
        controller) grep -q '^\[controller\]' "$file" ;;
        vcpu) grep -q '^\[vcpu\]' "$file" && ! grep -q '^\[host\]' "$file" ;;
        fabric) grep -q '^\[\[tier\]\]' "$file" ;;
        tenants) grep -q '^\[\[tenant\]\]' "$file" && ! grep -q '^\[host\]' "$file" ;;
        esac && echo "$file"
    done
}

promtool=$(find_promtool)
if [ -n "$promtool" ] && [ -x "$promtool" ]; then
    check "promtool: rules of dashboards/alerts.yml" "$promtool" check rules dashboards/alerts.yml
    check "promtool: metrics of the host and of the controller" pages "$promtool"
else
    skip "promtool: not installed, and Debian's package prometheus cannot be fetched"
fi
ajv=$(find_ajv)
if [ -n "$ajv" ]; then
    for schema in docs/reference/*.schema.json; do
        kind=$(basename "$schema" .schema.json)
        mapfile -t files < <(of_kind "$kind")
        check "ajv: $schema is strict and takes ${#files[@]} examples" \
            valid "$ajv" "$kind" "${files[@]}"
        [ "${#files[@]}" -gt 0 ] || fail "ajv: no example of $kind"
    done
else
    skip "ajv: no node, or npm cannot fetch it"
fi
verdict formats
