// A database of a test's own, with its owner, and a role of an application, which may not define.
import pg from 'pg';

import { install } from 'postgres-rate-limit';
import { onFile } from './edition.js';

const CALLS = `limit check take credit reset reset_keys value limit_all limit_each check_all acquire extend release
    hold settle hold_all settle_all headers headers_all`;

/** Runs each of these on a connection of its own. */
export async function run(user, database, ...commands) {
    const client = new pg.Client({ user, database });
    await client.connect();
    try {
        for (const command of commands) await (typeof command === 'string' ? client.query(command) : command(client));
    } finally {
        await client.end();
    }
}

/** Waits for the sessions of a database to end: one that DROP ended would be an error of the pool that has just left it. */
const left = (name) => async (client) => {
    const sessions = 'SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = $1';
    for (let n = 0; n < 100; n++) {
        if ((await client.query(sessions, [name])).rows[0].n === 0) return;
        await new Promise((resolve) => setTimeout(resolve, 10));
    }
};

/** Makes the database NAME, whose limiter is in SCHEMA: the settings of its owner and of the application, and its end. */
export async function limits(name, schema = onFile ? 'ratelimit' : 'public') {
    const [owner, app] = [`${name}_owner`, `${name}_app`];
    await run(
        'postgres',
        'postgres',
        `CREATE ROLE ${owner} LOGIN`,
        `CREATE ROLE ${app} LOGIN`,
        `CREATE DATABASE ${name} OWNER ${owner}`,
    );
    const names = CALLS.split(/\s+/).map((call) => `'rl_${call}'`);
    const grants = `SELECT format('GRANT EXECUTE ON FUNCTION %s TO ${app}', oid::regprocedure) AS sql
        FROM pg_proc WHERE pronamespace = '${schema}'::regnamespace AND proname IN (${names})`;
    await run(
        'postgres',
        name,
        `ALTER DATABASE ${name} SET search_path = public, ${schema}`,
        `CREATE SCHEMA IF NOT EXISTS ${schema}`,
        onFile ? (client) => install(client, { schema }) : `CREATE EXTENSION ratelimit SCHEMA ${schema}`,
        // What an application's owner does.
        `GRANT ALL ON ALL TABLES IN SCHEMA ${schema} TO ${owner}`,
        `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA ${schema} TO ${owner}`,
        `GRANT USAGE ON SCHEMA ${schema} TO ${owner}, ${app}`,
        async (client) => {
            for (const { sql } of (await client.query(grants)).rows) await client.query(sql);
        },
        `CREATE TABLE messages (author text, body text)`,
        `GRANT ALL ON messages TO ${owner}, ${app}`,
    );
    return {
        owner: { user: owner, database: name },
        app: { user: app, database: name },
        end: () => run('postgres', 'postgres', left(name), `DROP DATABASE ${name} WITH (FORCE)`, `DROP ROLE ${owner}, ${app}`),
    };
}
