//! A server of a test's own, which it may kill. Stopped and removed when dropped, and at the latest by
//! the next `scripts/server start`, which removes servers without an owner.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use postgres::{Client, Config, NoTls};

const CONF: &str = "tests/soak/postgresql.conf";

/// A server with the extension in its database postgres.
pub struct Server {
    socket: PathBuf,
}

impl Server {
    pub fn start() -> Server {
        let owner = std::process::id().to_string();
        let server = Server { socket: script(&["start", &owner, CONF]).into() };
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
        let owner = std::process::id().to_string();
        Server { socket: script(&["standby", self.folder(), &owner]).into() }
    }

    /// Kills all processes at once.
    pub fn kill(&self) {
        script(&["kill", self.folder()]);
    }

    /// Starts it again; first stops it, unless it was killed.
    pub fn restart(&self) {
        script(&["restart", self.folder()]);
    }

    /// Restarts it with another next transaction id, not more than 2^31 after the oldest in use.
    pub fn jump(&self, xid: u32) {
        script(&["jump", self.folder(), &xid.to_string()]);
    }

    pub fn connect(&self, database: &str) -> Result<Client, postgres::Error> {
        let mut config = Config::new();
        config.host_path(&self.socket).user("postgres").dbname(database).connect(NoTls)
    }

    /// A connection, within a minute: after a crash of a backend the server recovers by itself.
    pub fn client(&self) -> Client {
        let start = Instant::now();
        loop {
            match self.connect("postgres") {
                Ok(client) => return client,
                Err(error) if start.elapsed() > Duration::from_secs(60) => panic!("{error:?}"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn folder(&self) -> &str {
        self.socket.to_str().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        script(&["stop", self.folder()]);
    }
}

/// Runs scripts/server; what it printed.
fn script(args: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/server");
    let output =
        Command::new(script).args(args).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.expect("scripts/server runs");
    if !output.status.success() && !std::thread::panicking() {
        panic!("scripts/server {args:?}: {}", output.status);
    }
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
