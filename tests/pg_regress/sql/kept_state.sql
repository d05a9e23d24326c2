-- What is stored of a key, and what counts of it: what an earlier kind left, what is ahead of the clock, a debt beyond ten
-- years, and what was pruned before the capacity was raised.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
CREATE FUNCTION kept_take(name text, count int) RETURNS double precision LANGUAGE plpgsql AS $$
BEGIN
    RETURN (rl_limit(name, 'k', count)).remaining;
EXCEPTION WHEN feature_not_supported THEN
    RETURN (rl_acquire(name, 'k', count)).remaining;
END $$;
-- A limit becomes another kind and returns: it resumes if nothing was taken meanwhile, and otherwise starts full. Tokens
-- of a bucket and a window carry over.
CREATE FUNCTION kept_kinds() RETURNS TABLE (kind text, other text, taken double precision, as_other double precision,
    returned double precision, taken_as_other double precision, returned_again double precision) LANGUAGE plpgsql AS $$
DECLARE
    configs jsonb[] := ARRAY[rl_token_bucket(10, '1 minute'),
        rl_fixed_window(10, '1 minute', start => '2027-01-01 12:00:00+00'), rl_sliding_window(10, '1 minute'),
        rl_sliding_log(10, '1 minute'), rl_concurrency(10, '1 minute')];
    a jsonb;
    b jsonb;
    called text;
BEGIN
    FOREACH a IN ARRAY configs LOOP
        FOREACH b IN ARRAY configs || rl_unlimited() LOOP
            kind := a ->> 'kind'; other := b ->> 'kind';
            CONTINUE WHEN kind = other;
            called := concat('kept/', kind, '/', other);
            PERFORM rl_define(called, a);
            taken := kept_take(called, 3);
            PERFORM rl_define(called, b);
            -- Neither asks nor what is denied is a take.
            as_other := (rl_check(called, 'k')).remaining;
            PERFORM kept_take(called, 11), kept_take(called, 0) WHERE other <> 'unlimited';
            PERFORM rl_define(called, a);
            returned := (rl_check(called, 'k')).remaining;
            PERFORM rl_define(called, b);
            taken_as_other := kept_take(called, 2);
            PERFORM rl_define(called, a);
            returned_again := (rl_check(called, 'k')).remaining;
            RETURN NEXT;
        END LOOP;
    END LOOP;
END $$;
SELECT * FROM kept_kinds();
-- Unless it is reset or pruned under the other kind.
SELECT rl_define('kept/gone', rl_token_bucket(10, '1 minute'));
SELECT remaining FROM unnest(ARRAY['reset', 'pruned']) key, rl_limit('kept/gone', key, 4);
SELECT rl_define('kept/gone', rl_sliding_log(10, '1 minute')), rl_reset('kept/gone', 'reset');
SELECT rl_prune() > 0 AS pruned;
SELECT rl_define('kept/gone', rl_token_bucket(10, '1 minute'));
SELECT key, remaining FROM unnest(ARRAY['reset', 'pruned']) key, rl_check('kept/gone', key);

-- A state is ignored if it is ahead of the clock by more than a whole refill, which counts from empty: of 10 hours, also
-- where only one token is missing.
SELECT rl_define('kept/ahead', rl_token_bucket(10, '10 hours')),
       rl_define('kept/ahead window', rl_fixed_window(10, '1 hour', capacity => 100, start => '2027-01-01 12:00:00+00'));
SET ratelimit.clock = '2027-01-01 22:00:00+00';
SELECT name, remaining FROM unnest(ARRAY['kept/ahead', 'kept/ahead window']) name, rl_limit(name, 'ten hours', 1);
SET ratelimit.clock = '2027-01-01 22:00:00.000001+00';
SELECT name, remaining FROM unnest(ARRAY['kept/ahead', 'kept/ahead window']) name, rl_limit(name, 'more', 1);
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT name, key, remaining FROM unnest(ARRAY['kept/ahead', 'kept/ahead window']) name, unnest(ARRAY['ten hours', 'more']) key,
    rl_check(name, key) ORDER BY name, key;
-- So it is for a window: ten windows bring what is missing, and an hour more is too much.
UPDATE rateLimits SET ts = '2027-01-01 23:00:00+00' WHERE name = 'kept/ahead window' AND key = 'more';
SELECT remaining FROM rl_check('kept/ahead window', 'more');

-- A window that is ignored gives its phase to the next, unless a start or a time zone says when windows begin.
SELECT rl_define('kept/phase', rl_fixed_window(10, '1 hour')),
       rl_define('kept/phase start', rl_fixed_window(10, '1 hour', start => '2027-01-01 00:30:00+00')),
       rl_define('kept/phase first', rl_fixed_window(10, '1 hour', first_request => true)),
       rl_define('kept/phase zone', rl_fixed_window(10, '1 day', timezone => 'UTC'));
INSERT INTO rateLimits (name, key, value, ts, added)
SELECT 'kept/phase' || it, 'k', 3, '2027-03-01 00:07:00+00', 10 FROM unnest(ARRAY['', ' start', ' first', ' zone']) it;
SELECT it, remaining, reset_at FROM unnest(ARRAY['', ' start', ' first', ' zone']) it, rl_limit('kept/phase' || it, 'k');
SELECT name, ts FROM rateLimits WHERE name LIKE 'kept/phase%' ORDER BY name;
-- A row of another kind, or one that was reset, gives none: windows begin as for a new key.
UPDATE rateLimits SET value = 1, ts = '2027-01-01 11:07:00+00', prior = 1 WHERE name = 'kept/phase';
SELECT remaining, reset_at FROM rl_check('kept/phase', 'k');
SELECT reset_at AS of_other_kind FROM rl_check('kept/phase', 'k') \gset
SELECT remaining FROM rl_limit('kept/phase', 'k');
UPDATE rateLimits SET ts = '2027-01-01 11:07:00+00' WHERE name = 'kept/phase';
SELECT reset_at FROM rl_check('kept/phase', 'k');
SELECT rl_reset('kept/phase', 'k');
SELECT reset_at = :'of_other_kind' AS as_for_a_new_key FROM rl_check('kept/phase', 'k');

-- No debt exceeds what ten years (3,652.5 days) refill; of windows, as many as cover them.
SELECT rl_define('kept/debt ' || days, rl_fixed_window(2, days * interval '1 day', start => '2027-01-01 12:00:00+00')),
       rl_define('kept/debt bucket ' || days, rl_token_bucket(2, days * interval '1 day'))
FROM unnest(ARRAY[1000, 3652, 3653, 4000]) days;
SELECT kind, days, round(remaining::numeric, 5) AS remaining, retry_at
FROM unnest(ARRAY['', 'bucket ']) kind, unnest(ARRAY[1000, 3652, 3653, 4000]) days, rl_credit(concat('kept/debt ', kind, days), 'k', -1000);
-- A debt that another config left is cut likewise.
SELECT rl_define('kept/cut', rl_fixed_window(100, '1 day', start => '2027-01-01 12:00:00+00'));
SELECT remaining FROM rl_credit('kept/cut', 'k', -1000);
SELECT rl_define('kept/cut', rl_fixed_window(100, '4000 days', start => '2027-01-01 12:00:00+00'));
SELECT remaining, retry_at FROM rl_check('kept/cut', 'k', 0);

-- A key whose row was pruned is full at a capacity that is raised later; one that has its row fills up first.
SELECT rl_define('kept/idle', rl_token_bucket(10, '1 minute'));
INSERT INTO rateLimits (name, key, value, ts) VALUES ('kept/idle', 'pruned', 10, '2027-01-01 12:00:00+00');
SELECT rl_prune() > 0 AS pruned;
INSERT INTO rateLimits (name, key, value, ts) VALUES ('kept/idle', 'not', 10, '2027-01-01 12:00:00+00');
SELECT key, remaining FROM unnest(ARRAY['not', 'pruned']) key, rl_check('kept/idle', key);
SELECT rl_define('kept/idle', rl_token_bucket(10, '1 minute', capacity => 100));
SELECT key, remaining FROM unnest(ARRAY['not', 'pruned']) key, rl_check('kept/idle', key);
DROP FUNCTION kept_kinds, kept_take;
