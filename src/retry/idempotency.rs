use http::HeaderValue;

/// Creates the value of a header `Idempotency-Key`: a random string of 128 bits.
///
/// Set it outside of the retries, so that all attempts of a request have one id. A server with
/// [`RateLimitLayer::once`](crate::RateLimitLayer::once) then charges a request once whose response was lost. The other
/// attempts cost the client nothing: a denied request is not charged.
///
/// ```
/// use http::{Request, Response};
/// use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_ratelimit::retry::{RetryAfter, RetryHint, idempotency_key};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), BoxError> {
/// // A connection that loses the first response.
/// let ids = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
/// let seen = ids.clone();
/// let http = service_fn(move |request: Request<()>| {
///     let mut ids = ids.lock().unwrap();
///     ids.push(request.headers()["idempotency-key"].clone());
///     let result = if ids.len() == 1 { Err(BoxError::from("connection lost")) } else { Ok(Response::new(())) };
///     async move { result }
/// });
///
/// let retry_errors = |_: &Request<()>, result: Result<&Response<()>, &BoxError>| match result {
///     Ok(_) => RetryHint::None,
///     Err(_) => RetryHint::Backoff,
/// };
/// let mut client = ServiceBuilder::new()
///     .map_request(|mut request: Request<()>| {
///         request.headers_mut().insert("idempotency-key", idempotency_key());
///         request
///     })
///     .retry(RetryAfter::new().with_reader(retry_errors))
///     .service(http);
/// client.ready().await?.call(Request::new(())).await?;
/// let ids = seen.lock().unwrap();
/// assert!(ids.len() == 2 && ids[0] == ids[1]);
/// # Ok(())
/// # }
/// ```
pub fn idempotency_key() -> HeaderValue {
    let id = format!("\"{:032x}\"", fastrand::u128(..));
    // Visible ASCII only.
    HeaderValue::try_from(id).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}
