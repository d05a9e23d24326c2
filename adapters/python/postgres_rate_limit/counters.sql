-- Whole numbers that expire, of the packages for Python and Ruby, which both have this file. A key's number and its
-- seconds are kept as the tokens used in a window that begins with it: seconds * 10^7 + number. @ stands for the schema
-- of the functions.

-- put: adds to a number, or begins a new one. $1 and $2: name and key; $3: what to add; $4 and $5: the number of a new
-- key, where null makes none, and its seconds; $6: seconds for which a key is kept beyond its own.
-- Returns the number, where null is no key, and whether it is new. Adds nothing if that would lead out of the range.
WITH a AS (
    SELECT CAST($1 AS text) AS name, CAST($2 AS text) AS key, CAST($3 AS float8) AS amount,
        CAST($4 AS float8) + CAST($5 AS float8) * 10000000 AS begun, CAST($6 AS float8) AS longer,
        CAST('{"kind": "fixed window", "start": "first request", "rate": 1000000000000000, "period": 100000000000}'
            AS jsonb) AS config
),
-- It locks the key, which no other session can change then.
t AS MATERIALIZED (
    SELECT c.capacity - c.remaining AS used, date_part('epoch', c.reset_at) * 1000 - 100000000000 AS began
    FROM a CROSS JOIN LATERAL @rl_credit(a.name, a.key, -a.amount, config => a.config) AS c
),
f AS MATERIALIZED (
    SELECT floor((t.used - a.amount) / 10000000) AS seconds,
        t.used - a.amount < 10000000 OR t.began + (floor((t.used - a.amount) / 10000000) + a.longer) * 1000
            <= CAST(@rl_value(a.name, a.key, a.config) ->> 'now' AS float8) AS is_new
    FROM a, t
)
SELECT mod(CAST(CASE
        WHEN f.is_new THEN CASE WHEN @rl_reset(a.name, a.key) IS NOT NULL THEN (
            SELECT c.capacity - c.remaining FROM @rl_credit(a.name, a.key, -a.begun, config => a.config) AS c
            WHERE a.begun IS NOT NULL) END
        WHEN floor(t.used / 10000000) <> f.seconds THEN (
            SELECT c.capacity - c.remaining FROM @rl_credit(a.name, a.key, a.amount, config => a.config) AS c)
        ELSE t.used END AS bigint), 10000000), f.is_new
FROM a, t, f;

-- get: a number. $1 and $2: name and key. Returns null if there is no key.
SELECT CASE WHEN used >= 10000000 AND began + floor(used / 10000000) * 1000 > now
    THEN mod(CAST(used AS bigint), 10000000) END
FROM (
    SELECT 1000000000000000 - CAST(v #>> '{state,value}' AS float8) AS used,
        CAST(v #>> '{state,ts}' AS float8) AS began, CAST(v ->> 'now' AS float8) AS now
    FROM @rl_value(CAST($1 AS text), CAST($2 AS text),
        '{"kind": "fixed window", "start": "first request", "rate": 1000000000000000, "period": 100000000000}') AS v
) AS found;
