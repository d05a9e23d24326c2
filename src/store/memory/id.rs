//! The address of a limit in shared memory: a keyed hash of database, extension, name and key.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::Hasher;

use pgrx::pg_sys;
use ratelimit_limiter::ports::{Id, Pool};
use siphasher::sip128::{Hash128, Hasher128, SipHasher13};

use super::{Memory, databases};
use crate::schema::catalog;
use ratelimit_pg::transaction;

/// Makes [`Id`]s that can't be predicted without the seed.
pub struct Identifier {
    /// Has hashed only the seed.
    seeded: SipHasher13,
    /// The last name: most calls have the same one as the call before.
    last: RefCell<Named>,
}

/// The hash of a name.
struct Named {
    scope: Scope,
    name: Vec<u8>,
    hasher: SipHasher13,
    hash: [u64; 2],
}

/// The database and extension of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct Scope {
    database: u32,
    /// The number of the extension, mixed with the [incarnation](databases::incarnation) of the database. So the
    /// remains of an earlier database with the same OID look like those of a dropped extension.
    extension: u32,
}

impl Scope {
    /// This database and its extension. Called in a transaction, and not under a lock.
    #[inline]
    pub fn new(memory: &Memory, extension: pg_sys::Oid) -> Scope {
        let extension = u32::from(extension) ^ databases::incarnation(memory.databases);
        // SAFETY: constant in a session.
        Scope { database: unsafe { pg_sys::MyDatabaseId }.into(), extension }
    }

    /// The database.
    pub fn database(self) -> pg_sys::Oid {
        self.database.into()
    }

    /// The scope of these [numbers](Scope::numbers).
    pub fn from_numbers([database, extension]: [u32; 2]) -> Scope {
        Scope { database, extension }
    }

    /// The scope of this [number](Scope::number).
    pub fn from_number(number: u64) -> Scope {
        Scope { database: (number >> 32) as u32, extension: number as u32 }
    }

    /// The numbers of the database and the extension.
    pub fn numbers(self) -> [u32; 2] {
        [self.database, self.extension]
    }

    /// Both numbers in one, which is not 0.
    pub fn number(self) -> u64 {
        u64::from(self.database) << 32 | u64::from(self.extension)
    }

    /// The number of an entry's owner. All defined limits of a database have the same one; configs in calls have one
    /// per role, and a few roles share a number by chance.
    pub fn owner(self, pool: Pool, role: pg_sys::Oid) -> u32 {
        match pool {
            Pool::Inline => self.database.rotate_left(16) ^ u32::from(role),
            Pool::Defined | Pool::Saved => self.database,
        }
    }

    /// Returns those of some scopes, each once, of which this session can see that the database or the extension was
    /// dropped. The extension only in its own database, and not in a transaction that has written, which may have
    /// dropped or created the extension and may be rolled back. Asks Postgres, so not under a lock.
    pub fn dropped(self, scopes: impl IntoIterator<Item = Scope>) -> BTreeSet<Scope> {
        let mut scopes: BTreeSet<Scope> = scopes.into_iter().collect();
        scopes.retain(|of| match of.database == self.database {
            true => of.extension != self.extension && transaction::number_if_any() == 0,
            false => !catalog::has_database(of.database.into()),
        });
        scopes
    }
}

impl Identifier {
    pub fn new(seed: [u64; 2]) -> Identifier {
        let seeded = SipHasher13::new_with_keys(seed[0], seed[1]);
        let last = named(seeded, Scope { database: 0, extension: 0 }, b"");
        Identifier { seeded, last: RefCell::new(last) }
    }

    /// Identifies a name and key.
    #[inline]
    pub fn id(&self, scope: Scope, name: &[u8], key: &[u8]) -> Id {
        let mut last = self.last.borrow_mut();
        if last.scope != scope || last.name != name {
            *last = named(self.seeded, scope, name);
        }
        let mut hasher = last.hasher;
        hasher.write(key);
        let key = words(hasher.finish128());
        Id { name: last.hash, key, pool: Pool::Defined, slots: 0 }
    }
}

fn named(mut hasher: SipHasher13, scope: Scope, name: &[u8]) -> Named {
    hasher.write(&scope.number().to_ne_bytes());
    hasher.write(name);
    hasher.write(&[0]); // which no text of Postgres has
    Named { scope, name: name.to_vec(), hash: words(hasher.finish128()), hasher }
}

fn words(hash: Hash128) -> [u64; 2] {
    [hash.h1, hash.h2]
}
