//! A limiter in PostgreSQL: `StoreLimits` decides, the functions of `schema.sql` read and compare-and-swap the states.

use std::future::Future;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bb8_postgres::PostgresConnectionManager;
use bb8_postgres::bb8::{ErrorSink, Pool, PooledConnection, RunError};
use bb8_postgres::tokio_postgres::types::{ToSql, Type};
use bb8_postgres::tokio_postgres::{self, GenericClient, NoTls, Row};
use tower_ratelimit::limiter::{AdminOperation, LimiterFuture, LimitsOfKey, Outcome};
use tower_ratelimit::store::{StoreLimits, StoreTransaction, StoreWrite};
use tower_ratelimit::{AcquireOptions, Clock, Decision, Error, Limiter, Timestamp};

const SCHEMA: &str = include_str!("schema.sql");

/// A limiter whose limits all processes on one database share.
///
/// A denial takes one round trip, and an allowed request two: one to read, and one to compare and swap. If another call
/// has changed a state meanwhile, the call tries again in a transaction that locks the states. If the caller drops the
/// future, the key may be charged.
pub(crate) struct Postgres<Key: ?Sized> {
    limits: Arc<StoreLimits<Key>>,
    rows: Rows,
}

/// The rows of one limiter.
#[derive(Clone)]
struct Rows {
    pool: Pool<PostgresConnectionManager<NoTls>>,
    name: Arc<str>,
    deadline: Duration,
    /// The last error of the pool, which returns only that it has timed out.
    last_error: LastError,
    /// The time of tests, instead of the database's.
    clock: Option<Arc<dyn Clock>>,
}

type States = Vec<Option<Vec<u8>>>;

impl<Key: ?Sized> Postgres<Key> {
    /// Creates a limiter. It connects when it decides; the name identifies it in the database.
    pub(crate) fn new(config: tokio_postgres::Config, name: &str, limits: StoreLimits<Key>) -> Self {
        let last_error = LastError::default();
        let pool = Pool::builder().max_size(10).error_sink(Box::new(last_error.clone()));
        let pool = pool.build_unchecked(PostgresConnectionManager::new(config, NoTls));
        let deadline = Duration::from_secs(1);
        let rows = Rows { pool, name: name.into(), deadline, last_error, clock: None };
        Self { limits: Arc::new(limits), rows }
    }

    /// Sets the longest time for one call. The default is one second.
    pub(crate) fn deadline(mut self, deadline: Duration) -> Self {
        self.rows.deadline = deadline;
        self
    }

    /// Uses another clock than that of the database: for tests.
    #[allow(dead_code, reason = "only the tests use it")]
    pub(crate) fn clock(mut self, clock: impl Clock) -> Self {
        self.rows.clock = Some(Arc::new(clock));
        self
    }

    /// Creates the table, unless it exists.
    pub(crate) async fn create_table(&self) -> Result<(), Error> {
        let rows = &self.rows;
        let create = async { rows.connection().await?.batch_execute(SCHEMA).await.map_err(failed) };
        rows.within_deadline(create).await
    }

    /// Removes up to a thousand expired rows of all limiters, and returns how many.
    pub(crate) async fn remove_expired(&self) -> Result<u64, Error> {
        let removed = async {
            let connection = self.rows.connection().await?;
            query(&*connection, "SELECT rate_limit_remove_expired()", &[]).await
        };
        self.rows.within_deadline(removed).await.map(|row| row.get::<_, i64>(0).unsigned_abs())
    }
}

impl Rows {
    /// Runs a transaction until no other call changes its states meanwhile.
    ///
    /// `decide` returns the result and the states to write.
    async fn run<T>(
        self,
        transaction: StoreTransaction,
        decide: impl Fn(&StoreTransaction, &States, Timestamp) -> Result<(T, Vec<Option<StoreWrite>>), Error>,
    ) -> Result<T, Error> {
        let keys: Vec<_> = transaction.keys().iter().map(|key| format!("{}:{key}", self.name)).collect();
        let decide = |states: &States, now| decide(&transaction, states, now);
        let tries = async {
            let mut connection = self.connection().await?;
            if let Some(result) = self.attempt(&*connection, "rate_limit_read", &keys, decide).await? {
                return Ok(result);
            }
            // Another call has changed a state. From now on, wait for the locks of the states: no call starves.
            for attempt in 0.. {
                tokio::time::sleep(jitter(attempt)).await;
                let locked = connection.transaction().await.map_err(failed)?;
                // A transaction that is dropped is rolled back.
                if let Some(result) = self.attempt(&locked, "rate_limit_lock", &keys, decide).await? {
                    return locked.commit().await.map(|()| result).map_err(failed);
                }
            }
            unreachable!("the attempts end with the deadline")
        };
        self.within_deadline(tries).await
    }

    /// Reads the states, decides, and writes the new states: two round trips, or one if there is nothing to write.
    ///
    /// Returns `None` if another call has changed a state meanwhile.
    async fn attempt<T>(
        &self,
        client: &(impl GenericClient + Sync),
        read: &str,
        keys: &Vec<String>,
        decide: impl Fn(&States, Timestamp) -> Result<(T, Vec<Option<StoreWrite>>), Error>,
    ) -> Result<Option<T>, Error> {
        let read = format!("SELECT now, states FROM {read}($1)");
        let row = query(client, &read, &[(keys, Type::TEXT_ARRAY)]).await?;
        let old: States = row.get(1);
        let (result, writes) = decide(&old, self.time(row.get(0)))?;
        if writes.iter().all(Option::is_none) {
            return Ok(Some(result));
        }
        let expiry = |write: &StoreWrite| i64::try_from(write.expires_at.as_micros()).unwrap_or(i64::MAX);
        let expiries: Vec<_> = writes.iter().map(|write| write.as_ref().map(expiry)).collect();
        let new: States = writes.into_iter().map(|write| write.map(|write| write.state)).collect();
        let parameters: [(&(dyn ToSql + Sync), _); 4] = [
            (keys, Type::TEXT_ARRAY),
            (&old, Type::BYTEA_ARRAY),
            (&new, Type::BYTEA_ARRAY),
            (&expiries, Type::INT8_ARRAY),
        ];
        let row = query(client, "SELECT rate_limit_swap($1, $2, $3, $4)", &parameters).await?;
        Ok(row.get::<_, bool>(0).then_some(result))
    }

    fn time(&self, now: i64) -> Timestamp {
        let micros = || Timestamp::from_micros(now.unsigned_abs());
        self.clock.as_ref().map_or_else(micros, Clock::now)
    }

    async fn within_deadline<T>(&self, future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::time::timeout(self.deadline, future).await.unwrap_or_else(|_| {
            let cause = self.last_error.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let cause = cause.unwrap_or_else(|| "there is no answer".to_owned());
            Err(Error::unavailable(format!(
                "PostgreSQL did not decide within {:?}: {cause}; check that the server runs and can be reached",
                self.deadline
            )))
        })
    }

    async fn connection(&self) -> Result<PooledConnection<'_, PostgresConnectionManager<NoTls>>, Error> {
        loop {
            match self.pool.get().await {
                Ok(connection) => {
                    self.last_error.set(None);
                    return Ok(connection);
                }
                Err(RunError::User(error)) => return Err(failed(error)),
                // Only the deadline ends the wait.
                Err(RunError::TimedOut) => {}
            }
        }
    }
}

/// Runs a query of one row, in one round trip.
async fn query(
    client: &(impl GenericClient + Sync),
    query: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Row, Error> {
    let rows = client.query_typed(query, parameters).await.map_err(failed)?;
    rows.into_iter().next().ok_or_else(|| Error::unavailable("PostgreSQL has returned no row; check the functions"))
}

/// Keeps the last error of the pool.
#[derive(Clone, Debug, Default)]
struct LastError(Arc<Mutex<Option<String>>>);

impl LastError {
    fn set(&self, error: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}

impl ErrorSink<tokio_postgres::Error> for LastError {
    fn sink(&self, error: tokio_postgres::Error) {
        self.set(Some(describe(&error)));
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<tokio_postgres::Error>> {
        Box::new(self.clone())
    }
}

/// Returns an error's message with its cause.
fn describe(error: &tokio_postgres::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

fn failed(error: tokio_postgres::Error) -> Error {
    Error::unavailable(format!("PostgreSQL has failed: {}; check its log", describe(&error))).with_source(error)
}

/// Returns a random time, which doubles with each attempt up to 16 milliseconds.
fn jitter(attempt: u32) -> Duration {
    let most = 500_u64 << attempt.min(5);
    Duration::from_micros(RandomState::new().hash_one(attempt) % most)
}

impl<Key: ?Sized + 'static> Limiter<Key> for Postgres<Key> {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        match self.limits.transaction(key, options) {
            Err(error) => LimiterFuture::ready(Err(error)),
            Ok(transaction) => {
                let run =
                    self.rows.clone().run(transaction, |transaction, states, now| transaction.decide(states, now));
                LimiterFuture::pending(async { run.await.map(Outcome::from) })
            }
        }
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        match self.limits.transaction(key, options) {
            Err(error) => LimiterFuture::ready(Err(error)),
            Ok(transaction) => {
                LimiterFuture::pending(self.rows.clone().run(transaction, |transaction, states, now| {
                    transaction.peek(states, now).map(|decision| (decision, Vec::new()))
                }))
            }
        }
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.limits.limits_of(key, limits);
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        let transaction = match self.limits.transaction(key, AcquireOptions::default()) {
            Err(error) => return LimiterFuture::ready(Err(error)),
            Ok(transaction) => transaction,
        };
        // The future must not borrow the name of the limit.
        let name = match operation {
            AdminOperation::SetUsage { limit, .. } | AdminOperation::Block { limit, .. } => limit.to_owned(),
            _ => String::new(),
        };
        let (used, block) = match operation {
            AdminOperation::SetUsage { used, .. } => (Some(used), None),
            AdminOperation::Block { duration, reason, .. } => (None, Some((duration, reason))),
            _ => (None, None),
        };
        LimiterFuture::pending(self.rows.clone().run(transaction, move |transaction, states, now| {
            let operation = match (used, block) {
                (Some(used), _) => AdminOperation::SetUsage { limit: &name, used },
                (_, Some((duration, reason))) => AdminOperation::Block { limit: &name, duration, reason },
                _ => AdminOperation::Reset,
            };
            transaction.administer(states, now, operation).map(|writes| ((), writes))
        }))
    }
}
