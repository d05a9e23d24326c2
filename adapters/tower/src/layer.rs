//! The layer and its service.

use std::mem;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use tower_layer::Layer;
use tower_service::Service;

use crate::answer::Answer;
use crate::database::within;
use crate::denials::Denials;
use crate::limit::{Decision, Limit, parsed};
use crate::statement::{self, Headers, push_request, stored_key};
use crate::{Error, Pool};

/// The answer to a request that can't be decided now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// It gets 503.
    #[default]
    Closed,
    /// It passes if [the error says "not now"](Error::is_not_now), with a [`Decision`] as for an exempt key. Mistakes
    /// and refused logins get 500.
    Open,
}

/// Limits the requests of a service: a denied one gets 429 and `Retry-After`.
///
/// Every response of a decided request has the headers `RateLimit` and `RateLimit-Policy`. The service finds the
/// [`Decision`] in the extensions of the request; layers around this one find it in those of a response 429, and the
/// [`Error`] in those of a response 503 or 500. The bodies of these are short texts.
///
/// Layers that every response needs, such as CORS, go outside: `.layer(limited).layer(cors)` in axum. Otherwise a page
/// of another origin can't read a 429, and preflight requests take tokens.
///
/// A layer takes its tokens before the service runs, in a transaction of its own. To take them in yours, call
/// [`Limit::take`].
#[derive(Clone)]
pub struct RateLimitLayer<P> {
    pool: P,
    takes: Vec<Take>,
    skip: Option<Function<Parts, bool>>,
    headers: Headers,
    rename: Option<Function<HeaderName, Option<HeaderName>>>,
    timeout: Duration,
    on_error: OnError,
    on_unchecked: Function<Error, ()>,
    denials: Option<Arc<Denials>>,
}

/// A function of the user's.
type Function<A, T> = Arc<dyn Fn(&A) -> T + Send + Sync>;

/// A limit, and how much each request takes of it.
#[derive(Clone)]
struct Take {
    limit: Limit,
    key: Function<Parts, String>,
    count: Option<Function<Parts, f64>>,
}

/// The keys and counts of a request.
type Asked = Vec<(String, f64)>;

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
            pool,
            takes: vec![Take { limit, key: Arc::new(key), count: None }],
            skip: None,
            headers: Headers::default(),
            rename: None,
            timeout: Duration::from_secs(5),
            on_error: OnError::Closed,
            on_unchecked: Arc::new(on_unchecked),
            denials: None,
        }
    }

    /// Takes the tokens of one more limit, all or nothing: if one of them denies a request, none has taken anything.
    /// The [`Decision`] is that of the limit that denies with the longest wait, or, if none denies, of that with the
    /// smallest share of its capacity left. The functions are those of the first limit's schema.
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

    /// Lets requests pass for which this is true: they take nothing, and have neither headers nor a [`Decision`].
    pub fn skip(self, skips: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self { skip: Some(Arc::new(skips)), ..self }
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
        Self { rename: Some(Arc::new(name)), ..self }
    }

    /// The maximum time of a call, to get a connection and its result. Default: 5 seconds. A connection with a late
    /// statement is closed, as is that of a request given up meanwhile. In the server the statement may run on, and
    /// take its tokens: set `statement_timeout` for the role.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
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

    /// The keys and counts of a request; None: it is left out.
    fn asks(&self, request: &Parts) -> Option<Asked> {
        if self.skip.as_ref().is_some_and(|skips| skips(request)) {
            return None;
        }
        let asks = |take: &Take| {
            let count = take.count.as_ref().map_or(take.limit.count, |count| count(request));
            (stored_key((take.key)(request)), count)
        };
        Some(self.takes.iter().map(asks).collect())
    }

    async fn decide(&self, asked: &[(String, f64)]) -> Result<Answer, Error> {
        let Some(denials) = &self.denials else { return self.ask(asked).await };
        let key: String =
            asked.iter().map(|(key, count)| format!("{count} {} {key} ", key.len())).collect();
        if let Some(known) = denials.known(&key) {
            return Ok(known);
        }
        let began = Instant::now();
        let answer = self.ask(asked).await?;
        denials.learn(&key, began, &answer);
        Ok(answer)
    }

    /// Asks the database.
    async fn ask(&self, asked: &[(String, f64)]) -> Result<Answer, Error> {
        let schema = &self.takes[0].limit.schema;
        let text = if let ([Take { limit, .. }], [(key, count)]) = (&*self.takes, asked) {
            let sql = statement::one(schema, self.headers);
            let count = count.to_string();
            let values = [Some(&*limit.name), Some(key), Some(&count), limit.config.as_deref()];
            within(self.timeout, &self.pool, &sql, &values).await?
        } else {
            let mut requests = String::new();
            for (Take { limit, .. }, (key, count)) in self.takes.iter().zip(asked) {
                let config = limit.config.as_deref();
                push_request(&mut requests, &limit.name, key, *count, config);
            }
            requests.push(']');
            let sql = statement::all(schema, self.headers);
            within(self.timeout, &self.pool, &sql, &[Some(&requests)]).await?
        };
        Ok(Answer::of(&parsed(&text)?))
    }

    /// The response to a request that must not pass; None: it passes. Adds the decision to the request's extensions.
    fn refusal<B, R: From<&'static str>>(
        &self,
        result: &Result<Answer, Error>,
        request: &mut Request<B>,
    ) -> Option<Response<R>> {
        let mut response = match result {
            Ok(answer) if answer.decision.ok => {
                request.extensions_mut().insert(answer.decision.clone());
                return None;
            }
            Ok(answer) => {
                let mut response = short(StatusCode::TOO_MANY_REQUESTS, "Too many requests.\n");
                response.extensions_mut().insert(answer.decision.clone());
                response
            }
            Err(error) if error.is_not_now() && self.on_error == OnError::Open => {
                (self.on_unchecked)(error);
                request.extensions_mut().insert(Decision::unchecked());
                return None;
            }
            Err(error) => {
                tracing::error!(%error, "a request is refused");
                let mut response = if error.is_not_now() {
                    short(StatusCode::SERVICE_UNAVAILABLE, "Try again later.\n")
                } else {
                    short(StatusCode::INTERNAL_SERVER_ERROR, "Internal error.\n")
                };
                response.extensions_mut().insert(error.clone());
                response
            }
        };
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, text);
        Some(response)
    }
}

fn short<R: From<&'static str>>(status: StatusCode, body: &'static str) -> Response<R> {
    let mut response = Response::new(R::from(body));
    *response.status_mut() = status;
    response
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

impl<S, P: Clone> Layer<S> for RateLimitLayer<P> {
    type Service = RateLimit<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, layer: Arc::new(self.clone()) }
    }
}

/// The service that [`RateLimitLayer`] makes from another.
pub struct RateLimit<S, P> {
    inner: S,
    layer: Arc<RateLimitLayer<P>>,
}

impl<S: Clone, P> Clone for RateLimit<S, P> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S, P, B, R> Service<Request<B>> for RateLimit<S, P>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    P: Pool,
    B: Send + 'static,
    R: From<&'static str> + Send,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone may not be ready: this one is.
        let next = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, next);
        let layer = self.layer.clone();
        let (parts, body) = request.into_parts();
        let asked = layer.asks(&parts);
        let mut request = Request::from_parts(parts, body);
        Box::pin(async move {
            let Some(asked) = asked else { return inner.call(request).await };
            let result = layer.decide(&asked).await;
            let mut response = match layer.refusal(&result, &mut request) {
                Some(refusal) => refusal,
                None => inner.call(request).await?,
            };
            if let Ok(answer) = result {
                // In addition to those of another layer: they are lists.
                for (name, value) in &answer.headers {
                    let renamed = layer.rename.as_ref().map(|rename| rename(name));
                    if let Some(name) = renamed.unwrap_or_else(|| Some(name.clone())) {
                        response.headers_mut().append(name, value.clone());
                    }
                }
            }
            Ok(response)
        })
    }
}
