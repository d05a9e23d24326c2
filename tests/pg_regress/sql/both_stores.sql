-- One name or one call in both stores: which of them rl_reset and rl_reset_all clear, and what a ROLLBACK gives back.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET ratelimit.clock = '2027-01-01 12:00:00+00';
CREATE FUNCTION both_in(store text) RETURNS boolean LANGUAGE sql AS $$
    SELECT rl_define('both', rl_token_bucket(10, '1 minute') ||
        CASE store WHEN 'saved' THEN '{"store": "memory", "save": "1 hour"}' ELSE jsonb_build_object('store', store) END) $$;
-- Takes 4 in the table and 1 in memory.
CREATE PROCEDURE both_taken() LANGUAGE plpgsql AS $$
BEGIN
    PERFORM both_in('table'), rl_reset_all('both');
    PERFORM rl_limit('both', 'k', 4);
    PERFORM both_in('memory');
    PERFORM rl_limit('both', 'k', 1);
END $$;
CREATE FUNCTION both_left(OUT in_table double precision, OUT in_memory double precision) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM both_in('table'); in_table := (rl_check('both', 'k')).remaining;
    PERFORM both_in('memory'); in_memory := (rl_check('both', 'k')).remaining;
END $$;
CALL both_taken();
SELECT * FROM both_left();
-- Under a definition in memory, memory alone; in a READ ONLY transaction, too.
BEGIN READ ONLY;
SELECT rl_reset('both', 'k'), rl_reset('both', 'k') AS again;
COMMIT;
SELECT * FROM both_left();
CALL both_taken();
SELECT rl_reset_all('both');
SELECT * FROM both_left();
-- Under a definition in the table, both; rl_reset_all counts the key in each.
CALL both_taken();
SELECT both_in('table'), rl_reset('both', 'k'), rl_reset('both', 'k') AS again;
SELECT * FROM both_left();
CALL both_taken();
SELECT both_in('table'), rl_reset_all('both');
SELECT * FROM both_left();
-- Both, if the name is not defined.
CALL both_taken();
SELECT rl_undefine('both'), rl_reset('both', 'k'), rl_reset('both', 'k') AS again;
SELECT * FROM both_left();
-- Those of the name's definition, if the key is exempt.
CALL both_taken();
SELECT rl_define('both', rl_unlimited(), 'k'), rl_reset('both', 'k');
SELECT rl_undefine('both', 'k');
SELECT * FROM both_left();
-- With an override in the table rl_reset_all clears what each key's limit uses: of 'k' memory alone.
CALL both_taken();
SELECT rl_define('both', rl_token_bucket(10, '1 minute'), 'other'), rl_reset_all('both');
SELECT * FROM both_left();
SELECT rl_undefine('both', 'other'), rl_reset_all('both');

-- A key whose override is saved is reset in memory and in its row, also under a name that is in memory alone; what the
-- table has of the others is left, as by rl_reset. By the server's clock, since no other is saved.
RESET ratelimit.clock;
SELECT rl_define('both/override', rl_token_bucket(10, '1000 days'));
SELECT key, round(remaining) FROM unnest(ARRAY['k', 'saved']) AS key, rl_limit('both/override', key, 3);
SELECT rl_define('both/override', rl_token_bucket(10, '1000 days') || '{"store": "memory"}'),
       rl_define('both/override', rl_token_bucket(10, '1000 days') || '{"store": "memory", "save": "1 hour"}', 'saved');
SELECT key, round(remaining) FROM unnest(ARRAY['k', 'saved']) AS key, rl_limit('both/override', key, 4);
SELECT rl_reset_all('both/override');
SELECT key, round(remaining) FROM unnest(ARRAY['k', 'saved']) AS key, rl_check('both/override', key);
SELECT rl_undefine('both/override', 'saved'), rl_define('both/override', rl_token_bucket(10, '1000 days'));
SELECT key, round(remaining) FROM unnest(ARRAY['k', 'saved']) AS key, rl_check('both/override', key);
-- So it is where it has a row and is not in memory.
SELECT rl_define('both/override', rl_token_bucket(10, '1000 days') || '{"store": "memory"}'), ok
FROM rl_limit('both/override', 'saved', 4);
SELECT rl_define('both/override', rl_token_bucket(10, '1000 days') || '{"store": "memory", "save": "1 hour"}', 'saved');
SELECT rl_reset_all('both/override');
SELECT round(remaining) FROM rl_check('both/override', 'saved');
SELECT rl_undefine('both/override', 'saved'), rl_undefine('both/override'), rl_reset_all('both/override');
SET ratelimit.clock = '2027-01-01 12:00:00+00';

-- A ROLLBACK gives back what one rl_limit_all took from the table, and not what it took from memory.
SELECT rl_define('both/table', rl_token_bucket(10, '1 minute')),
       rl_define('both/memory', rl_token_bucket(10, '1 minute') || '{"store": "memory"}');
CREATE VIEW both_remaining AS SELECT name, remaining
FROM unnest(ARRAY['both/memory', 'both/table']) AS name, LATERAL rl_check(name, 'k');
BEGIN;
SELECT name, ok, remaining FROM rl_limit_all('[{"name": "both/table", "key": "k"}, {"name": "both/memory", "key": "k"}]');
ROLLBACK;
SELECT * FROM both_remaining;
BEGIN;
SAVEPOINT a;
SELECT name, ok, remaining FROM rl_limit_all('[{"name": "both/memory", "key": "k"}, {"name": "both/table", "key": "k"}]');
ROLLBACK TO a;
COMMIT;
SELECT * FROM both_remaining;
-- What is denied takes from neither.
SELECT name, ok, allows FROM rl_limit_all('[{"name": "both/memory", "key": "k"}, {"name": "both/table", "key": "k", "count": 11}]');
SELECT name, ok, allows FROM rl_limit_all('[{"name": "both/memory", "key": "k", "count": 11}, {"name": "both/table", "key": "k"}]');
SELECT * FROM both_remaining;

-- In both, 0 slots are free where none is: no lease, and nothing is stored. In memory also in a READ ONLY transaction.
SELECT rl_define('both/slots ' || store, rl_concurrency(1, '1 minute') || jsonb_build_object('store', store))
FROM unnest(ARRAY['memory', 'table']) AS store;
SELECT name, zero.* FROM unnest(ARRAY['both/slots memory', 'both/slots table']) AS name, rl_acquire(name, 'k', 0) zero;
SELECT count(*) FROM rateLimits WHERE name LIKE 'both/slots%';
SELECT name, ok, lease IS NULL AS none FROM unnest(ARRAY['both/slots memory', 'both/slots table']) AS name, rl_acquire(name, 'k');
SELECT name, zero.* FROM unnest(ARRAY['both/slots memory', 'both/slots table']) AS name, rl_acquire(name, 'k', 0) zero;
BEGIN READ ONLY;
SELECT ok, lease, remaining FROM rl_acquire('both/slots memory', 'k', 0);
SELECT error_of($$SELECT rl_acquire('both/slots table', 'k', 0)$$);
COMMIT;
DROP VIEW both_remaining;
DROP FUNCTION both_left, both_in;
DROP PROCEDURE both_taken;
