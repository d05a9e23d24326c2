//! Distinguishes a database from an earlier one with the same OID, which CREATE DATABASE … OID can reuse. A clone of
//! the same template also has the same number of the extension, and would find the states of the dropped database.
//!
//! PostgreSQL stores nothing that distinguishes them: the contents of a database are the template's, and its row in
//! pg_database is replaced by each ALTER DATABASE, too. But each CREATE DATABASE, by either strategy, and also on a
//! standby, writes a new file PG_VERSION into the database's directory, which never changes. Its modification time is
//! the mark of a database. A session reads it once: its connection keeps the database from being dropped or moved.
//! Neither the number of the file (inode) would do, which some file systems reuse, nor the time when its metadata
//! changed (ctime), which the hard links of a backup change.
//!
//! ALTER DATABASE … SET TABLESPACE copies the directory, and so changes the mark. A database counts as moved, and
//! keeps its states, if it is in another tablespace than before and its row has been updated since it was created. A
//! database that was moved and moved back meanwhile counts as a new one.

use std::cell::Cell;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pgrx::pg_sys;
use ratelimit_memory::Guarded;
use xxhash_rust::xxh64::xxh64;

use super::SessionLock;
use crate::schema::catalog;

/// The number of known databases. If another database is moved, its states are lost.
const DATABASES: usize = 64;

/// The known databases, in shared memory.
pub type Databases = Guarded<SessionLock, [Database; DATABASES]>;

/// A database as a session has seen it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Database {
    /// The OID; 0: the place is free.
    database: u32,
    tablespace: u32,
    mark: u64,
    /// The part of the hash that finds its states.
    incarnation: u32,
}

thread_local! {
    /// The incarnation of this session's database.
    static INCARNATION: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The incarnation of this session's database: different from that of any earlier database with the same OID, except
/// one in four billions. Asks Postgres at first, so in a transaction, and not under a lock.
#[inline]
pub fn incarnation(databases: &Databases) -> u32 {
    INCARNATION.get().unwrap_or_else(|| look(databases))
}

/// Determines the incarnation.
#[cold]
fn look(databases: &Databases) -> u32 {
    // SAFETY: constant in a session, which is connected to a database.
    let (database, tablespace) = unsafe { (pg_sys::MyDatabaseId, pg_sys::MyDatabaseTableSpace) };
    let (mark, is_altered) = (mark(), catalog::is_database_altered(database));
    // The low half of the mark.
    let new = mark as u32;
    let now = Database {
        database: database.into(),
        tablespace: tablespace.into(),
        mark,
        incarnation: new,
    };
    // Asks Postgres, so not under the lock.
    let numbers = databases.read().map(|known| known.database);
    let is_free = |number: u32| number == 0 || !catalog::has_database(number.into());
    let free = match numbers.contains(&now.database) {
        true => None,
        false => numbers.into_iter().find(|&number| is_free(number)),
    };
    let incarnation = {
        let mut databases = databases.write();
        let at = |number| databases.iter().position(|known| known.database == number);
        let place = at(now.database).or_else(|| at(free?));
        let found = place.map(|at| &mut databases[at]);
        found.map_or(new, |found| {
            let is_moved = found.tablespace != now.tablespace && is_altered;
            let is_same = found.database == now.database && (found.mark == mark || is_moved);
            let incarnation = if is_same { found.incarnation } else { new };
            *found = Database { incarnation, ..now };
            incarnation
        })
    };
    INCARNATION.set(Some(incarnation));
    incarnation
}

/// The mark of this session's database; the same for all databases if the file can't be read.
fn mark() -> u64 {
    // SAFETY: set when a session connects, and never changed; relative to the data folder, in which it runs.
    let folder = unsafe {
        let path = pg_sys::DatabasePath;
        if path.is_null() { c"" } else { CStr::from_ptr(path) }
    };
    let file = Path::new(OsStr::from_bytes(folder.to_bytes())).join("PG_VERSION");
    let written = std::fs::metadata(file).map(|file| [file.mtime(), file.mtime_nsec()]);
    written.map_or(0, |written| {
        let [seconds, nanos] = written.map(i64::to_ne_bytes);
        xxh64(&nanos, xxh64(&seconds, 0))
    })
}
