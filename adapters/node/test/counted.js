// A schema whose rl_limit and rl_limit_each call those of the limiter, and count: by sequences, since a rollback keeps
// what they have. It fails and waits as a test asks.
import pg from 'pg';

import { onFile } from './edition.js';
import { run } from './limits.js';

const SCHEMA = 'counted';
const place = onFile ? 'ratelimit' : 'public';
const TOKENS = `ok, retry_after, retry_at, remaining, capacity, reset_at, limited_by`;
const columns = (type) => `ok boolean, retry_after float8, retry_at timestamptz, remaining ${type}, capacity float8,
    reset_at timestamptz, limited_by text`;
// A fault is an SQLSTATE, or "waits": for the advisory lock 1.
const BEGINS = (call) => `
    SELECT code INTO fault FROM ${SCHEMA}.faults AS f WHERE f.call = '${call}';
    IF fault = 'waits' THEN PERFORM pg_advisory_xact_lock_shared(1);
    ELSIF fault IS NOT NULL THEN RAISE EXCEPTION 'as asked' USING ERRCODE = fault; END IF;`;
const ONE = (type) => `
    CREATE FUNCTION ${SCHEMA}.rl_limit(name text, key text, count float8, reserve boolean, config jsonb)
    RETURNS TABLE (${columns(type)}) LANGUAGE plpgsql AS $$
    #variable_conflict use_column
    DECLARE fault text;
    BEGIN
        PERFORM nextval('${SCHEMA}.alone'); ${BEGINS('limit')}
        RETURN QUERY SELECT ${TOKENS.replace('remaining', `remaining::${type}`)}
            FROM ${place}.rl_limit($1, $2, $3, $4, config => $5);
    END $$;
    GRANT EXECUTE ON FUNCTION ${SCHEMA}.rl_limit TO PUBLIC;`;
const SQL = `
    CREATE SCHEMA ${SCHEMA};
    CREATE SEQUENCE ${SCHEMA}.alone MINVALUE 0 START 0; CREATE SEQUENCE ${SCHEMA}.each MINVALUE 0 START 0;
    CREATE SEQUENCE ${SCHEMA}.requests MINVALUE 0 START 0;
    SELECT nextval('${SCHEMA}.alone'), nextval('${SCHEMA}.each'), nextval('${SCHEMA}.requests');
    CREATE TABLE ${SCHEMA}.faults (call text PRIMARY KEY, code text);
    ${ONE('float8')}
    CREATE FUNCTION ${SCHEMA}.rl_limit_each(requests jsonb, lock_wait interval)
    RETURNS TABLE (n int, name text, key text, ${columns('float8')}, error jsonb) LANGUAGE plpgsql AS $$
    #variable_conflict use_column
    DECLARE fault text;
    BEGIN
        PERFORM nextval('${SCHEMA}.each');
        PERFORM nextval('${SCHEMA}.requests') FROM jsonb_array_elements($1);
        PERFORM set_config('counted.wait', $2::text, false); ${BEGINS('each')}
        RETURN QUERY SELECT n, name, key, ${TOKENS}, error FROM ${place}.rl_limit_each($1, $2);
    END $$;
    CREATE FUNCTION ${SCHEMA}.rl_headers(name text, result record, key text, style text, config jsonb) RETURNS jsonb
    LANGUAGE plpgsql AS $$ BEGIN RETURN ${place}.rl_headers($1, $2, $3, $4, $5); END $$;
    GRANT USAGE ON SCHEMA ${SCHEMA} TO PUBLIC;
    GRANT EXECUTE ON FUNCTION ${SCHEMA}.rl_headers TO PUBLIC;
    GRANT EXECUTE ON FUNCTION ${SCHEMA}.rl_limit_each TO PUBLIC;
    GRANT ALL ON ALL SEQUENCES IN SCHEMA ${SCHEMA} TO PUBLIC;
    GRANT ALL ON ALL TABLES IN SCHEMA ${SCHEMA} TO PUBLIC;`;

/** Makes it in a database of limits(). */
export async function counted({ app: { database } }) {
    await run('postgres', database, SQL);
    const runs = (...commands) => run('postgres', database, ...commands);
    let before = { alone: 0, each: 0, requests: 0 };
    return {
        schema: SCHEMA,
        /** The calls of each function since the last look, and the requests of rl_limit_each. */
        async since() {
            const parts = Object.keys(before).map((name) => `(SELECT last_value FROM ${SCHEMA}.${name})::int AS ${name}`);
            let now;
            await runs(async (client) => ([now] = (await client.query(`SELECT ${parts}`)).rows));
            const since = Object.fromEntries(Object.entries(now).map(([name, n]) => [name, n - before[name]]));
            before = now;
            return since;
        },
        /** Makes a function fail with an SQLSTATE, or wait while an advisory lock is held; null: no more. */
        async fails(call, code) {
            await runs(`DELETE FROM ${SCHEMA}.faults WHERE call = '${call}'`);
            if (code !== null) await runs(`INSERT INTO ${SCHEMA}.faults VALUES ('${call}', '${code}')`);
        },
        /** Gives rl_limit a column of another type. */
        retyped: () => runs(`DROP FUNCTION ${SCHEMA}.rl_limit; ${ONE('numeric')}`),
        runs,
        /** A session that has run this, and what waits for the lock of "waits", or for a row. */
        async session(text) {
            const client = new pg.Client({ user: 'postgres', database });
            await client.connect();
            if (text) await client.query(text);
            return client;
        },
        /** Waits until this number of sessions of the database wait for a lock. */
        async waiting(n) {
            const waits = `SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock'`;
            await runs(async (client) => {
                while ((await client.query(waits, [database])).rows[0].n !== n)
                    await new Promise((resolve) => setTimeout(resolve, 5));
            });
        },
    };
}
