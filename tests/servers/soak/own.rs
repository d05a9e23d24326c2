//! A server of a test's own, which it may kill. Stopped and removed when dropped, and at the latest by
//! the next `scripts/server start`, which removes servers without an owner.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, Config, NoTls};

const CONF: &str = "tests/servers/soak/postgresql.conf";

/// A server with the extension in its database postgres.
pub struct Server {
    socket: PathBuf,
    /// Dropped with the server, which ends the wait of [`watch`].
    _alive: Sender<()>,
}

/// Returns what each session does and waits for, for the report of a test that hangs.
pub fn sessions(client: &mut Client) -> String {
    let sql = "SELECT format('%s %s %s %s blocked by %s: %s', pid, application_name, state, wait_event,
                                      pg_blocking_pids(pid), left(query, 200))
                        FROM pg_stat_activity WHERE backend_type = 'client backend'
                        UNION ALL SELECT format('prepared: %s since %s', gid, prepared) FROM pg_prepared_xacts";
    let rows = client.query(sql, &[]).unwrap();
    let lines: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    format!("sessions:\n{}", lines.join("\n"))
}

/// Ends a test whose server is still there after a quarter of an hour (a day in `make soak`): says what hangs, past
/// the capture of a test's output.
fn watch(socket: PathBuf) -> Sender<()> {
    let (alive, ended) = channel();
    thread::spawn(move || {
        let patience =
            Duration::from_secs(if ratelimit_tests::is_long() { 24 * 3600 } else { 15 * 60 });
        if ended.recv_timeout(patience) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let mut config = Config::new();
        config.host_path(&socket).user("postgres").connect_timeout(Duration::from_secs(10));
        let sessions = config.connect(NoTls).map(|mut client| sessions(&mut client));
        let mut stderr = std::io::stderr();
        writeln!(stderr, "the test hangs since {patience:?}; its server's {}", sessions.unwrap())
            .unwrap();
        script(&["stop", socket.to_str().unwrap()]);
        std::process::exit(101);
    });
    alive
}

impl Server {
    /// One without any extension, and with the settings of a file.
    pub fn bare(conf: &str) -> Server {
        Server::with_clock(conf, "")
    }

    /// Starts a server whose clock is `ahead` by these seconds, as `+0.5`; empty: not at all.
    pub fn with_clock(conf: &str, ahead: &str) -> Server {
        let owner = std::process::id().to_string();
        let socket: PathBuf = script(&["start", &owner, conf, "--ahead", ahead]).into();
        Server { _alive: watch(socket.clone()), socket }
    }

    pub fn start() -> Server {
        let server = Server::bare(CONF);
        let mut client = server.client();
        client.batch_execute("CREATE EXTENSION ratelimit").unwrap();
        let there = "SELECT FROM pg_available_extensions WHERE name = 'amcheck'";
        if client.query_opt(there, &[]).unwrap().is_some() {
            client.batch_execute("CREATE EXTENSION amcheck").unwrap();
        } else {
            // Past the capture of a test's output; scripts/test counts it.
            let mut stderr = std::io::stderr();
            writeln!(stderr, "skipped: the checks by amcheck, which is not installed").unwrap();
        }
        server
    }

    /// A streaming replica of this one.
    pub fn standby(&self) -> Server {
        let standby = Server::bare("/dev/null");
        standby.ctl("stop", &["-m", "fast"]);
        let copy = format!(
            "socket=$(grep unix_socket_directories data/postgresql.conf) && rm -rf data/* && \
             pg_basebackup -h {} -U postgres -D data -R -c fast --no-sync && \
             echo \"$socket\" >>data/postgresql.conf",
            self.folder()
        );
        standby.exec(&copy);
        standby.ctl("start", &[]);
        standby
    }

    /// Kills all processes at once, as kill -9 does. The postmaster is stopped first, so that it
    /// starts nothing while its children are collected.
    pub fn kill(&self) {
        let postmaster = self.postmaster();
        self.exec(&format!("kill -STOP {postmaster}"));
        let mut processes = children(&postmaster);
        processes.push(postmaster);
        // A child may have ended already.
        self.exec(&format!("kill -KILL {} 2>/dev/null || true", processes.join(" ")));
        let killed = Instant::now();
        for process in processes {
            while Path::new("/proc").join(&process).exists() {
                assert!(killed.elapsed() < Duration::from_secs(10), "{process} is not reaped");
                thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// Starts it again; first stops it, unless it was killed.
    pub fn restart(&self) {
        self.restart_by("fast");
    }

    /// As [`Server::restart`], in a mode of shutdown: smart, fast or immediate.
    pub fn restart_by(&self, mode: &str) {
        self.ctl("restart", &["-m", mode]);
    }

    /// Restarts it with another next transaction id, not more than 2^31 after the oldest in use.
    pub fn jump(&self, xid: u32) {
        self.ctl("stop", &["-m", "fast"]);
        // The commit log has 4 transactions a byte, 256 KB a file.
        let file = xid / (4 * 256 * 1024);
        self.exec(&format!(
            "dd if=/dev/zero of=data/pg_xact/{file:04X} bs=8192 count=32 status=none && \
             pg_resetwal -x {xid} -D data"
        ));
        self.ctl("start", &[]);
    }

    /// Runs pg_ctl.
    fn ctl(&self, what: &str, args: &[&str]) {
        script(&[&["ctl", self.folder(), what, "-t", "60"], args].concat());
    }

    /// Runs a shell command as the server's user, in the folder with bin and data, and returns what it printed.
    pub fn exec(&self, command: &str) -> String {
        script(&["exec", self.folder(), "sh", "-c", command])
    }

    pub fn connect(&self, database: &str) -> Result<Client, postgres::Error> {
        self.config(database).connect(NoTls)
    }

    pub fn config(&self, database: &str) -> Config {
        let mut config = Config::new();
        config.host_path(&self.socket).user("postgres").dbname(database);
        config
    }

    /// Connects within a minute: after a crash of a backend the server recovers.
    pub fn client(&self) -> Client {
        let start = Instant::now();
        loop {
            match self.connect("postgres") {
                Ok(client) => return client,
                Err(error) if start.elapsed() > Duration::from_secs(60) => panic!("{error:?}"),
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// A connection of a role to a database.
    pub fn client_of(&self, role: &str, database: &str) -> Client {
        let mut config = Config::new();
        config.host_path(&self.socket).user(role).dbname(database);
        config.connect(NoTls).unwrap()
    }

    /// Connects, and returns the notices and warnings of the session, too.
    pub fn client_with_notices(&self) -> (Client, Receiver<String>) {
        let (sender, notices) = channel();
        let mut config = Config::new();
        config.host_path(&self.socket).user("postgres").dbname("postgres");
        config.notice_callback(move |notice| {
            let _ = sender.send(notice.message().to_owned());
        });
        (config.connect(NoTls).unwrap(), notices)
    }

    /// Kills one process of it, as the kernel does where memory is short.
    pub fn kill_session(&self, process: &str) {
        self.exec(&format!("kill -KILL {process}"));
    }

    /// Sets what takes effect at a start, and starts it again.
    pub fn set(&self, settings: &[&str]) {
        let mut client = self.client();
        for setting in settings {
            client.batch_execute(&format!("ALTER SYSTEM SET {setting}")).unwrap();
        }
        drop(client);
        self.restart();
    }

    /// Its first process.
    pub fn postmaster(&self) -> String {
        self.exec("head -n 1 data/postmaster.pid")
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        let name = self.folder().rsplit_once('.').unwrap().1;
        let servers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/servers");
        let log = std::fs::read(servers.join(name).join("log")).unwrap();
        String::from_utf8_lossy(&log).into_owned()
    }

    pub fn folder(&self) -> &str {
        self.socket.to_str().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        script(&["stop", self.folder()]);
    }
}

/// Returns the ids of the processes that a process has started.
pub fn children(parent: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap() {
        let entry = entry.unwrap();
        // "PID (name) STATE PARENT …"; the name may hold blanks and brackets.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let after_name = stat.rsplit_once(')').unwrap().1;
        if after_name.split_whitespace().nth(1) == Some(parent) {
            found.push(entry.file_name().into_string().unwrap());
        }
    }
    found
}

/// Returns the names of the shared memory below /dev/shm that the children of a process have mapped: other servers of
/// the machine have theirs there, too.
pub fn segments(parent: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for process in children(parent) {
        // It may have ended.
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        let mapped = maps.lines().filter_map(|line| line.split_once("/dev/shm/"));
        found.extend(mapped.map(|(_, name)| name.to_owned()));
    }
    found
}

/// Runs scripts/server, and returns what it printed.
fn script(args: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/server");
    let mut command = Command::new(script);
    command.args(args).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().expect("scripts/server runs");
    if !output.status.success() && !thread::panicking() {
        panic!("scripts/server {args:?}: {}", output.status);
    }
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
