-- The table and the functions of the limiter. It is one transaction, which one process at a time runs.
SELECT pg_advisory_xact_lock(1953460082, 0);

-- One row for each key. After a crash of the server, an unlogged table is empty: every key is then as if never seen.
CREATE UNLOGGED TABLE IF NOT EXISTS rate_limits (
    key text COLLATE "C" PRIMARY KEY,
    state bytea NOT NULL,
    -- From this time the row can be removed, in microseconds since 1970.
    expires_at bigint NOT NULL
) WITH (fillfactor = 70);

CREATE INDEX IF NOT EXISTS rate_limits_expires_at ON rate_limits (expires_at);

CREATE OR REPLACE FUNCTION rate_limit_now() RETURNS bigint VOLATILE LANGUAGE sql AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Returns the time and the states of some keys, null for a key without a state.
CREATE OR REPLACE FUNCTION rate_limit_read(keys text[], OUT now bigint, OUT states bytea[]) STABLE LANGUAGE sql AS $$
    SELECT rate_limit_now(), array_agg(rate_limits.state ORDER BY place)
    FROM unnest(keys) WITH ORDINALITY AS wanted(key, place) LEFT JOIN rate_limits USING (key)
$$;

-- The same behind locks, up to the end of the transaction. Calls on one key then run one after another, in the order in
-- which they come. The order of the locks prevents deadlock.
CREATE OR REPLACE FUNCTION rate_limit_lock(keys text[], OUT now bigint, OUT states bytea[]) VOLATILE LANGUAGE plpgsql AS $$
BEGIN
    -- If the client has gone without a word, the locks are released.
    PERFORM set_config('idle_in_transaction_session_timeout', '2000', true);
    PERFORM pg_advisory_xact_lock(1953460083, lock)
    FROM (SELECT DISTINCT hashtext(key) AS lock FROM unnest(keys) AS wanted(key) ORDER BY lock) AS locks;
    -- A statement behind the locks sees what the calls before this one have written.
    SELECT * FROM rate_limit_read(keys) INTO now, states;
END
$$;

-- Writes the new states and returns true, if the present ones are those that were read and no other call has locked them.
-- Otherwise writes nothing. A new state is null if it stays.
CREATE OR REPLACE FUNCTION rate_limit_swap(keys text[], old bytea[], new bytea[], expiries bigint[]) RETURNS boolean
VOLATILE LANGUAGE plpgsql AS $$
DECLARE
    locked boolean;
    present bytea[];
BEGIN
    SELECT bool_and(pg_try_advisory_xact_lock(1953460083, hashtext(key))) INTO locked FROM unnest(keys) AS wanted(key);
    IF NOT locked THEN RETURN false; END IF;
    SELECT states FROM rate_limit_read(keys) INTO present;
    IF present IS DISTINCT FROM old THEN RETURN false; END IF;
    INSERT INTO rate_limits (key, state, expires_at)
    SELECT key, state, expiry FROM unnest(keys, new, expiries) AS written(key, state, expiry) WHERE state IS NOT NULL
    ON CONFLICT (key) DO UPDATE SET state = EXCLUDED.state, expires_at = EXCLUDED.expires_at;
    RETURN true;
END
$$;

-- Removes up to a thousand expired rows, and returns how many.
CREATE OR REPLACE FUNCTION rate_limit_remove_expired() RETURNS bigint VOLATILE LANGUAGE sql AS $$
    WITH removed AS (
        DELETE FROM rate_limits WHERE key IN (
            SELECT key FROM rate_limits WHERE expires_at <= rate_limit_now()
            ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED
        ) RETURNING 1
    )
    SELECT count(*) FROM removed
$$;
