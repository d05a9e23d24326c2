//! What identifies a limit in shared memory: a keyed hash of database, extension, name and key.

use std::hash::Hasher;

use pgrx::pg_sys;
use siphasher::sip128::{Hash128, Hasher128, SipHasher13};

/// A limit's name, and a name and key, of an extension in a database.
#[derive(Clone, Copy)]
pub struct Id {
    pub name: [u64; 2],
    /// That of the name and key.
    pub key: [u64; 2],
}

/// Makes [`Id`]s that nobody can foresee who does not know the seed.
#[derive(Clone, Copy)]
pub struct Identifier(SipHasher13);

/// Where a name is from.
#[derive(Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Scope {
    database: u32,
    extension: u32,
}

impl Scope {
    /// This database, and its extension.
    pub fn new(extension: pg_sys::Oid) -> Scope {
        // SAFETY: constant in a session.
        Scope { database: unsafe { pg_sys::MyDatabaseId }.into(), extension: extension.into() }
    }
}

impl Identifier {
    pub fn new(seed: [u64; 2]) -> Identifier {
        Identifier(SipHasher13::new_with_keys(seed[0], seed[1]))
    }

    /// Identifies a name and key.
    pub fn id(&self, scope: Scope, name: &[u8], key: &[u8]) -> Id {
        let mut hasher = self.0;
        let scope = u64::from(scope.database) << 32 | u64::from(scope.extension);
        hasher.write(&scope.to_ne_bytes());
        hasher.write(name);
        hasher.write(&[0]); // which no text of Postgres has
        let name = words(hasher.finish128());
        hasher.write(key);
        Id { name, key: words(hasher.finish128()) }
    }
}

fn words(hash: Hash128) -> [u64; 2] {
    [hash.h1, hash.h2]
}
