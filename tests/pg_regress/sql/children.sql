-- Tables that inherit from the extension's own, as their owner may have them. They are left alone, as by ONLY: every
-- call answers as without them, locks none of them, and leaves their rows as they are.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
-- What never ends is cut off, instead of holding up the tests.
SET statement_timeout = '15s';
SELECT rl_define('parent', rl_token_bucket(10, '1 minute')), rl_define('parent', rl_fixed_window(5, '1 minute'), key => 'other'),
    rl_define('parent/wide', rl_token_bucket(10, '1 minute', shards => 2)), rl_define('parent/slots', rl_concurrency(3, ttl => '1 minute'));
SELECT rl_block('parent', 'blocked', until => '2027-01-01 13:00:00+00'), rl_block('parent', 'ended', until => '2027-01-01 12:00:01+00');
CREATE TABLE calls (n int GENERATED ALWAYS AS IDENTITY, call text);
INSERT INTO calls (call) VALUES
    ('SELECT ok, remaining FROM rl_limit(''parent'', ''k'')'),
    ('SELECT ok, remaining FROM rl_limit(''parent'', ''k'', 2)'),
    ('SELECT ok, remaining FROM rl_limit(''parent'', ''other'')'),
    ('SELECT ok, remaining FROM rl_limit(''parent'', ''blocked'')'),
    ('SELECT ok, remaining FROM rl_limit(''parent'', ''blocked by a child'')'),
    ('SELECT ok, remaining FROM rl_limit(''of a child'')'),
    ('SELECT ok, remaining FROM rl_check(''parent'', ''k'')'),
    ('SELECT ok, remaining FROM rl_credit(''parent'', ''k'', 1)'),
    ('SELECT ok FROM rl_limit(''parent/wide'', ''k'')'),
    ('SELECT ok FROM rl_limit(''parent/wide'', ''k'', 7)'),
    ('SELECT ok, remaining FROM rl_check(''parent/wide'', ''k'')'),
    ('SELECT remaining FROM rl_credit(''parent/wide'', ''k'', 1)'),
    ('SELECT name, ok FROM rl_limit_all(''[{"name": "parent", "key": "k"}, {"name": "parent/wide", "key": "k"}, {"name": "parent/wide"}]'')'),
    ('SELECT ok, expires_at, rl_extend(lease), rl_release(lease) FROM rl_acquire(''parent/slots'', ''k'')'),
    ('SELECT rl_value(''parent'', ''k'') -> ''state'''),
    ('SELECT name, key, kind, remaining, retry_at FROM rl_status(''parent'') ORDER BY name, key'),
    ('SELECT name, key, remaining, shards FROM rl_status(''parent/wide'') ORDER BY name, key'),
    ('SELECT rl_block(''parent'', ''k'', until => ''2027-01-01 13:00:00+00'')'),
    ('SELECT ok FROM rl_limit(''parent'', ''k'')'),
    ('SELECT rl_unblock(''parent'', ''k'')'),
    ('SELECT rl_unblock(''parent'', ''blocked by a child'')'),
    ('SELECT rl_define(''parent/wide'', rl_token_bucket(10, ''1 minute''))'),
    ('SELECT ok, remaining FROM rl_limit(''parent/wide'', ''k'')'),
    ('SELECT rl_define(''of a child'', rl_token_bucket(1, ''1 hour''))'),
    ('SELECT rl_undefine(''of a child'')'),
    ('SELECT rl_undefine(''of a child'')'),
    ('SELECT rl_reset(''parent'', ''k'')'),
    ('SELECT rl_reset(''parent'', ''of a child'')'),
    ('SELECT rl_reset(''parent/wide'', ''k'')'),
    ('SELECT ok, remaining FROM rl_limit(''parent/wide'', ''k'')'),
    ('SELECT rl_reset_keys(''parent/wide'')'),
    ('SELECT rl_reset_keys(''parent'')'),
    ('SELECT ok, remaining FROM rl_limit(''parent'', ''k'')'),
    ('SELECT rl_prune() FROM set_config(''ratelimit.clock'', ''2027-01-02 12:00:00+00'', true)');
-- What the calls answer, one after the other; then all of it is rolled back. And what they have locked.
CREATE FUNCTION answers(children regclass[]) RETURNS TABLE (answers text[], locks bigint, changes bigint) LANGUAGE plpgsql AS $$
DECLARE
    call text;
    answer text;
BEGIN
    answers := '{}';
    FOR call IN SELECT c.call FROM calls c ORDER BY n LOOP
        BEGIN
            EXECUTE format('SELECT string_agg(a::text, '' '') FROM (%s) AS a', call) INTO answer;
        EXCEPTION WHEN OTHERS THEN
            answer := sqlstate || ': ' || sqlerrm;
        END;
        answers := answers || coalesce(answer, '');
    END LOOP;
    locks := (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = ANY (children));
    IF children <> '{}' THEN
        EXECUTE 'SELECT count(*) FROM ((TABLE child EXCEPT TABLE child_before) UNION ALL (TABLE child_before EXCEPT TABLE child)) AS differ' INTO changes;
    END IF;
    RAISE EXCEPTION USING errcode = 'RB000';
EXCEPTION WHEN SQLSTATE 'RB000' THEN
    RETURN NEXT;
END
$$;
CREATE TABLE outcomes AS SELECT 'no child' AS children, * FROM answers('{}');
-- But for what rl_prune deletes of other tests.
SELECT unnest(trim_array(answers, 1)) FROM outcomes;
CREATE TABLE child () INHERITS (rateLimits);
CREATE TABLE child_config () INHERITS (rl_config);
CREATE TABLE child_blocks () INHERITS (rl_blocks);
CREATE TABLE child_before (LIKE child);
INSERT INTO outcomes SELECT 'empty ones', * FROM answers('{child,child_config,child_blocks}');
-- With rows of the same keys, and of others.
INSERT INTO child (name, key, shard, kind, value, ts) SELECT n, k, s, 't', 0, '2027-01-01 12:00:00+00' FROM unnest('{parent,parent/wide,of a child}'::text[]) n,
    unnest('{k,other,"",of a child}'::text[]) k, generate_series(0, 2) s;
INSERT INTO child (name, key, shard, kind, value, ts) SELECT n, 'idle', 0, 't', 10, '2026-01-01 12:00:00+00' FROM unnest('{parent,of a child}'::text[]) n;
INSERT INTO child_before TABLE child;
INSERT INTO child_config (name, key, config) VALUES ('parent', 'k', rl_unlimited()), ('parent', '', rl_token_bucket(1, '1 hour')), ('of a child', '', rl_token_bucket(1, '1 hour'));
INSERT INTO child_blocks (name, key, until) VALUES ('parent', 'blocked by a child', 'infinity'), ('parent', 'k', '2026-01-01 12:00:00+00');
INSERT INTO outcomes SELECT 'rows', * FROM answers('{child,child_config,child_blocks}');
-- Each answer that is another one than without a child.
SELECT children, locks, changes,
    (SELECT string_agg(format('%s: %s', call, answers[n]), E'\n' ORDER BY n) FROM calls WHERE answers[n] <> (SELECT o.answers[n] FROM outcomes o WHERE o.children = 'no child')) AS others
FROM outcomes ORDER BY children = 'rows', children = 'empty ones';
SELECT count(*) FROM child_config; SELECT count(*) FROM child_blocks;
-- The same with a limit in memory that is saved: it begins with its own row, and is written to it.
RESET ratelimit.clock;
SELECT rl_define('parent/saved', rl_token_bucket(1e-300, '1 day', capacity => 10, store => 'memory', save => '1 second'));
INSERT INTO rateLimits (name, key, kind, value, ts) VALUES ('parent/saved', 'k', 't', 8, now());
INSERT INTO child (name, key, kind, value, ts) VALUES ('parent/saved', 'k', 't', 3, now());
SELECT remaining FROM rl_limit('parent/saved', 'k');
SELECT rl_save();
SELECT tableoid::regclass AS place, value FROM rateLimits WHERE name = 'parent/saved' ORDER BY value;
SELECT key, remaining FROM rl_status('parent/saved');
-- Neither rows nor children stay.
DROP TABLE child, child_config, child_blocks, child_before, calls, outcomes;
DROP FUNCTION answers;
SELECT rl_undefine('parent'), rl_undefine('parent', 'other'), rl_undefine('parent/wide'), rl_undefine('parent/slots'), rl_undefine('parent/saved');
SELECT rl_reset_keys(n) FROM unnest('{parent,parent/wide,parent/slots,parent/saved}'::text[]) n;
SELECT count(rl_unblock('parent', k)) FROM unnest('{blocked,ended}'::text[]) k;
