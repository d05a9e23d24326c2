//! The layer: its options.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderName;
use http::request::Parts;

use crate::database::Database;
use crate::denials::Denials;
use crate::shared::State;
use crate::{Error, Headers, Limit, Pool};

/// The answer to a request that can't be decided now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// It gets 503.
    #[default]
    Closed,
    /// It passes if [the error says "not now"](Error::is_not_now), with a [`Decision`](crate::Decision) as for an
    /// exempt key. Mistakes and refused logins get 500.
    Open,
}

/// Limits the requests of a service: a denied one gets 429 and `Retry-After`.
///
/// Every response of a decided request has the headers `RateLimit` and `RateLimit-Policy`. The service finds the
/// [`Decision`](crate::Decision) in the extensions of the request; layers around this one find it in those of a
/// response 429, and the [`Error`] in those of a response 503 or 500. The bodies of these are short texts.
///
/// Layers that every response needs, such as CORS, go outside: `.layer(limited).layer(cors)` in axum. Otherwise a page
/// of another origin can't read a 429, and preflight requests take tokens.
///
/// A layer takes its tokens before the service runs, in a transaction of its own. To take them in yours, call
/// [`Limit::take`].
#[derive(Clone)]
pub struct RateLimitLayer<P: Pool> {
    pub(crate) database: Database<P>,
    pub(crate) takes: Vec<Take>,
    pub(crate) skip: Function<Parts, bool>,
    pub(crate) headers: Headers,
    pub(crate) rename: Function<HeaderName, Option<HeaderName>>,
    pub(crate) on_error: OnError,
    pub(crate) on_unchecked: Function<Error, ()>,
    pub(crate) denials: Option<Arc<Denials>>,
    pub(crate) shared: Option<Arc<Mutex<State<P>>>>,
}

/// A function of the user's.
pub(crate) type Function<A, T> = Arc<dyn Fn(&A) -> T + Send + Sync>;

/// A limit, and how much each request takes of it.
#[derive(Clone)]
pub(crate) struct Take {
    pub limit: Limit,
    pub key: Function<Parts, String>,
    pub count: Option<Function<Parts, f64>>,
}

impl<P: Pool> RateLimitLayer<P> {
    /// Takes the tokens of a limit for the key of a request: of an authenticated user, say, or of [an
    /// address](address_key). A key that can't be stored, such as one longer than 1,024 bytes, is counted by its
    /// SHA-256.
    pub fn new(
        pool: P,
        limit: Limit,
        key: impl Fn(&Parts) -> String + Send + Sync + 'static,
    ) -> Self {
        let on_unchecked = |error: &Error| tracing::warn!(%error, "a request passes unchecked");
        Self {
            database: Database {
                pool,
                timeout: Duration::from_secs(5),
                prepared: Some(Arc::default()),
            },
            takes: vec![Take { limit, key: Arc::new(key), count: None }],
            skip: Arc::new(|_| false),
            headers: Headers::default(),
            rename: Arc::new(|name| Some(name.clone())),
            on_error: OnError::Closed,
            on_unchecked: Arc::new(on_unchecked),
            denials: None,
            shared: Some(Arc::default()),
        }
    }

    /// A layer of another limit, on the same pool and with the options of this one, but without its [`and`](Self::and)
    /// and [`count`](Self::count). Their calls share statements, so that one is under way at a time; those of layers
    /// that are made by `new` don't. Each remembers denials of its own.
    pub fn another(
        &self,
        limit: Limit,
        key: impl Fn(&Parts) -> String + Send + Sync + 'static,
    ) -> Self {
        let takes = vec![Take { limit, key: Arc::new(key), count: None }];
        let denials = self.denials.as_ref().map(|own| Denials::new(own.most, own.at_most).into());
        Self { takes, denials, ..self.clone() }
    }

    /// Takes the tokens of one more limit, all or nothing: if one of them denies a request, none has taken anything.
    /// The [`Decision`](crate::Decision) is that of the limit that denies with the longest wait, or, if none denies, of
    /// that with the smallest share of its capacity left. The functions are those of the first limit's schema.
    pub fn and(
        mut self,
        limit: Limit,
        key: impl Fn(&Parts) -> String + Send + Sync + 'static,
    ) -> Self {
        self.takes.push(Take { limit, key: Arc::new(key), count: None });
        self
    }

    /// The tokens that a request takes of the limit named last, instead of its [count](Limit::count): 0 to 1e15;
    /// otherwise it gets 500, with 22023.
    pub fn count(mut self, count: impl Fn(&Parts) -> f64 + Send + Sync + 'static) -> Self {
        if let Some(last) = self.takes.last_mut() {
            last.count = Some(Arc::new(count));
        }
        self
    }

    /// Lets requests pass for which this is true: they take nothing, and have neither headers nor a
    /// [`Decision`](crate::Decision).
    pub fn skip(self, skips: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self { skip: Arc::new(skips), ..self }
    }

    /// Sets the headers of responses.
    pub fn headers(self, headers: Headers) -> Self {
        Self { headers, ..self }
    }

    /// Gives each header the name that this returns, or leaves it out, if that is None.
    pub fn rename_headers(
        self,
        name: impl Fn(&HeaderName) -> Option<HeaderName> + Send + Sync + 'static,
    ) -> Self {
        Self { rename: Arc::new(name), ..self }
    }

    /// The maximum time of a call, to get a connection and its result. Default: 5 seconds. A connection with a late
    /// statement is closed, as is that of a request given up meanwhile. In the server the statement may run on, and
    /// take its tokens: set `statement_timeout` for the role.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.database.timeout = timeout;
        self
    }

    /// Whether statements are prepared. Default: true. One that is refused, behind a pooler that doesn't know prepared
    /// statements, is sent again unprepared, on another connection; after three in a minute none is prepared for ten.
    pub fn prepare(mut self, prepares: bool) -> Self {
        self.database.prepared = prepares.then(Arc::default);
        let shares = self.shared.is_some();
        self.batch(shares)
    }

    /// Whether calls share statements. Default: true. Calls that come while one is under way go together in the next,
    /// by `rl_limit_each`; where the role has no EXECUTE on it, and those for several limits, go alone. Pass false if
    /// the pool sets a role or other settings for each request. The calls of layers that are made
    /// [from one another](Self::another) share, too, unless this or [`prepare`](Self::prepare) is set for one of them.
    pub fn batch(self, shares: bool) -> Self {
        Self { shared: shares.then(Arc::default), ..self }
    }

    /// Sets the answer to a request that can't be decided now.
    pub fn on_error(self, on_error: OnError) -> Self {
        Self { on_error, ..self }
    }

    /// Called with the error of each request that passes unchecked. Default: a warning of `tracing`.
    pub fn on_unchecked(self, hears: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        Self { on_unchecked: Arc::new(hears), ..self }
    }

    /// Answers a denied key without the database, until it can pass, and for `at_most`. Remembers the denials of at
    /// most `max` keys: those used last. Does not notice changes that end a denial early, such as a reset.
    pub fn remember_denials(self, max: usize, at_most: Duration) -> Self {
        Self { denials: Some(Arc::new(Denials::new(max, at_most))), ..self }
    }
}

/// The key of a client's address: an IPv4 address as it is, or the /64 network of an IPv6 address, because a client has
/// all of its addresses. Behind a proxy the address is that of the proxy: take the header that it sets.
pub fn address_key(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            format!("{}/64", std::net::Ipv6Addr::from(network))
        }
    }
}
