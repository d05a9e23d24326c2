-- Holds and what they aren't made for: limits in memory and with shards, also if a limit becomes one; counters.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
TRUNCATE rateLimits, rl_blocks, rl_holds;
SELECT rl_define('hs', rl_token_bucket(1, '1 hour', capacity => 100)),
       rl_define('hs/memory', rl_token_bucket(100, '1 minute') || '{"store": "memory"}'),
       rl_define('hs/saved', rl_token_bucket(100, '1 minute') || '{"store": "memory", "save": 1000}'),
       rl_define('hs/shards', rl_token_bucket(100, '1 minute', shards => 4)),
       rl_define('hs/slots', rl_concurrency(3, '1 minute') || '{"store": "memory"}');
SELECT call || '|' || error_of('SELECT ' || call, true) AS error FROM unnest(ARRAY[
    'rl_hold(''hs/memory'')', 'rl_hold(''hs/saved'', ''k'')', 'rl_hold(''hs/shards'')', 'rl_hold(''hs/slots'')',
    'rl_hold_all(''[{"name": "hs"}, {"name": "hs/memory"}]'')', 'rl_hold_all(''[{"name": "hs"}, {"name": "hs/shards"}]'')',
    'rl_hold_all(''[{"name": "hs"}, {"name": "hs/slots"}]'')']) call;
SELECT count(*) FROM rl_holds;
-- An exempt key of one, and one with a single shard.
SELECT rl_define('hs/memory', rl_unlimited(), 'vip'), rl_define('hs/shards', rl_token_bucket(5, '1 minute', shards => 1), 'one');
SELECT ok, hold, held FROM rl_hold('hs/memory', 'vip', 3, id => 'vip');
SELECT ok, hold, held, remaining FROM rl_hold('hs/shards', 'one', 3, id => 'one');
SELECT ok, remaining FROM rl_settle('one', 1);

\echo that gets shards
SELECT ok, remaining FROM unnest(ARRAY['s-1', 's-2', 's-3']) id, LATERAL rl_hold('hs', 'shards', 30, '1 minute', id);
SELECT ok FROM rl_hold('hs', 'pruned', 100, '1 minute', 's-4');
SELECT rl_define('hs', rl_token_bucket(1, '1 hour', capacity => 100, shards => 4));
SELECT ok FROM rl_settle('s-1', 10);
SELECT round(remaining) FROM rl_check('hs', 'shards');
SELECT ok FROM rl_settle('s-2', 40);
SELECT round(remaining) FROM rl_check('hs', 'shards');
SELECT ok FROM rl_settle('s-1', 10);
SET ratelimit.clock = '2027-01-01 12:02:00+00';
SELECT rl_prune() >= 0;
SELECT key, round(remaining) FROM unnest(ARRAY['shards', 'pruned']) key, LATERAL rl_check('hs', key) ORDER BY key;
SELECT id, round(count), round(back) FROM rl_holds ORDER BY id;
SELECT ok FROM rl_settle('s-3', 30);
SELECT round(remaining) FROM rl_check('hs', 'shards');
SELECT rl_prune() >= 0;
SELECT rl_prune();

\echo that moves into memory
SELECT rl_define('hs/moves', rl_token_bucket(1, '1 hour', capacity => 100));
SELECT ok FROM rl_hold('hs/moves', 'k', 30, '1 minute', 'm-1');
SELECT ok FROM rl_hold('hs/moves', 'k', 30, '1 minute', 'm-2');
SELECT rl_define('hs/moves', rl_token_bucket(1, '1 hour', capacity => 100) || '{"store": "memory"}');
SELECT ok, round(remaining) FROM rl_limit('hs/moves', 'k', 50);
-- ok, and nothing comes back or is taken.
SELECT ok, round(remaining), capacity FROM rl_settle('m-1', 0);
SELECT ok FROM rl_settle('m-1', 0);
SET ratelimit.clock = '2027-01-01 12:04:00+00';
SELECT rl_prune() >= 0;
SELECT rl_prune();
SELECT round(remaining) FROM rl_check('hs/moves', 'k');

\echo that had shards, and has a row still of these
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('hs/back', rl_token_bucket(10, '10 hours'));
SELECT ok FROM rl_hold('hs/back', '', 10, '1 minute', 'b-1');
SELECT rl_define('hs/back', rl_token_bucket(10, '10 hours', shards => 4));
SELECT ok FROM rl_credit('hs/back', '', 1);
SELECT rl_define('hs/back', rl_token_bucket(10, '10 hours'));
SET ratelimit.clock = '2027-01-01 12:02:00+00';
SELECT ok, round(remaining) FROM rl_check('hs/back', '', 5);
SELECT ok, round(remaining) FROM rl_check_all('[{"name": "hs/back", "count": 5}]');
SELECT ok, round(remaining) FROM rl_limit('hs/back', '', 5);

\echo a state of another kind begins anew, without holds
SELECT rl_define('hs/kind', rl_token_bucket(10, '1 hour'));
SELECT ok FROM rl_hold('hs/kind', '', 10, id => 'k-1', on_expiry => 'charge');
SELECT rl_define('hs/kind', rl_sliding_window(10, '1 hour'));
SELECT ok FROM rl_limit('hs/kind');
SELECT rl_define('hs/kind', rl_token_bucket(10, '1 hour'));
SELECT ok FROM rl_limit('hs/kind', '', 10);
SELECT ok FROM rl_settle('k-1', 0);
SELECT rl_define('hs/other', rl_token_bucket(10, '1 hour'));
SELECT ok FROM rl_hold('hs/other', '', 6, id => 'k-2', on_expiry => 'charge');
SELECT rl_define('hs/other', rl_sliding_log(10, '1 hour'));
SELECT ok FROM rl_limit('hs/other');
SELECT rl_define('hs/other', rl_token_bucket(10, '1 hour'));
SELECT ok, held, remaining FROM rl_hold('hs/other', '', 8, id => 'k-2', on_expiry => 'charge');
SELECT ok, remaining FROM rl_settle('k-2', 0);

\echo counters
SELECT rl_define('hs/count', rl_token_bucket(10, '1 minute')), rl_stats_reset('hs/count');
SELECT ok, held FROM rl_hold('hs/count', '', 4, id => 'c-1');
SELECT ok, held FROM rl_hold('hs/count', '', 4, id => 'c-1');
SELECT ok, held FROM rl_hold('hs/count', '', 6, id => 'c-1');
SELECT ok, held FROM rl_hold('hs/count', '', 60, id => 'c-2');
SELECT ok, remaining FROM rl_settle('c-1', 1);
SELECT ok FROM rl_hold_all('[{"name": "hs/count", "count": 3}]', id => 'c-3');
SELECT ok FROM rl_hold_all('[{"name": "hs/count", "count": 3}]', id => 'c-3');
SELECT count(*) FROM rl_settle_all('c-3');
SELECT name, allowed, denied, tokens FROM rl_stats() WHERE name = 'hs/count';
-- Nothing is left for other files.
DELETE FROM rl_holds WHERE name LIKE 'hs%';
DELETE FROM rateLimits WHERE name LIKE 'hs%';
