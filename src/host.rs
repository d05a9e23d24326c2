//! A session of PostgreSQL as the limiter's host: implements the ports of [`ratelimit_limiter`] for one call.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use pgrx::pg_sys;
use ratelimit_core::config::{Definition, StoreKind};
use ratelimit_core::{ArgumentError, Micros};
use ratelimit_limiter::error::Result as PortResult;
use ratelimit_limiter::ports::{
    Block, Counted, Defined, Definitions, Holds, Host, Id, InlineConfig, Key, KeyHolds, Listing,
    RowAccess, Rows, Transaction,
};

use crate::cache::{blocks, changed, definitions};
use crate::schema::catalog::{self, Catalog, TableLock};
use crate::schema::error::{Error, Result};
use crate::schema::invalidation;
use crate::schema::settings::{self, Access};
use crate::schema::spi;
use crate::store::heap::{Heap, HeldHeap};
use crate::store::holds;
use crate::store::memory::writer::{self, Origin};
use crate::store::memory::{Memory, SavedMemory, SharedEntries};
use crate::store::own_locks;
use crate::tally;
use ratelimit_pg::call::sql_types::Checked;
use ratelimit_pg::clock;
use ratelimit_pg::interrupts::check_for_interrupts;
use ratelimit_pg::memory_context::Scratch;
use ratelimit_pg::shared_memory;
use ratelimit_pg::subtransaction;
use ratelimit_pg::transaction::{is_read_only, refuse_read_only_call};
use ratelimit_pg::values::{Jsonb, json_text, jsonb_from_json, utf8};

/// A call of an SQL function, in its transaction.
pub struct Session<'a> {
    catalog: &'a Catalog,
    /// The function's OID.
    function: pg_sys::Oid,
    entries: OnceCell<SharedEntries>,
}

/// The effect of a use case, which determines the first lock on the table.
#[derive(Clone, Copy)]
pub enum Use {
    /// Reads.
    Reads,
    /// May write. If the table can't be written, only definitions are read; on a standby, under no stronger lock.
    Takes,
    /// Writes.
    Writes,
}

impl Session<'_> {
    /// Runs a use case under a lock on the table, and again if the table changes before the first write.
    pub fn run<T>(
        usage: Use,
        function: pg_sys::Oid,
        mut work: impl FnMut(&Session) -> PortResult<T>,
    ) -> Result<T> {
        let lock = match usage {
            Use::Takes if !is_read_only() => TableLock::Write,
            Use::Writes => TableLock::Write,
            Use::Reads | Use::Takes => TableLock::Read,
        };
        catalog::with(function, lock, |catalog| {
            Ok(work(&Session { catalog, function, entries: OnceCell::new() })?)
        })
    }

    /// The OID of the table of rows.
    pub fn table(&self) -> pg_sys::Oid {
        self.catalog.rate_limits.oid
    }

    /// Refuses a call for holds where there are none ([`Error::HoldsOnCitus`], 0A000).
    fn refuse_without_holds(&self) -> PortResult<()> {
        if self.has_holds() { Ok(()) } else { Err(Error::HoldsOnCitus.into()) }
    }

    /// The entries of a memory, for this database and extension.
    fn entries_of(&self, memory: &'static Memory) -> &SharedEntries {
        let origin = || Origin::new(memory, self.catalog);
        self.entries.get_or_init(|| SharedEntries::new(memory, origin()))
    }
}

/// The config of a call.
pub struct CallConfig<'a>(pub Jsonb<'a>);

impl<'call> Checked<'call> for CallConfig<'call> {
    type Base = Jsonb<'call>;

    fn check(config: Jsonb<'call>, _: &'static str) -> Result<CallConfig<'call>, ArgumentError> {
        Ok(CallConfig(config))
    }
}

impl InlineConfig for CallConfig<'_> {
    fn definition(&self) -> PortResult<Rc<Definition>> {
        let definition = definitions::inline(self.0)?;
        Ok(definition.passed().map_or(definition, Rc::new))
    }

    fn json(&self) -> Vec<u8> {
        json_text(self.0)
    }
}

/// The config of a call, in the form that a request takes.
pub fn inline<'a>(config: &'a Option<CallConfig>) -> Option<&'a dyn InlineConfig> {
    config.as_ref().map(|config| config as &dyn InlineConfig)
}

impl Transaction for Session<'_> {
    fn utf8(bytes: &[u8]) -> Cow<'_, str> {
        utf8(bytes)
    }

    #[inline]
    fn now(&self) -> Micros {
        clock::now()
    }

    #[inline]
    fn check_for_interrupts(&self) {
        check_for_interrupts();
    }

    fn each_page<T: 'static>(&self, mut page: impl FnMut() -> Option<T>) -> T {
        let mut scratch = Scratch::new();
        loop {
            if let Some(result) = scratch.run(&mut page) {
                return result;
            }
        }
    }

    /// Drawn 64 at a time, each used once: asking OpenSSL for one takes a third of the time of rl_limit.
    fn unguessable(&self) -> PortResult<u64> {
        const AT_ONCE: usize = 64;
        thread_local! {
            static DRAWN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
        }
        DRAWN.with_borrow_mut(|drawn| {
            if drawn.is_empty() {
                let mut random = [0; AT_ONCE];
                if !shared_memory::random(&mut random) {
                    return Err(Error::NoRandom.into());
                }
                drawn.extend(random);
            }
            drawn.pop().ok_or_else(|| Error::NoRandom.into())
        })
    }

    fn below(&self, end: usize) -> usize {
        fastrand::usize(..end)
    }

    fn attempt<T>(&self, work: impl FnOnce() -> PortResult<Option<T>>) -> PortResult<Option<T>> {
        subtransaction::attempt(work)
    }

    fn attempt_within<T>(
        &self,
        limit: Micros,
        work: impl FnOnce() -> PortResult<Option<T>>,
    ) -> PortResult<(Option<T>, Micros)> {
        let began = clock::monotonic();
        let result = subtransaction::attempt_within(limit, work)?;
        Ok((result, clock::monotonic().minus(began)))
    }

    fn own_rows(&self, name: &[u8], key: &[u8]) -> Vec<i32> {
        own_locks::own_rows(name, key)
    }

    fn refuse_read_only(&self) -> PortResult<()> {
        Ok(refuse_read_only_call(self.function).map_err(Error::from)?)
    }
}

impl Definitions for Session<'_> {
    fn look_up(&self, name: &[u8], key: &[u8]) -> PortResult<Defined> {
        Ok(definitions::look_up(self.catalog, name, key)?)
    }

    fn defined(&self, name: &[u8], key: &[u8]) -> PortResult<Option<Rc<Definition>>> {
        let definition = definitions::defined(self.catalog, name, key)?;
        Ok(definition.map(|definition| self.in_force(name, definition)))
    }

    /// Under a fixed clock a saved limit is in memory only, where such a clock has its own states. A session that has
    /// changed the definition uses the row until it commits, because memory is not part of its transaction.
    #[inline]
    fn in_force(&self, name: &[u8], definition: Rc<Definition>) -> Rc<Definition> {
        let store = match definition.save {
            Some(_) if clock::is_fixed() => StoreKind::Memory,
            Some(_) if changed::is_changed(name) => StoreKind::Table,
            _ => return definition,
        };
        Rc::new(Definition { store, save: None, ..(*definition).clone() })
    }

    fn may_be_in_table(&self, name: &[u8]) -> PortResult<bool> {
        Ok(definitions::may_be_in_table(self.catalog, name)?)
    }

    fn may_define(&self) -> bool {
        self.catalog.may_define()
    }

    fn blocks_in_force(&self, listing: Listing) -> PortResult<Vec<(Key, Block)>> {
        Ok(blocks::in_force(self.catalog, listing.name, listing.key)?)
    }

    fn exempt_keys(&self, listing: Listing) -> PortResult<Vec<(Key, Rc<Definition>)>> {
        let mut keys = definitions::exempt_keys(self.catalog, listing.name, listing.key)?;
        for ((name, _), definition) in &mut keys {
            *definition = self.in_force(name, definition.clone());
        }
        Ok(keys)
    }

    fn of_hold(&self, config: &[u8]) -> PortResult<Rc<Definition>> {
        Ok(definitions::inline(jsonb_from_json(&utf8(config)))?)
    }

    fn prune_blocks(&self, max_rows: i64) -> PortResult<i64> {
        Ok(blocks::prune(self.catalog, max_rows)?)
    }

    fn check_definitions(&self) -> PortResult<()> {
        invalidation::accept();
        Ok(catalog::check(self.catalog)?)
    }
}

impl Host for Session<'_> {
    type Entries = SharedEntries;
    type Counter = tally::Counter;

    fn counter(&self, name: &[u8], key: &[u8]) -> PortResult<Option<tally::Counter>> {
        Ok(tally::counter(self.catalog, name, key)?)
    }

    fn count(&self, counter: Option<tally::Counter>, counted: Counted) {
        tally::count(self.catalog, counter, counted);
    }

    /// Accesses the rows in the heap or through SQL, depending on `ratelimit.access` and the table. The lock must be
    /// the strongest that the whole work needs: upgrading it later could deadlock with REINDEX, which upgrades its own.
    ///
    /// Takes a closure, because on Citus the rows are accessible only inside a function called by the executor
    /// (`nested_query`).
    ///
    /// # Errors
    /// [`Error::NoHeap`] (0A000): `ratelimit.access` is heap, and the table needs SQL; [`Error::Moved`]: the table has
    /// changed since the catalog was read, before the work began.
    fn with_rows<T>(
        &self,
        access: RowAccess,
        work: impl FnOnce(&dyn Rows) -> PortResult<T>,
    ) -> PortResult<T> {
        let catalog = self.catalog;
        let table = catalog.rate_limits;
        let lock = match access {
            RowAccess::Read => TableLock::Read,
            RowAccess::Write => TableLock::Write,
            RowAccess::Glance => {
                return catalog::reading(table, || self.with_rows(RowAccess::Read, work));
            }
        };
        if let (Access::Auto | Access::Heap, Ok(index)) = (settings::ACCESS.get(), catalog.index) {
            return work(&Heap::open(catalog, index, lock)?);
        }
        // SAFETY: in a transaction. Locked before the check, since the lock processes invalidations.
        lock.take(|| unsafe { pg_sys::LockRelationOid(table.oid, lock as _) });
        catalog::check(catalog)?;
        if let (Access::Heap, Err(why)) = (settings::ACCESS.get(), catalog.index) {
            return Err(Error::NoHeap { why }.into());
        }
        Ok(spi::with_owner(catalog, table, lock, |sql| Ok(work(sql)?))?)
    }

    /// Runs `work` on the holds. Called under the lock on the table of rows, which comes first.
    ///
    /// # Errors
    /// [`Error::HoldsOnCitus`] (0A000).
    fn with_holds<T>(&self, work: impl FnOnce(&dyn Holds) -> PortResult<T>) -> PortResult<T> {
        self.refuse_without_holds()?;
        let (catalog, lock) = (self.catalog, catalog::first_lock());
        let indexes = match settings::ACCESS.get() {
            Access::Auto | Access::Heap => catalog.hold_indexes,
            Access::Sql => None,
        };
        let mut work = Some(work);
        let mut directly = || {
            // If the table has changed meanwhile, uses SQL: the call may have written already, and can't start again.
            let holds = HeldHeap::open(catalog, indexes?, lock)?;
            Some(work.take()?(&holds))
        };
        let done = match (lock, indexes) {
            (TableLock::Read, Some(_)) => catalog::reading(catalog.rl_holds, directly),
            _ => directly(),
        };
        match (done, work) {
            (Some(done), _) => done,
            (None, Some(work)) => holds::by_sql(catalog, lock, |holds| work(holds)),
            (None, None) => Err(Error::Moved.into()),
        }
    }

    fn with_key_holds<T>(
        &self,
        work: impl FnOnce(&dyn KeyHolds) -> PortResult<T>,
    ) -> PortResult<T> {
        self.refuse_without_holds()?;
        holds::by_sql(self.catalog, catalog::first_lock(), |holds| work(holds))
    }

    fn has_holds(&self) -> bool {
        !self.catalog.rl_holds.distributed && !self.catalog.rate_limits.distributed
    }

    fn entries(&self) -> PortResult<&SharedEntries> {
        let memory = Memory::get()?;
        Ok(self.entries_of(memory))
    }

    fn saved_entries(&self) -> PortResult<&SharedEntries> {
        if self.catalog.rate_limits.distributed {
            return Err(Error::SavedOnCitus.into());
        }
        SavedMemory::get()?;
        self.entries()
    }

    fn entries_if_any(&self) -> PortResult<Option<&SharedEntries>> {
        let memory = tally::memory_if_any(false)?;
        Ok(memory.map(|memory| self.entries_of(memory)))
    }

    #[inline]
    fn entry_of(&self, counter: tally::Counter) -> Id {
        counter.memory.states.prefetch(counter.id);
        counter.id
    }

    fn wait_for_save(&self) -> PortResult<bool> {
        let (memory, saved) = (Memory::get()?, SavedMemory::get()?);
        let origin = Origin::new(memory, self.catalog);
        Ok(writer::wait_for_capacity(saved, &origin))
    }
}
