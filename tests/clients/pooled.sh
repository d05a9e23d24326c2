# Runs programs behind PgBouncer. Sourced after scripts/common.sh; $pgbouncer is its folder.
# shellcheck shell=bash disable=SC2154  # what common.sh sets
pgbouncer=$repo/target/clients/pgbouncer

# fetch_pgbouncer: fetches that of Debian 13, since that of 12 has no prepared statements, with all of its libraries.
fetch_pgbouncer() {
    [ ! -x "$pgbouncer/pgbouncer" ] || return 0
    say "fetching pgbouncer (Debian trixie)"
    local new=$pgbouncer.new
    rm -rf "$pgbouncer" "$new"
    unpack trixie "$new" pgbouncer libaudit1 libc6 libcap2 libcap-ng0 libcares2 libevent-2.1-7t64 libpam0g libssl3t64 \
        libsystemd0 libzstd1 zlib1g || return
    cp -L "$new"/tree/usr/lib/*-linux-gnu/{ld-linux-*,lib*.so.*} "$new/tree/usr/sbin/pgbouncer" "$new/" &&
        rm -rf "$new/tree" && mv "$new" "$pgbouncer"
}

# pooled PREPARED COMMAND…: runs it with PgBouncer before the server; PREPARED is max_prepared_statements.
pooled() (
    folder=$(mktemp -d /tmp/ratelimit-pool.XXXXXX) # short: a socket's path ends at 107 bytes
    at_exit "[ ! -s $folder/pid ] || kill -QUIT \$(cat $folder/pid); rm -rf $folder"
    cp "$pgbouncer"/* "$folder/"
    printf '"%s" ""\n' "$PGUSER" postgres >"$folder/users"
    cat >"$folder/ini" <<END
[databases]
* = host=$PGHOST port=$PGPORT
[pgbouncer]
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
max_prepared_statements = $1
query_wait_timeout = 30
unix_socket_dir = $folder
listen_addr =
auth_type = trust
auth_file = $folder/users
admin_users = postgres
log_connections = 0
log_disconnections = 0
logfile = $folder/log
pidfile = $folder/pid
END
    chmod 755 "$folder"
    [ "$(id -u)" -ne 0 ] || chown -R postgres: "$folder"
    as_server "$folder"/ld-linux-* --library-path "$folder" "$folder/pgbouncer" -q -d "$folder/ini" ||
        { cat "$folder/log" && return 1; }
    for _ in {1..100}; do # it listens a moment later
        ! "$bindir/psql" -X -h "$folder" -p 6432 -U postgres -d pgbouncer -c 'SHOW VERSION' >/dev/null 2>&1 || break
        sleep 0.1
    done
    PGHOST=$folder PGPORT=6432 "${@:2}" || { cat "$folder/log" && return 1; }
)
