//! A custom limiter that combines a limit in memory with a remote service: prepaid credit at a bank.
//!
//! ```text
//! cargo run --example custom_limiter
//! ```
//!
//! Prints the status and the `RateLimit` field of each response: 200 while there is credit; 429 if the burst is used
//! up, without a call to the bank; 429 if the credit is used up; and 503 if the bank is unavailable.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Full;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_ratelimit::key::{Header, KeyText};
use tower_ratelimit::limiter::{LimiterFuture, Outcome};
use tower_ratelimit::{
    AcquireOptions, Decision, Error, Gcra, Limit, LimitSnapshot, LimitStatus, Limiter, ManualClock, Memory, Quota,
    RateLimitLayer, Verdict,
};

/// A limiter for prepaid accounts: `burst` limits how fast an account can spend its credit.
#[derive(Clone)]
struct Prepaid {
    burst: Memory<KeyText, Limit<Gcra>>,
    bank: Arc<Bank>,
}

impl Limiter<KeyText> for Prepaid {
    fn acquire(&self, account: &KeyText, options: AcquireOptions) -> LimiterFuture<Outcome> {
        // The bank would debit each repeat of an id.
        if options.hold || options.reservation_id().is_some() {
            return LimiterFuture::ready(Err(Error::unsupported(
                "prepaid accounts cannot hold costs, and know no ids",
            )));
        }
        let (decision, held) = match self.burst.hold(account, options).try_ready() {
            Ok(Ok(Outcome { decision, held: Some(held), .. })) => (decision, held),
            // Denied: an immediate outcome, without a call to the bank.
            Ok(denied) => return LimiterFuture::ready(denied),
            Err(pending) => return pending,
        };
        // The future must not borrow from `self`. A dropped future drops the guard, which charges the whole cost.
        let (bank, account) = (Arc::clone(&self.bank), *account);
        LimiterFuture::pending(async move {
            let at = decision.decided_at();
            let debited = bank.debit(account, options.cost).await;
            if let Ok(Some(left)) = debited {
                held.settle(options.cost).await?;
                let limits = [decision.limits(), &[credit(Verdict::Allowed, left)]].concat();
                return Ok(Decision::from_limits(at, limits).into());
            }
            // All or nothing: a denial charges neither limit.
            held.release().await?;
            debited.map(|_| Decision::from_limit(at, credit(Verdict::Denied { retry_after: MONTH }, 0)).into())
        })
    }
}

const CREDIT: u64 = 4;
const MONTH: Duration = Duration::from_secs(30 * 24 * 60 * 60);

fn credit(verdict: Verdict, remaining: u64) -> LimitStatus {
    let snapshot = LimitSnapshot::new(CREDIT, MONTH).with_remaining(remaining);
    LimitStatus::new("credit", verdict, snapshot.with_reset(MONTH).with_next_token_after(MONTH))
}

/// The remote service: the amount that each account has spent.
struct Bank(Mutex<HashMap<KeyText, u64>>);

impl Bank {
    /// Returns the credit that is left after the debit, or `None` if the credit is too small.
    async fn debit(&self, account: KeyText, amount: u64) -> Result<Option<u64>, Error> {
        tokio::task::yield_now().await; // stands for a network call
        let mut accounts = self.0.try_lock().map_err(|_| Error::unavailable("the bank does not respond"))?;
        let spent = accounts.entry(account).or_default();
        Ok(CREDIT.checked_sub(spent.saturating_add(amount)).inspect(|_| *spent += amount))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let clock = ManualClock::new();
    let burst = Memory::builder(Limit::new("burst", Gcra::new(Quota::per_second(3)))).clock(clock.clone()).build()?;
    let bank = Arc::new(Bank(Mutex::default()));
    let mut app = ServiceBuilder::new()
        .layer(RateLimitLayer::new(Header::from_static("x-account"), Prepaid { burst, bank: Arc::clone(&bank) }))
        .service_fn(async |_: Request<()>| Ok::<_, BoxError>(Response::new(Full::<bytes::Bytes>::default())));
    for second in 1..=3 {
        let _closed = (second == 3).then(|| bank.0.lock());
        for _ in 0..4 {
            let response = app.ready().await?.call(Request::get("/").header("x-account", "ada").body(())?).await?;
            let field = response.headers().get("ratelimit").map_or(Ok("-"), |field| field.to_str())?;
            println!("second {second}: {} {field}", response.status());
        }
        clock.advance(Duration::from_secs(1));
    }
    Ok(())
}
