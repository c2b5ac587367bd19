//! Two replicas behind one Redis: one admits a request and is killed, the other one settles it.
//!
//! ```text
//! redis-server --port 6379 --save '' &
//! cargo run --example reservation_id --features redis
//! ```
//!
//! Prints what remains of 10 000 tokens after the admission, after the death of the first replica, and after the
//! settlement, which is sent twice and takes effect once. The variable `REDIS_URL` sets the address of Redis.

use std::env;
use std::process::{Command, Stdio};
use std::time::Duration;

use tower_ratelimit::{AcquireOptions, Error, Limiter, Quota, Redis, RedisServer, TokenBucket};

/// The id of the request. The gateway in front of the replicas makes it, and replaces any that a client sends: a client
/// that chose the ids would choose which of its requests are one.
const ID: &str = "req-7f3a";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let limiter = limiter(&url)?;
    limiter.health_check().await?;
    if let Ok(key) = env::var("RESERVATION_EXAMPLE_KEY") {
        // The first replica holds the estimate for up to ten minutes. It does not live to see the true cost.
        let estimate = AcquireOptions::cost(4_000).id(ID).expires_in(Duration::from_secs(600));
        assert!(limiter.hold(&key, estimate).await?.decision.is_allowed());
        std::future::pending::<()>().await;
    }

    let key = format!("run-{}", std::process::id());
    let mut replica = Command::new(env::current_exe()?);
    let mut replica =
        replica.env("REDIS_URL", &url).env("RESERVATION_EXAMPLE_KEY", &key).stdout(Stdio::null()).spawn()?;
    while remaining(&limiter, &key).await? == 10_000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("one replica has admitted the request: {} remain", remaining(&limiter, &key).await?);
    replica.kill()?;
    replica.wait()?;
    println!("the replica is killed: {} remain", remaining(&limiter, &key).await?);
    for _ in 0..2 {
        limiter.settle(&key, ID, 1_200).await?;
        println!("the other replica has settled 1200: {} remain", remaining(&limiter, &key).await?);
    }
    Ok(())
}

fn limiter(url: &str) -> Result<Redis<str>, Error> {
    let bucket = TokenBucket::new(Quota::per_day(10_000));
    Redis::builder(RedisServer::open(url)?, "example", bucket).deadline(Duration::from_secs(1)).build()
}

async fn remaining(limiter: &Redis<str>, key: &str) -> Result<u64, Error> {
    Ok(limiter.peek(key, AcquireOptions::cost(0)).await?.remaining().unwrap_or(0))
}
