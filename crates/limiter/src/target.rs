//! The target of a request: its limit, its block and its store, resolved once.

use std::borrow::Cow;
use std::rc::Rc;

use ratelimit_core::config::Definition;
pub use ratelimit_core::config::Store;
use ratelimit_core::{Kind, Limit, Micros, State};

use crate::error::{LimiterError, Result};
use crate::ports::{Defined, Host, RowId, Stored};
use crate::request::Request;

/// The key of a call, with its limit, its block and its store.
#[derive(Clone)]
pub struct Target<'a> {
    /// The limit's name, in the server's encoding.
    pub name: &'a [u8],
    /// The key, in the server's encoding.
    pub key: &'a [u8],
    /// The config of the call, or the definition.
    pub definition: Rc<Definition>,
    /// The place of its state.
    pub store: Store,
    /// Whether the name is defined for the key; otherwise `definition` is just the config of the call.
    pub is_defined: bool,
    /// The end of its block, which may be past, or [`Micros::FOREVER`]; `None`: there is no block.
    pub blocked_until: Option<Micros>,
    /// Converts name and key to UTF-8.
    utf8: fn(&[u8]) -> Cow<'_, str>,
}

impl<'a> Target<'a> {
    /// The target of a definition.
    pub fn defined<H: Host>(
        name: &'a [u8],
        key: &'a [u8],
        definition: Rc<Definition>,
        blocked_until: Option<Micros>,
    ) -> Target<'a> {
        let store = Store::from_definition(&definition);
        Target { name, key, definition, store, is_defined: true, blocked_until, utf8: H::utf8 }
    }

    /// The target of what remains of a limit: of its definition, or nowhere if it is undefined.
    pub(crate) fn remaining<H: Host>(
        name: &'a [u8],
        key: &'a [u8],
        definition: Option<Rc<Definition>>,
        blocked_until: Option<Micros>,
    ) -> Target<'a> {
        let is_defined = definition.is_some();
        let definition = definition.unwrap_or_else(|| Rc::new(Definition::unlimited()));
        Target { is_defined, ..Target::defined::<H>(name, key, definition, blocked_until) }
    }

    /// Resolves a request: its config, or else the definition of its name and key, or else of its name; and the end of
    /// its block.
    ///
    /// # Errors
    /// 42704: neither config nor definition, or its plan has none; 42501: a config for a defined name without the
    /// privilege to define; 22023: an invalid config; 22004 or 22023: as [`check_key`].
    pub fn resolve<H: Host>(host: &H, request: &Request<'a>) -> Result<Target<'a>> {
        Target::resolve_checking(host, request, |_| true)
    }

    /// Resolves a request, and checks its key by those `keyed` of its definition and of its config that are `checked`.
    pub(crate) fn resolve_checking<H: Host>(
        host: &H,
        request: &Request<'a>,
        checked: impl Fn(bool) -> bool,
    ) -> Result<Target<'a>> {
        let (name, key) = (request.name, request.key);
        let Defined { definition, missing_plan, blocked_until } = host.look_up(name, key)?;
        let is_defined = definition.is_some();
        let keyed = definition.as_ref().and_then(|definition| definition.keyed);
        // A config in the call doesn't override that.
        if let Some(plan) = missing_plan {
            return Err(undefined(H::utf8(name), Some(&plan)));
        }
        let definition = match (request.config, definition) {
            (Some(_), Some(_)) if !host.may_define() => {
                return Err(LimiterError::InlineConfig(H::utf8(name).into_owned()));
            }
            (Some(config), Some(defined)) => in_call(host, name, config.definition()?, defined)?,
            (Some(config), None) => {
                let definition = config.definition()?;
                definition.check_in_call()?;
                definition
            }
            (None, Some(definition)) => definition,
            (None, None) => return Err(undefined(H::utf8(name), None)),
        };
        let keyed = [keyed, definition.keyed];
        let definition = host.in_force(name, definition);
        let (store, utf8) = (Store::from_definition(&definition), H::utf8);
        let target = Target { name, key, definition, store, is_defined, blocked_until, utf8 };
        for keyed in keyed.into_iter().flatten().filter(|&keyed| checked(keyed)) {
            check_key::<H>(name, key, Some(keyed), target.limit())?;
        }
        Ok(target)
    }

    /// The limit of the definition.
    #[inline]
    pub fn limit(&self) -> &Limit {
        &self.definition.limit
    }

    /// Returns the primary key of the row with this shard number.
    pub fn row(&self, shard: i32) -> RowId<'a> {
        RowId { name: self.name, key: self.key, shard }
    }

    /// The limit's name in UTF-8.
    pub(crate) fn name_text(&self) -> String {
        (self.utf8)(self.name).into_owned()
    }

    /// The start of the key's windows; see [`ratelimit_core::phase`]. Only windows need it.
    pub fn phase(&self) -> Micros {
        if !self.limit().has_phase() {
            return Micros(0);
        }
        let text = self.utf8;
        ratelimit_core::phase(text(self.name).as_bytes(), text(self.key).as_bytes())
    }

    /// Interprets a row at `now`, an instant after the read. `limit` is the row's: the whole limit, or a shard's.
    pub(crate) fn state<'s>(
        &self,
        limit: &Limit,
        stored: Option<&'s Stored>,
        now: Micros,
    ) -> Result<Cow<'s, State>> {
        match stored {
            Some(Stored::State(state)) if limit.accepts(state.shape()) => Ok(Cow::Borrowed(state)),
            Some(Stored::Invalid { column, value, .. }) => {
                Err(LimiterError::bad_state(self.name_text(), column, value))
            }
            // A row that was reset, or of a kind with nothing to carry over, counts as none.
            _ => Ok(Cow::Owned(limit.initial_state(now, self.phase()))),
        }
    }

    /// Whether a row holds a state of another kind, or an ignored one, so that a change begins the state again, without
    /// the old state's holds.
    #[inline]
    pub(crate) fn begins_anew(&self, stored: &Stored, now: Micros) -> bool {
        let limit = self.limit();
        match stored {
            Stored::State(state) => !limit.accepts(state.shape()) || limit.ignores(state, now),
            stored => stored.suits(limit) == Some(false),
        }
    }

    /// The end of the block in force, if any.
    pub fn block(&self, now: Micros) -> Option<Micros> {
        self.blocked_until.filter(|&until| until > now)
    }

    /// Refuses a limit with leases for a function that is not of `leases`, and any other for one that is. A key without
    /// a limit has no lease, and needs none.
    ///
    /// # Errors
    /// [`LimiterError::NotForKind`] (0A000).
    #[inline]
    pub(crate) fn check_kind(&self, function: &'static str, leases: bool) -> Result<()> {
        let kind = self.limit().kind();
        match self.store == Store::Nowhere || kind.has_leases() == leases {
            true => Ok(()),
            false => Err(LimiterError::NotForKind(function, kind)),
        }
    }
}

/// The config of a call for a defined limit: if that is saved, the config counts in memory, too.
///
/// # Errors
/// [`LimiterError::Config`] (22023): it asks for another store than a saved limit's, or for `save` on a limit that is
/// not saved.
fn in_call<H: Host>(
    host: &H,
    name: &[u8],
    config: Rc<Definition>,
    defined: Rc<Definition>,
) -> Result<Rc<Definition>> {
    // Definitions as stored: `in_force` is applied to the result.
    let of_state = match Store::from_definition(&defined) {
        Store::Nowhere => host.look_up(name, b"")?.definition.unwrap_or(defined),
        _ => defined,
    };
    match of_state.save {
        Some(save) => Ok(Rc::new(config.for_saved(save)?)),
        None => {
            config.check_unsaved()?;
            Ok(config)
        }
    }
}

/// The error for a name without definition and config, or for a key with an undefined plan (42704).
pub fn undefined(name: Cow<str>, missing_plan: Option<&str>) -> LimiterError {
    let name = name.into_owned();
    match missing_plan {
        Some(plan) => LimiterError::UndefinedPlan(name, plan.into()),
        None => LimiterError::Undefined(name, Kind::TokenBucket),
    }
}

/// Refuses the empty key if a limit is `keyed`, and any other key if the limit says that it is not.
///
/// # Errors
/// [`LimiterError::Keyed`] (22004), [`LimiterError::NotKeyed`] (22023).
pub fn check_key<H: Host>(
    name: &[u8],
    key: &[u8],
    keyed: Option<bool>,
    limit: &Limit,
) -> Result<()> {
    if keyed != Some(key.is_empty()) {
        return Ok(());
    }
    let (name, kind) = (H::utf8(name).into_owned(), limit.kind());
    Err(match key.is_empty() {
        true => LimiterError::Keyed(name, kind),
        false => LimiterError::NotKeyed(name, kind),
    })
}

/// Looks up the limit that has a key's state: if the key alone is exempt, the name's limit, which holds again
/// afterwards. `None`: there is none.
pub fn of_state(host: &impl Host, name: &[u8], key: &[u8]) -> Result<Option<Rc<Definition>>> {
    match host.defined(name, key)? {
        Some(own) if Store::from_definition(&own) == Store::Nowhere => {
            Ok(host.defined(name, b"")?.or(Some(own)))
        }
        own => Ok(own),
    }
}

/// Returns a definition that was looked up, or `None` if the stored one is not a valid config.
pub(crate) fn if_valid<T>(looked_up: Result<Option<T>>) -> Result<Option<T>> {
    match looked_up {
        Err(LimiterError::StoredConfig { .. }) => Ok(None),
        looked_up => looked_up,
    }
}
