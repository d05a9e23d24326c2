# Builds the package for Node. Sourced after scripts/common.sh.
# shellcheck shell=bash disable=SC2154  # what common.sh sets

# built_node: builds it in target/adapters/node, a copy, which gets the node_modules; its sources import facts.json.
built_node() {
    local folder=$repo/target/adapters/node
    env -u SCHEMA scripts/plain &&
        mkdir -p "$folder" &&
        find "$folder" -mindepth 1 -maxdepth 1 ! -name node_modules ! -name installed -exec rm -rf {} + &&
        cp -r adapters/node/. dist/ratelimit.sql "$folder/" && cp adapters/facts.json "$folder/.." || return
    if ! cmp -s "$folder/package-lock.json" "$folder/installed"; then
        say "installing what adapters/node is built and tested with"
        (cd "$folder" && npm ci --loglevel=error --no-audit --no-fund >&2 && cp package-lock.json installed) || return
    fi
    (cd "$folder" && npx tsdown --log-level warn >&2)
}
