-- No result has a time that drivers can't read: 9999-12-30 00:00:00 UTC stands for all later ones and for infinity.
SET timezone = 'UTC'; SET datestyle = 'ISO';
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('lt/bucket', '{"kind": "token bucket", "rate": 1, "period": 3e14, "capacity": 10}'),
       rl_define('lt/window', '{"kind": "fixed window", "rate": 1, "period": 1e15, "capacity": 10, "start": 0}'),
       rl_define('lt/sliding', '{"kind": "sliding window", "rate": 10, "period": 1e15}'),
       rl_define('lt/log', '{"kind": "sliding log", "rate": 10, "period": 1e15}'),
       rl_define('lt/slots', '{"kind": "concurrency", "slots": 1, "ttl": 1e15}'),
       rl_define('lt/slots', '{"kind": "unlimited"}', 'exempt');
SELECT name, l.ok, l.retry_at, l.reset_at FROM rl_config, rl_limit(name, 'k', 10) l WHERE name ~ '^lt/' AND name <> 'lt/slots' ORDER BY 1;
SELECT name, l.ok, l.retry_after > 2e11 AS late, l.retry_at, l.reset_at FROM rl_config, rl_limit(name, 'k', 1) l WHERE name ~ '^lt/' AND name <> 'lt/slots' ORDER BY 1;
SELECT name, l.ok, l.retry_at, l.reset_at FROM rl_config, rl_check(name, 'k', 1) l WHERE name ~ '^lt/' AND name <> 'lt/slots' ORDER BY 1;
SELECT name, ok, retry_at, reset_at FROM rl_limit_all('[{"name": "lt/bucket", "key": "k"}, {"name": "lt/log", "key": "k"}]');
SELECT name, ok, retry_at, reset_at FROM rl_check_all('[{"name": "lt/bucket", "key": "k"}, {"name": "lt/log", "key": "k"}]');
SELECT retry_at, reset_at FROM rl_credit('lt/bucket', 'k', 1);
SELECT retry_at, reset_at FROM rl_credit('lt/bucket', 'k', -2);
SELECT ok, retry_at, remaining FROM rl_limit('lt/bucket', 'reserved', 11, reserve => true);
SELECT ok, retry_at FROM rl_calculate('{"kind": "token bucket", "rate": 1, "period": 3e14}', '{"value": 0, "ts": 0}', '2027-01-01 12:00:00+00', 1);
-- Leases, of an exempt key, too.
SELECT lease, expires_at, ok, retry_at FROM rl_acquire('lt/slots', 'k') \gset
SELECT :'expires_at'::timestamptz AS expires_at, rl_extend(:'lease') AS extended;
SELECT ok, expires_at, retry_at FROM rl_acquire('lt/slots', 'k');
SELECT rl_extend('lt%2Fslots/exempt/1');
-- Blocks: the table keeps what was given.
SELECT rl_block('lt/bucket', 'forever', until => 'infinity'), rl_block('lt/bucket', 'late', until => '20000-01-01 00:00:00+00'),
       rl_block('lt/bucket', 'last', until => '9999-12-30 00:00:00+00'), rl_block('lt/bucket', 'before', until => '9999-12-29 23:59:59.999999+00');
SELECT key, until FROM rl_blocks WHERE name = 'lt/bucket' ORDER BY key;
SELECT key, l.ok, l.retry_at FROM unnest(ARRAY['before', 'forever', 'last', 'late']) key, rl_limit('lt/bucket', key, 1) l;
SELECT name, key, kind, retry_at, as_of FROM rl_status() WHERE name ~ '^lt/' ORDER BY 1, 2;
-- Headers of such a result: the wait is known, the reset is not.
SELECT rl_headers('lt/bucket', r) - 'RateLimit-Policy' FROM rl_limit('lt/bucket', 'k', 5) r;
SELECT rl_headers('lt/window', r) - 'RateLimit-Policy' FROM rl_limit('lt/window', 'k', 1) r;
-- Rows from far in the future.
SET ratelimit.clock = '8640000000000000';
SELECT ok, retry_at, reset_at FROM rl_limit('lt/bucket', 'far', 10);
SELECT name, key, retry_at, as_of FROM rl_status('lt/bucket', 'far');
DELETE FROM rl_blocks WHERE name = 'lt/bucket';
