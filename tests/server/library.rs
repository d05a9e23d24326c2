//! What the library and its objects can reach, and what DROP EXTENSION leaves: what docs/may-i-run-it.md says of them.

use std::process::Command;

use postgres::Client;

use crate::database::Database;

/// Functions of the C library that open a connection, run a program, load a library, or change a file.
const OUTSIDE: &str = "socket connect bind listen accept accept4 send sendto sendmsg recv recvfrom recvmsg getaddrinfo \
    gethostbyname fork vfork clone execv execve execvp execl execlp fexecve posix_spawn posix_spawnp system popen \
    dlopen dlmopen creat truncate truncate64 ftruncate ftruncate64 unlink unlinkat rename renameat mkdir rmdir link \
    symlink chmod chown";

/// The functions of PostgreSQL for the same.
const THROUGH_POSTGRES: &str = "OpenTransientFile PathNameOpenFile BasicOpenFile AllocateFile OpenPipeStream \
    load_file load_external_function PQconnectdb PQconnectStart libpqsrv_connect";

fn text(client: &mut Client, sql: &str) -> String {
    client.query_one(sql, &[]).unwrap().get(0)
}

fn list(client: &mut Client, sql: &str) -> Vec<String> {
    client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// Returns the names that the installed library takes from the server and the C library, without versions.
fn imported(client: &mut Client) -> Vec<String> {
    let folder = text(client, "SELECT setting FROM pg_config WHERE name = 'PKGLIBDIR'");
    let nm = Command::new("nm")
        .args(["-D", "--undefined-only", "--format=posix", &format!("{folder}/ratelimit.so")])
        .output()
        .expect("nm, of binutils, runs");
    assert!(nm.status.success(), "{}", String::from_utf8_lossy(&nm.stderr));
    let name = |line: &str| line.split([' ', '@']).next().unwrap_or_default().to_owned();
    String::from_utf8(nm.stdout).unwrap().lines().map(name).collect()
}

#[test]
#[ignore = "needs a server: make test"]
fn the_library_has_no_hook_and_reaches_no_network_program_or_file() {
    let database = Database::new("library_imports");
    let imported = imported(&mut database.connect());
    // Some of those that it does take.
    for known in ["RegisterXactCallback", "malloc", "open64", "ProcessInterrupts"] {
        assert!(imported.iter().any(|name| name == known), "{known} is not in {imported:?}");
    }
    let refused: Vec<&str> =
        OUTSIDE.split_whitespace().chain(THROUGH_POSTGRES.split_whitespace()).collect();
    let found: Vec<&String> = imported
        .iter()
        .filter(|name| refused.contains(&name.as_str()) || name.to_lowercase().ends_with("_hook"))
        .collect();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
#[ignore = "needs a server: make test"]
fn the_extension_is_not_preloaded_and_has_no_object_on_tables_of_others() {
    let database = Database::new("library_objects");
    let mut client = database.connect();
    assert_eq!(text(&mut client, "SHOW shared_preload_libraries"), "");
    assert_eq!(text(&mut client, "SHOW session_preload_libraries"), "");
    let objects = "SELECT DISTINCT classid::regclass::text FROM pg_depend
        WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
        AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit') ORDER BY 1";
    assert_eq!(list(&mut client, objects), ["pg_class", "pg_proc", "pg_type"]);
    let tables = "SELECT c.oid::regclass::text FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
        WHERE d.refclassid = 'pg_extension'::regclass AND d.classid = 'pg_class'::regclass AND deptype = 'e'
        AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit') AND c.relkind <> 'c' ORDER BY 1";
    assert_eq!(list(&mut client, tables), ["ratelimits", "rl_blocks", "rl_config", "rl_holds"]);
    let triggered = "SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger ORDER BY 1";
    assert_eq!(list(&mut client, triggered), ["rl_blocks", "rl_config"]);
    let languages = "SELECT proname || ': ' || lanname FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
        JOIN pg_language l ON l.oid = prolang
        WHERE d.refclassid = 'pg_extension'::regclass AND d.classid = 'pg_proc'::regclass AND deptype = 'e'
        AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ratelimit') AND lanname <> 'c' ORDER BY proname";
    assert_eq!(
        list(&mut client, languages),
        [
            "rl_address_key: sql",
            "rl_distribute: plpgsql",
            "rl_node: plpgsql",
            "rl_undistribute: plpgsql",
            "rl_version: sql"
        ]
    );
}

#[test]
#[ignore = "needs a server: make test"]
fn a_drop_leaves_the_settings_and_the_shared_memory() {
    let database = Database::new("library_dropped");
    let mut client = database.connect();
    let settings = "SELECT unnest(setconfig) FROM pg_db_role_setting
        WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let segments = "SELECT name FROM pg_shmem_allocations WHERE name LIKE 'ratelimit %' ORDER BY 1";
    client
        .batch_execute(
            "SELECT rl_define('m', rl_token_bucket(1e-300, '1 day', capacity => 10, store => 'memory'));
             SELECT rl_limit('m', 'k', 9);
             ALTER DATABASE library_dropped SET ratelimit.log_denials = 0.5",
        )
        .unwrap();
    let before = list(&mut client, segments);
    assert!(!before.is_empty());
    client.batch_execute("DROP EXTENSION ratelimit").unwrap();
    assert_eq!(list(&mut client, settings), ["ratelimit.log_denials=0.5"]);
    assert_eq!(list(&mut client, segments), before);
    let left = "SELECT proname::text FROM pg_proc WHERE proname LIKE 'rl\\_%'
        UNION ALL SELECT relname FROM pg_class WHERE relname LIKE 'rl\\_%' OR relname LIKE 'ratelimits%'
        UNION ALL SELECT typname FROM pg_type WHERE typname LIKE 'rl\\_%'";
    assert_eq!(list(&mut client, left), [""; 0]);
    // What is in memory is not for the next extension.
    client
        .batch_execute(
            "CREATE EXTENSION ratelimit;
             SELECT rl_define('m', rl_token_bucket(1e-300, '1 day', capacity => 10, store => 'memory'))",
        )
        .unwrap();
    let remaining = "SELECT remaining FROM rl_check('m', 'k')";
    assert_eq!(client.query_one(remaining, &[]).unwrap().get::<_, f64>(0), 10.0);
}

#[test]
#[ignore = "needs a server: make test"]
fn the_writer_runs_the_owner_s_trigger_as_the_owner() {
    let database = Database::new("library_writer");
    let mut client = database.connect();
    client
        .batch_execute(
            "DROP ROLE IF EXISTS library_owner; CREATE ROLE library_owner; GRANT CREATE ON SCHEMA public TO library_owner;
             ALTER TABLE rateLimits OWNER TO library_owner; ALTER TABLE rl_config OWNER TO library_owner;
             ALTER TABLE rl_blocks OWNER TO library_owner;
             SET ROLE library_owner;
             CREATE TABLE seen (process int, role text, reset_role text);
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
             DECLARE
                 reset_role text := 'allowed';
             BEGIN
                 BEGIN
                     EXECUTE 'RESET ROLE';
                 EXCEPTION WHEN insufficient_privilege THEN
                     reset_role := 'refused';
                 END;
                 INSERT INTO public.seen VALUES (pg_backend_pid(), current_user, reset_role);
                 RETURN NEW;
             END $$;
             CREATE TRIGGER see BEFORE INSERT OR UPDATE ON rateLimits FOR EACH ROW EXECUTE FUNCTION see();
             RESET ROLE;
             SELECT rl_define('s', rl_token_bucket(9, '1 day', store => 'memory', save => '1 hour'))",
        )
        .unwrap();
    // In another transaction: the one that defines a limit counts in the row.
    client.batch_execute("SELECT rl_limit('s', 'k')").unwrap();
    assert_eq!(client.query_one("SELECT rl_save()", &[]).unwrap().get::<_, i64>(0), 0);
    let seen = "SELECT concat_ws(' ', role, reset_role, process = pg_backend_pid()) FROM seen";
    assert_eq!(list(&mut client, seen), ["library_owner refused f"]);
    client
        .batch_execute(
            "DROP EXTENSION ratelimit; DROP OWNED BY library_owner; DROP ROLE library_owner",
        )
        .unwrap();
}
