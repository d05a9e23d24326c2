-- rl_status says why a key is limited, and lists exempt keys that have no row.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('why', rl_token_bucket(2, '1 minute')), rl_define('why', rl_unlimited(), 'why vip'),
       rl_define('why/slots', rl_concurrency(1, '5 minutes')), rl_define('why/free', rl_unlimited()),
       rl_define('why/small', rl_fixed_window(1, '1 hour', start => '2027-01-01 00:00:00+00'));
SELECT ok FROM rl_limit('why', 'empty', 2);
SELECT ok FROM rl_limit('why', 'fine');
SELECT ok FROM rl_acquire('why/slots', 'full');
SELECT rl_block('why', 'bot', '1 hour', reason => 'scraper, ticket 7'), rl_block('why', 'empty-too', '10 seconds', reason => ''),
       rl_block('why', 'vip-too', until => '2027-01-01 12:30:00+00'), rl_block('why/slots', 'full', '1 minute', reason => 'späm'),
       rl_block('why/none', 'x', '1 hour', reason => 'first');
SELECT rl_define('why', rl_unlimited(), 'vip-too');
SELECT ok FROM rl_limit('why', 'empty-too', 0);
CREATE VIEW why AS SELECT name, key, kind, remaining, retry_at, limited, limited_by, block_reason, held FROM rl_status() WHERE name LIKE 'why%';
SELECT * FROM why;
-- Of one key, whose name exempts it or not; of one name; of one key of all names.
SELECT key, kind, limited, limited_by, block_reason FROM rl_status('why', 'bot');
SELECT key, kind, limited, limited_by FROM rl_status('why', 'why vip');
SELECT key, kind, limited, limited_by FROM rl_status('why', 'nobody');
SELECT key, kind, limited, limited_by FROM rl_status('why/free', 'anybody');
SELECT key, kind, limited, limited_by FROM rl_status('why/free');
SELECT name, kind, limited, limited_by FROM rl_status(key => 'why vip');
-- A later block replaces the reason, too; one that has ended has none.
SELECT rl_block('why/none', 'x', '2 hours'), rl_block('why', 'bot', until => 'infinity', reason => repeat('ä', 100));
SELECT name, key, retry_at, limited_by, length(block_reason) FROM why WHERE key IN ('x', 'bot');
SET ratelimit.clock = '2027-01-01 12:00:10+00';
SELECT key, limited, limited_by, block_reason FROM rl_status('why', 'empty-too');
SELECT ok FROM rl_limit('why', 'empty-too', 2);
SELECT key, remaining, limited, limited_by FROM rl_status('why', 'empty-too');
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT remaining, retry_at, limited, limited_by, block_reason FROM rl_status('why/slots', 'full');
SELECT rl_unblock('why', 'bot');
SELECT count(*) FROM rl_status('why', 'bot');
-- The reason is short, and in no error.
\set VERBOSITY terse
SELECT rl_block('why', 'bot', '1 hour', reason => repeat('ä', 101));
SELECT rl_block('why', 'bot', '1 hour', reason => 'secret');
SELECT rl_limit('why', 'bot', throws => true);
SELECT rl_headers('why', r) FROM rl_limit('why', 'bot') AS r;
\set VERBOSITY default
DROP VIEW why;
SELECT count(rl_undefine(name, key)) FROM (VALUES ('why', ''), ('why', 'why vip'), ('why', 'vip-too'), ('why/slots', ''), ('why/free', ''), ('why/small', '')) AS d (name, key);
SELECT count(rl_unblock(name, key)) FROM (VALUES ('why', 'bot'), ('why', 'vip-too'), ('why/none', 'x'), ('why/slots', 'full'), ('why', 'empty-too')) AS d (name, key);
SELECT count(rl_reset_all(name)) FROM unnest(ARRAY['why', 'why/slots']) AS d (name);
