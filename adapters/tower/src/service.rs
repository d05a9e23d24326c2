//! The service: what a layer does with each request.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, header};
use serde_json::json;
use tower_layer::Layer;
use tower_service::Service;

use crate::denials::Answer;
use crate::layer::{RateLimitLayer, Take};
use crate::limit::parsed;
use crate::shared::Shared;
use crate::statement::{self, request, stored_key};
use crate::{Error, OnError, Pool};

/// The service that [`RateLimitLayer`] makes from another.
#[derive(Clone)]
pub struct RateLimit<S, P: Pool> {
    inner: S,
    limiter: Arc<Limiter<P>>,
}

/// A layer that is complete.
struct Limiter<P: Pool> {
    layer: RateLimitLayer<P>,
    statement: String,
    shared: Option<Shared<P>>,
}

impl<S, P: Pool> Layer<S> for RateLimitLayer<P> {
    type Service = RateLimit<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = self.clone();
        let (schema, headers) = (&layer.takes[0].limit.schema, layer.headers);
        let statement = match layer.takes[..] {
            [_] => statement::one(schema, headers),
            _ => statement::all(schema, headers),
        };
        let shared = layer.shared.clone().map(|state| {
            let each = statement::each(schema, headers).into();
            Shared { database: layer.database.clone(), each, state }
        });
        RateLimit { inner, limiter: Arc::new(Limiter { layer, statement, shared }) }
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
        let limiter = self.limiter.clone();
        let (parts, body) = request.into_parts();
        let asked = limiter.asks(&parts);
        let mut request = Request::from_parts(parts, body);
        Box::pin(async move {
            let Some(asked) = asked else { return inner.call(request).await };
            let result = limiter.decide(&asked).await;
            let result = result.or_else(|error| limiter.unchecked(error));
            let mut response = match &result {
                Ok(answer) if answer.decision.ok => {
                    request.extensions_mut().insert(answer.decision.clone());
                    inner.call(request).await?
                }
                Ok(answer) => refusal(DENIED, answer.decision.clone()),
                Err(error) => {
                    tracing::error!(%error, "a request is refused");
                    refusal(if error.is_not_now() { NOT_NOW } else { FAILED }, error.clone())
                }
            };
            if let Ok(answer) = result {
                // In addition to those of another layer: they are lists.
                for (name, value) in &answer.headers {
                    if let Some(name) = (limiter.layer.rename)(name) {
                        response.headers_mut().append(name, value.clone());
                    }
                }
            }
            Ok(response)
        })
    }
}

impl<P: Pool> Limiter<P> {
    /// The keys and counts of a request; None: it is left out.
    fn asks(&self, request: &Parts) -> Option<Vec<(String, f64)>> {
        if (self.layer.skip)(request) {
            return None;
        }
        let asks = |take: &Take| {
            let count = take.count.as_ref().map_or(take.limit.count, |count| count(request));
            (stored_key((take.key)(request)), count)
        };
        Some(self.layer.takes.iter().map(asks).collect())
    }

    async fn decide(&self, asked: &[(String, f64)]) -> Result<Answer, Error> {
        let Some(denials) = &self.layer.denials else { return self.ask(asked).await };
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
        let RateLimitLayer { database, takes, .. } = &self.layer;
        let deadline = database.deadline();
        let ask = async |values| parsed(&database.run(deadline, &self.statement, values).await?);
        let result = if let ([Take { limit, .. }], [(key, count)]) = (&**takes, asked) {
            let text = count.to_string();
            let alone = ask([Some(&*limit.name), Some(key), Some(&text), limit.config.as_deref()]);
            match &self.shared {
                Some(shared) => shared.call(limit, key, *count, deadline, alone).await?,
                None => alone.await?,
            }
        } else {
            let asked = takes.iter().zip(asked);
            let requests: Vec<_> =
                asked.map(|(take, (key, count))| request(&take.limit, key, *count)).collect();
            ask([None, None, None, Some(&*format!("[{}]", requests.join(",")))]).await?
        };
        Ok(Answer::of(&result))
    }

    /// The answer to a request that passes although it can't be decided; otherwise the error.
    fn unchecked(&self, error: Error) -> Result<Answer, Error> {
        if !error.is_not_now() || self.layer.on_error == OnError::Closed {
            return Err(error);
        }
        (self.layer.on_unchecked)(&error);
        Ok(Answer::of(&json!({ "row": { "ok": true } })))
    }
}

/// The statuses and bodies of requests that don't pass.
const DENIED: (StatusCode, &str) = (StatusCode::TOO_MANY_REQUESTS, "Too many requests.\n");
const NOT_NOW: (StatusCode, &str) = (StatusCode::SERVICE_UNAVAILABLE, "Try again later.\n");
const FAILED: (StatusCode, &str) = (StatusCode::INTERNAL_SERVER_ERROR, "Internal error.\n");

/// The response to one, with the reason in its extensions.
fn refusal<R: From<&'static str>>(
    (status, body): (StatusCode, &'static str),
    reason: impl Clone + Send + Sync + 'static,
) -> Response<R> {
    let mut response = Response::new(R::from(body));
    *response.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response.extensions_mut().insert(reason);
    response
}
