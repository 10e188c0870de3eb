#!/usr/bin/env bash
# Checks the files that other programs read, with those programs. Prometheus's `promtool` checks
# alert rules and metrics. `ajv` in its strict mode checks JSON schemas and the examples. `buf`
# compares the gRPC API with the API of each release in fixtures/. Needs no root.
#
# The script uses an installed promtool. Otherwise it unpacks Debian's package `prometheus` into the
# cache. ajv and buf come from the npm registry into the cache. PROMTOOL and AJV_DIR name other copies.
# Prints PASS, FAIL and SKIP lines.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$REPO" || exit 1

# Returns the folder with ajv and a TOML reader in its `node_modules`.
find_ajv() {
    local dir=${AJV_DIR:-$CACHE/ajv} try
    have node || return
    # npm's first connection to the registry sometimes hangs, and a second one does not.
    for try in 1 2 3; do
        [ ! -d "$dir/node_modules/smol-toml" ] && have npm || break
        say "npm install, try $try" >&2
        timeout 60 npm install --no-audit --no-fund --ignore-scripts --prefix "$dir" \
            ajv@8.20.0 smol-toml@1.9.1 >&2 </dev/null
    done
    [ ! -d "$dir/node_modules/ajv" ] || echo "$dir"
}

# pages PROMTOOL: runs the tests that make metrics pages and check them with promtool.
pages() {
    local log status
    log=$(mktemp)
    PROMTOOL=$1 cargo test "${WORKSPACE[@]}" --bin penstock -- promtool >"$log" 2>&1
    status=$?
    # There are two pages and the test of the rule itself. A test that is missing has not passed.
    grep -q "^test result: ok. [3-9] passed" "$log" || status=1
    [ "$status" = 0 ] || tail -40 "$log"
    rm -f "$log"
    return "$status"
}

# valid DIR KIND FILE...: checks that the schema of KIND compiles in strict mode and accepts the
# files.
valid() {
    local dir=$1
    shift
    # `import` would only look for packages beside the script.
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

# of_kind KIND: returns the examples that have the tables of this kind.
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

# Returns buf, which compares definitions of a gRPC API.
find_buf() {
    local dir=$CACHE/buf try
    have node || return
    for try in 1 2 3; do
        [ ! -x "$dir/node_modules/.bin/buf" ] && have npm || break
        say "npm install, try $try" >&2
        timeout 60 npm install --no-audit --no-fund --ignore-scripts --prefix "$dir" \
            @bufbuild/buf@1.75.0 >&2 </dev/null
    done
    [ ! -x "$dir/node_modules/.bin/buf" ] || echo "$dir/node_modules/.bin/buf"
}

# serves_release BUF DIR: whether the present API accepts clients of the release in DIR.
serves_release() {
    local now status
    now=$(mktemp -d)
    cp -r crates/control/proto/penstock "$now/" && cp -r crates/controller/proto/penstock "$now/" &&
        "$1" breaking "$now" --against "$2"
    status=$?
    rm -rf "$now"
    return "$status"
}
# A field with another type must be found.
break_is_seen() {
    local broken status=1
    broken=$(mktemp -d)
    cp -r "$2"/. "$broken/"
    sed -i 's/^  string name = 1;/  uint64 name = 1;/' "$broken/penstock/host/v1/host.proto"
    serves_release "$1" "$broken" >/dev/null 2>&1 || status=0
    rm -rf "$broken"
    return "$status"
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
buf=$(find_buf)
if [ -n "$buf" ]; then
    for release in fixtures/*/proto; do
        check "buf: the API accepts clients of release $(basename "$(dirname "$release")")" \
            serves_release "$buf" "$release"
        check "  and a break would be seen" break_is_seen "$buf" "$release"
    done
else
    skip "buf: no node, or npm cannot fetch it"
fi
verdict formats
