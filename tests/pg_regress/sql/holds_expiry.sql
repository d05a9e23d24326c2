-- What a hold returns when it expires, and what its late settlement does; denials that know when holds expire; what
-- becomes of holds when their key is reset, pruned or defined as something else.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
-- What other tests left would be pruned, too.
TRUNCATE rateLimits, rl_blocks, rl_holds;
-- One token an hour, so that nothing to speak of flows in.
SELECT rl_define('he', rl_token_bucket(1, '1 hour', capacity => 100) || '{"keyed": true}');
CREATE VIEW he_holds AS SELECT id, count, old, back, expires_at, charge FROM rl_holds ORDER BY expires_at, id;

\echo a hold that expires
SELECT ok, held, expires_at, remaining FROM rl_hold('he', 'a', 60, id => 'a-1', ttl => '1 minute');
SELECT ok, held, expires_at, remaining FROM rl_hold('he', 'a', 30, id => 'a-2', ttl => '2 minutes', on_expiry => 'charge');
SET ratelimit.clock = '2027-01-01 12:00:59.999+00';
SELECT floor(remaining) FROM rl_check('he', 'a');
-- At its time its tokens are back for every call; only one that takes tokens writes that.
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT ok, floor(remaining) FROM rl_check('he', 'a', 70);
SELECT ok, floor(remaining) FROM rl_check_all('[{"name": "he", "key": "a", "count": 70}]');
SELECT floor(remaining), held FROM rl_status('he', 'a');
SELECT * FROM he_holds;
SELECT floor(value), ts FROM rateLimits WHERE name = 'he' AND key = 'a';
SELECT ok, floor(remaining) FROM rl_limit('he', 'a', 5);
SELECT * FROM he_holds;
SELECT ts, expires FROM rateLimits WHERE name = 'he' AND key = 'a';
-- Charged: it stays taken.
SET ratelimit.clock = '2027-01-01 12:02:00+00';
SELECT floor(remaining) FROM rl_check('he', 'a');
SELECT floor(remaining), held FROM rl_status('he', 'a');
-- Settled late. What it held is taken again, up to what was used.
SELECT ok, floor(remaining) FROM rl_settle('a-1', 20);
-- A charged one as well, in both directions.
SELECT ok, floor(remaining) FROM rl_settle('a-2', 0);
SELECT ok FROM rl_settle('a-1', 20);
SELECT count(*) FROM he_holds;
-- Late, without a report: all that it held was used; cancelled: nothing was.
SELECT ok, held, floor(remaining) FROM (VALUES ('late-1', 10, 'refund'), ('late-2', 20, 'refund'), ('late-3', 5, 'charge'), ('late-4', 5, 'charge')) v (id, count, on_expiry),
    LATERAL rl_hold('he', 'late', v.count, '1 second', v.id, on_expiry => v.on_expiry);
SET ratelimit.clock = '2027-01-01 12:02:10+00';
SELECT floor(remaining) FROM rl_check('he', 'late');
SELECT ok, floor(remaining) FROM rl_settle('late-1');
SELECT ok, floor(remaining) FROM rl_settle('late-2', 0);
SELECT ok, floor(remaining) FROM rl_settle('late-3');
SELECT ok, floor(remaining) FROM rl_settle('late-4', 12);

\echo as if it had happened then
-- 10 a minute: the hold's 10 flow in again until it expires, and find no room. A take of 10 at 2 minutes has all.
SELECT rl_define('he/full', rl_token_bucket(10, '1 minute'));
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT ok, held, remaining FROM rl_hold('he/full', 'k', 10, id => 'full', ttl => '1 minute');
SET ratelimit.clock = '2027-01-01 12:02:00+00';
SELECT ok, remaining FROM rl_limit('he/full', 'k', 10);
SELECT ok, retry_after, remaining FROM rl_limit('he/full', 'k', 10);
SELECT * FROM he_holds;
-- What found no room has been paid: a late settlement takes nothing.
SELECT ok, remaining FROM rl_settle('full', 10);
-- The same whether somebody looked at 20 seconds and at 40 or not.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT ok, remaining FROM unnest(ARRAY['seen', 'unseen']) key, LATERAL rl_hold('he/full', key, 8, id => key, ttl => '30 seconds');
SET ratelimit.clock = '2027-01-01 12:00:20+00';
SELECT ok, remaining FROM rl_credit('he/full', 'seen', 0);
SET ratelimit.clock = '2027-01-01 12:00:40+00';
SELECT ok, remaining FROM rl_limit('he/full', 'seen', 0);
SELECT remaining FROM rl_credit('he/full', 'seen', 0);
SET ratelimit.clock = '2027-01-01 12:00:45+00';
SELECT key, ok, remaining FROM unnest(ARRAY['seen', 'unseen']) key, LATERAL rl_limit('he/full', key, 10);
SELECT * FROM he_holds;
SELECT count(*) FROM (SELECT id FROM rl_holds OFFSET 0) h, LATERAL rl_settle(h.id, 0);
-- Several at once: in the order of expiry, then of id, while there is room. 10 flow in while they run.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT ok, remaining FROM (VALUES ('t-2', 2), ('t-1', 2), ('t-3', 1), ('t-0', 3)) v (id, seconds), LATERAL rl_hold('he/full', 'ties', 2.5, id => id, ttl => seconds * interval '12 seconds');
SET ratelimit.clock = '2027-01-01 12:10:00+00';
SELECT ok, remaining FROM rl_limit('he/full', 'ties', 1);
SELECT * FROM he_holds;
SELECT ok, remaining FROM rl_settle('t-1', 2.5);
SELECT ok, remaining FROM rl_settle('t-0', 2.5);
SELECT ok FROM unnest(ARRAY['t-2', 't-3']) id, LATERAL rl_settle(id, 0);
SELECT remaining FROM rl_check('he/full', 'ties');
-- A heartbeat moves the expiry; an earlier one is looked for in vain, and nothing is lost.
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT ok FROM rl_hold('he', 'beat', 50, id => 'beat', ttl => '1 minute');
SET ratelimit.clock = '2027-01-01 12:00:50+00';
SELECT ok, held, expires_at FROM rl_hold('he', 'beat', 50, id => 'beat', ttl => '1 minute');
SET ratelimit.clock = '2027-01-01 12:01:00+00';
SELECT ok, floor(remaining) FROM rl_limit('he', 'beat', 1);
SET ratelimit.clock = '2027-01-01 12:01:50+00';
SELECT ok, floor(remaining) FROM rl_limit('he', 'beat', 1);
-- It has expired, so the same id again takes what has come back, and goes on.
SELECT ok, hold, held, expires_at, floor(remaining) FROM rl_hold('he', 'beat', 50, id => 'beat', ttl => '1 minute');
SELECT ok, floor(remaining) FROM rl_settle('beat', 10);
-- An idempotent take: charged, and the same answer again within its time.
SELECT ok, held, floor(remaining) FROM rl_hold('he', 'turn', 5, id => 'turn-9', on_expiry => 'charge', ttl => '1 day');
SELECT ok, held, floor(remaining) FROM rl_hold('he', 'turn', 5, id => 'turn-9', on_expiry => 'charge', ttl => '1 day');

\echo windows
SELECT rl_define('he/window', rl_fixed_window(100, '1 hour', start => '2027-01-01 00:00:00+00'));
SET ratelimit.clock = '2027-01-01 12:50:00+00';
SELECT ok, remaining FROM (VALUES ('w-1', 5), ('w-2', 20)) v (id, minutes), LATERAL rl_hold('he/window', 'k', 40, id => id, ttl => minutes * interval '1 minute');
SET ratelimit.clock = '2027-01-01 12:56:00+00';
SELECT remaining FROM rl_check('he/window', 'k');
-- The other expires in the next window: nothing comes back to that.
SET ratelimit.clock = '2027-01-01 13:05:00+00';
SELECT ok, remaining FROM rl_limit('he/window', 'k', 30);
SET ratelimit.clock = '2027-01-01 13:15:00+00';
SELECT ok, remaining FROM rl_limit('he/window', 'k', 1);
SELECT * FROM he_holds WHERE id LIKE 'w-%';
-- Settled late: what had come back is taken now, what was of the ended window has been paid.
SELECT ok, remaining FROM rl_settle('w-1', 10);
SELECT ok, remaining FROM rl_settle('w-2', 45);

\echo when more comes
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('he/llm', rl_token_bucket(40000, '1 minute'));
SELECT ok, held FROM rl_hold('he/llm', 'acme', 30000, id => 'l-a');
SELECT ok, held FROM rl_hold('he/llm', 'acme', 30000, id => 'l-b', at_least => 1000, ttl => '6 seconds');
-- 13.5 s of refill, but l-b expires before.
SELECT ok, retry_after FROM rl_hold('he/llm', 'acme', 9000);
SELECT count, ok, retry_after FROM (VALUES (2000), (18000), (39000), (40001), (1e15)) v (count), LATERAL rl_hold('he/llm', 'acme', v.count);
SELECT ok, held, retry_after FROM rl_hold('he/llm', 'acme', 20000, '1 s', 'l-b');
SELECT ok, held, retry_after FROM rl_hold('he/llm', 'acme', 29000, '1 s', 'l-b', at_least => 20000);
SELECT ok, retry_after, retry_at FROM rl_limit('he/llm', 'acme', 9000);
SELECT ok, retry_after FROM rl_check('he/llm', 'acme', 9000);
SELECT ok, taken, retry_after FROM rl_take('he/llm', 'acme', 9000, at_least => 9000);
SELECT ok, retry_after FROM rl_limit_all('[{"name": "he/llm", "key": "acme", "count": 9000}]');
SELECT ok, retry_after FROM rl_check_all('[{"name": "he/llm", "key": "acme", "count": 9000}]');
SELECT ok, retry_after FROM rl_hold_all('[{"name": "he/llm", "key": "acme", "count": 9000}]');
SELECT limited, retry_at, held FROM rl_status('he/llm', 'acme');
-- Refill that comes earlier than the expiry, and what both give together.
SELECT ok, retry_after FROM rl_limit('he/llm', 'acme', 2000);
SELECT ok, retry_after FROM rl_limit('he/llm', 'acme', 18000);
-- Up to the capacity only, and never more.
SELECT count, ok, retry_after FROM (VALUES (40000), (40001)) v (count), LATERAL rl_limit('he/llm', 'acme', v.count);
-- It says the truth.
SET ratelimit.clock = '2027-01-01 12:00:05.999+00';
SELECT ok FROM rl_check('he/llm', 'acme', 9000);
SET ratelimit.clock = '2027-01-01 12:00:06+00';
SELECT ok FROM rl_check('he/llm', 'acme', 9000);
-- A charged hold gives nothing, and a window's end comes before the expiry.
SET ratelimit.clock = '2027-01-01 12:50:00+00';
SELECT ok, held FROM rl_hold('he/llm', 'charged', 40000, id => 'l-c', ttl => '6 seconds', on_expiry => 'charge');
SELECT ok, retry_after FROM rl_limit('he/llm', 'charged', 20000);
SELECT ok, held FROM rl_hold('he/window', 'retry', 100, id => 'w-3', ttl => '20 minutes');
SELECT ok, retry_at FROM rl_limit('he/window', 'retry', 1);
SELECT ok, held, expires_at FROM rl_hold('he/window', 'retry', 100, id => 'w-3', ttl => '21 minutes');
-- Under a block: the later of both.
SELECT ok, held FROM rl_hold('he', 'blocked', 100, id => 'b-1', ttl => '5 minutes');
SELECT rl_block('he', 'blocked', '2 minutes');
SELECT ok, retry_after FROM rl_limit('he', 'blocked', 50);
SELECT rl_block('he', 'blocked', '8 minutes');
SELECT ok, retry_after FROM rl_limit('he', 'blocked', 50);
SELECT rl_unblock('he', 'blocked');
-- In debt, which the refill pays in a day: the hold expires before.
SELECT ok FROM rl_hold('he', 'debt', 60, id => 'debt-1', ttl => '1 minute');
SELECT ok, remaining FROM rl_credit('he', 'debt', -60);
SELECT ok, retry_after FROM rl_limit('he', 'debt', 30);
SELECT ok, retry_after FROM rl_limit('he', 'debt', 0);
-- Three expiries in a row; then more than 1,000: as if the others never expired.
SELECT ok, held FROM (VALUES (1), (2), (3)) v (n), LATERAL rl_hold('he', 'three', 33, id => 'three-' || n, ttl => n * interval '1 minute');
SELECT count, ok, retry_after FROM (VALUES (2), (34), (35), (67), (68), (100)) v (count), LATERAL rl_limit('he', 'three', v.count);
SELECT rl_define('he/many', rl_token_bucket(1, '1 day', capacity => 1002));
SELECT count(*) FILTER (WHERE ok) FROM generate_series(1, 1002) n, LATERAL rl_hold('he/many', '', 1, id => 'many-' || n, ttl => n * interval '1 second');
SELECT ok, retry_after FROM rl_limit('he/many', '', 1000);
SELECT ok, retry_after FROM rl_limit('he/many', '', 1001);
-- All of them have expired when the next call comes.
SET ratelimit.clock = '2027-01-01 13:10:00+00';
SELECT ok, floor(remaining) FROM rl_limit('he/many', '', 1000);
SELECT count(*), round(sum(count)::numeric, 6) AS count, round(sum(old)::numeric, 6) AS old, round(sum(back)::numeric) AS back FROM rl_holds WHERE name = 'he/many';
SELECT count(*) FILTER (WHERE ok) FROM generate_series(1, 1002) n, LATERAL rl_settle('many-' || n, 0);

\echo status, reset, forget, prune
SET ratelimit.clock = '2027-01-02 12:00:00+00';
SELECT rl_reset_all(name) > 0 FROM unnest(ARRAY['he', 'he/full', 'he/window', 'he/llm', 'he/many']) name;
SELECT * FROM he_holds;
-- Nothing is held of a window that has ended; charged holds count as what would come back.
SELECT ok, remaining FROM (VALUES ('s-1', 10, 'refund'), ('s-2', 20, 'charge')) v (id, count, on_expiry), LATERAL rl_hold('he', 's', v.count, id => v.id, on_expiry => v.on_expiry);
SELECT ok FROM rl_hold('he/window', 's', 20, id => 's-3', ttl => '2 hours');
SELECT name, key, remaining, held FROM rl_status('he') UNION ALL SELECT name, key, remaining, held FROM rl_status('he/window');
SET ratelimit.clock = '2027-01-02 13:00:00+00';
SELECT remaining, held FROM rl_status('he/window', 's');
SELECT ok FROM rl_limit('he', 'none', 1);
SELECT key, held FROM rl_status('he', 'none');
-- A reset deletes the key's holds with its state.
SET ratelimit.clock = '2027-01-02 12:00:00+00';
SELECT rl_reset('he', 's');
SELECT ok FROM rl_settle('s-1', 0);
SELECT remaining FROM rl_check('he', 's');
SELECT ok FROM unnest(ARRAY['r', 'q']) key, LATERAL rl_hold('he', key, 10, id => 'r-' || key);
BEGIN;
SELECT rl_reset_all('he');
SELECT id FROM he_holds;
ROLLBACK;
SELECT rl_forget('r') > 0;
SELECT id FROM he_holds;
SELECT rl_reset_all('he') > 0, rl_reset('he/window', 's');
SELECT count(*) FROM he_holds;
-- rl_prune first gives back what has expired, and deletes holds a day after their expiry. Rows that await an expiry stay.
SELECT rl_prune() >= 0;
SELECT rl_define('he/quick', rl_token_bucket(1000, '1 second'));
SELECT ok, held FROM rl_hold('he/quick', 'p', 10, id => 'p-1', ttl => '1 hour');
SELECT ok, held FROM rl_hold('he/quick', 'p', 10, id => 'p-2', ttl => '2 hours', on_expiry => 'charge');
SET ratelimit.clock = '2027-01-02 12:10:00+00';
SELECT rl_prune();
SET ratelimit.clock = '2027-01-02 13:00:00+00';
SELECT rl_prune();
SELECT * FROM he_holds;
SELECT count(*) FROM rateLimits WHERE name = 'he/quick';
SET ratelimit.clock = '2027-01-03 12:59:59+00';
SELECT rl_prune();
SET ratelimit.clock = '2027-01-03 13:00:01+00';
SELECT rl_prune();
SELECT id FROM he_holds;
SET ratelimit.clock = '2027-01-03 14:00:01+00';
SELECT rl_prune();
SELECT rl_prune();
SELECT id FROM he_holds;
-- A key that no session asks for again gets its tokens back from it, too; max_rows is for all.
SET ratelimit.clock = '2027-01-04 12:00:00+00';
SELECT ok FROM rl_hold('he', 'dead', 100, id => 'p-3', ttl => '1 minute');
SET ratelimit.clock = '2027-01-04 13:00:00+00';
SELECT rl_prune();
SELECT floor(value), ts, expires FROM rateLimits WHERE name = 'he' AND key = 'dead';
SELECT * FROM he_holds;
SELECT count(*) FILTER (WHERE ok) FROM generate_series(1, 5) n, LATERAL rl_hold('he/quick', 'max', 1, id => 'max-' || n, ttl => '1 minute');
SET ratelimit.clock = '2027-01-06 13:00:00+00';
SELECT rl_prune(2);
SELECT count(*) FROM rl_holds;
SELECT rl_prune(3);
SELECT count(*) FROM rl_holds;
SELECT rl_prune(100) > 0;
SELECT rl_prune();
SELECT count(*) FROM rl_holds;

\echo defined otherwise
SET ratelimit.clock = '2027-01-01 12:00:00+00';
SELECT rl_define('he/def', rl_token_bucket(1, '1 hour', capacity => 100));
SELECT ok, remaining FROM unnest(ARRAY['rate', 'kind', 'exempt', 'undefined', 'sliding', 'slots']) key, LATERAL rl_hold('he/def', key, 40, id => 'd-' || key, ttl => '1 minute');
-- Another rate and capacity: under the definition of then.
SELECT rl_define('he/def', rl_token_bucket(2, '1 hour', capacity => 80));
SELECT ok, remaining, capacity FROM rl_settle('d-rate', 10);
-- A window takes over the bucket's tokens.
SELECT rl_define('he/def', rl_fixed_window(50, '1 hour', start => '2027-01-01 00:00:00+00'), 'kind');
SELECT ok, remaining, capacity FROM rl_settle('d-kind', 10);
-- Exempt, undefined, of another kind: ok, and nothing comes back or is taken.
SELECT rl_define('he/def', rl_unlimited(), 'exempt');
SELECT * FROM rl_settle('d-exempt', 90);
SELECT rl_define('he/def', rl_sliding_window(50, '1 hour'), 'sliding');
SELECT ok, remaining, capacity FROM rl_settle('d-sliding', 90);
SELECT rl_define('he/def', rl_concurrency(5, '1 hour'), 'slots');
SELECT ok, remaining, capacity FROM rl_settle('d-slots', 90);
SELECT rl_undefine('he/def');
SELECT * FROM rl_settle('d-undefined', 90);
SELECT ok FROM rl_settle('d-undefined', 90);
SELECT count(*) FROM rl_holds WHERE name = 'he/def';
-- Such a hold expires without an effect, and rl_prune ends with 0.
SELECT rl_define('he/def', rl_token_bucket(1, '1 hour', capacity => 100));
SELECT ok FROM unnest(ARRAY['x-1', 'x-2', 'x-3']) key, LATERAL rl_hold('he/def', key, 40, id => key, ttl => '1 minute');
SELECT rl_define('he/def', rl_unlimited(), 'x-1'), rl_define('he/def', rl_sliding_window(50, '1 hour'), 'x-2');
SET ratelimit.clock = '2027-01-01 12:05:00+00';
SELECT ok, remaining FROM rl_limit('he/def', 'x-2', 1);
SELECT rl_undefine('he/def');
SELECT rl_prune() >= 0;
SELECT rl_prune();
SET ratelimit.clock = '2027-01-02 12:05:00+00';
SELECT rl_prune() > 0;
SELECT rl_prune();
SELECT count(*) FROM rl_holds WHERE name = 'he/def';
-- A kind that begins the state again: of the bucket's hold nothing comes back to the new state.
SELECT rl_define('he/again', rl_token_bucket(1, '1 hour', capacity => 100));
SELECT ok FROM rl_hold('he/again', '', 40, id => 'y-1', ttl => '1 minute');
SELECT rl_define('he/again', rl_sliding_log(50, '1 hour'));
SELECT ok, remaining FROM rl_limit('he/again', '', 20);
SELECT rl_define('he/again', rl_token_bucket(1, '1 hour', capacity => 100));
SELECT ok, remaining FROM rl_limit('he/again', '', 50);
SET ratelimit.clock = '2027-01-02 12:07:00+00';
SELECT ok, floor(remaining) FROM rl_limit('he/again', '', 1);
SELECT count(*) FROM rl_settle('y-1', 0);
SELECT floor(remaining) FROM rl_check('he/again');
DROP VIEW he_holds;
SELECT rl_undefine('he/def', key) FROM unnest(ARRAY['exempt', 'sliding', 'slots', 'kind', 'x-1', 'x-2']) key;
TRUNCATE rl_holds;
