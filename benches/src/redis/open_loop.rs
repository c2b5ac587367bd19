//! An open-loop load: decisions start at a fixed rate, whether earlier decisions were answered or not.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Client;
use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, sleep, timeout};
use tower_ratelimit::{AcquireOptions, Gcra, Limiter, Quota, Redis, RedisServer};

use super::competitors::PLAIN_SCRIPT;

/// A limit whose remaining tokens count all charges of a run exactly: the first token returns after an hour.
const COUNTING: Quota = Quota::per_hour(1);
const BURST: u64 = 1_000_000;
pub(crate) const KEYS: u64 = 512;

/// The outcome of a load.
pub(crate) struct Goodput {
    pub(crate) offered: u64,
    pub(crate) answered: u64,
    /// The decisions that Redis has charged, answered or not.
    pub(crate) charged: u64,
    /// The times of the answered decisions, sorted.
    pub(crate) times: Vec<Duration>,
}

impl Goodput {
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let index = (self.times.len() as f64 * share) as usize;
        self.times.get(index).or(self.times.last()).copied().unwrap_or_default()
    }
}

/// Starts `rate` decisions per second for `span`, and waits until all have ended.
pub(crate) async fn offer<F>(rate: u32, span: Duration, decide: impl Fn(u64) -> F) -> (u64, Vec<Duration>)
where
    F: Future<Output = bool> + Send + 'static,
{
    let times = Arc::new(Mutex::new(Vec::new()));
    let (mut tasks, mut offered, started_at) = (Vec::new(), 0, Instant::now());
    while started_at.elapsed() < span {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let due = (started_at.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        for index in offered..due {
            let (decision, times, began) =
                (decide(index.wrapping_mul(7919) % KEYS), Arc::clone(&times), Instant::now());
            tasks.push(tokio::spawn(async move {
                if decision.await {
                    times.lock().expect("no panic").push(began.elapsed());
                }
            }));
        }
        offered = due;
        sleep(Duration::from_millis(1)).await;
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let mut times = std::mem::take(&mut *times.lock().expect("no panic"));
    times.sort();
    (offered, times)
}

/// A load on this crate's limiter.
pub(crate) async fn load_limiter(
    (to_server, to_link): (RedisServer, RedisServer),
    name: &str,
    deadline: Duration,
    (rate, span): (u32, Duration),
) -> Goodput {
    let limit = || Gcra::new(COUNTING).burst(BURST);
    let limiter = Redis::<u64>::builder(to_link, name, limit()).deadline(deadline).build().expect("limits");
    // Connects.
    while limiter.acquire(&KEYS, AcquireOptions::default()).await.is_err() {
        sleep(deadline).await;
    }
    let (offered, times) = offer(rate, span, |key| {
        let decision = limiter.acquire(&key, AcquireOptions::default());
        async move { decision.await.is_ok() }
    })
    .await;
    let direct = Redis::<u64>::builder(to_server, name, limit()).deadline(LONG).build().expect("limits");
    // Charges without an answer may still be on their way.
    sleep(deadline * 4).await;
    let mut charged = 0;
    for key in 0..KEYS {
        let decision = direct.peek(&key, AcquireOptions::cost(0)).await.expect("an answer");
        charged += BURST - decision.remaining().expect("a number");
    }
    Goodput { offered, answered: times.len() as u64, charged, times }
}

const LONG: Duration = Duration::from_secs(20);

/// The same load on the usual GCRA script over one pipelined connection, one call per decision.
pub(crate) async fn load_plain(
    (to_server, to_link): (&str, &str),
    name: &str,
    deadline: Duration,
    (rate, span): (u32, Duration),
) -> Goodput {
    const HOUR: u64 = 3_600_000_000;
    let connect = |address: &str| {
        let client = Client::open(address).expect("an address");
        async move {
            let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
            client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
        }
    };
    let (mut direct, linked) = (connect(to_server).await, connect(to_link).await);
    let hash: String =
        redis::cmd("SCRIPT").arg("LOAD").arg(PLAIN_SCRIPT).query_async(&mut direct).await.expect("a hash");
    let call = |key: String, interval: u64, connection: &MultiplexedConnection| {
        let (hash, mut connection) = (hash.clone(), connection.clone());
        let command = redis::cmd("EVALSHA").arg(hash).arg(1).arg(key).arg(interval).arg(BURST).to_owned();
        async move { command.query_async::<(u64, String)>(&mut connection).await }
    };
    let (offered, times) = offer(rate, span, |key| {
        let decision = timeout(deadline, call(format!("{name}:{key}"), HOUR, &linked));
        async move { decision.await.is_ok_and(|reply| reply.is_ok()) }
    })
    .await;
    // Charges of calls without an answer are still on their way.
    let mut settled = (0, 0);
    loop {
        let mut charged = 0;
        for key in 0..KEYS {
            let (_, owed) = call(format!("{name}:{key}"), 0, &direct).await.expect("an answer");
            charged += (owed.parse::<u64>().expect("a number") + HOUR / 2) / HOUR;
        }
        settled = if charged == settled.0 { (charged, settled.1 + 1) } else { (charged, 0) };
        if settled.1 > 2 {
            return Goodput { offered, answered: times.len() as u64, charged, times };
        }
        sleep(Duration::from_millis(200)).await;
    }
}
