// ratelimit.sql as the package installs it, on databases of their own.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';

import knex from 'knex';
import { runner } from 'node-pg-migrate';
import pg from 'pg';

import { install, installSql } from 'postgres-rate-limit';

const source = fileURLToPath(new URL('../..', import.meta.url));
/** As the role that owns the database, and is no superuser. */
const OWNER = { database: 'install_node', user: 'installer_node' };

/** Runs each of these as the superuser, on a connection of its own. */
async function administer(...commands) {
    const client = new pg.Client({ user: 'postgres', database: 'postgres' });
    await client.connect();
    for (const command of commands) await client.query(command);
    await client.end();
}
before(() => administer(`CREATE ROLE ${OWNER.user} LOGIN`, `CREATE DATABASE ${OWNER.database} OWNER ${OWNER.user}`));
after(() => administer(`DROP DATABASE ${OWNER.database} WITH (FORCE)`, `DROP ROLE ${OWNER.user}`));

/** A client of the owner's for the time of a test. */
async function connect(context) {
    const client = new pg.Client(OWNER);
    await client.connect();
    context.after(() => client.end());
    return client;
}
const schemas = async (client) => {
    const { rows } = await client.query("SELECT nspname FROM pg_namespace WHERE nspname IN ('ratelimit', 'limits', 'others')");
    return rows.map(({ nspname }) => nspname).sort();
};
/** Takes one of two from a limit of this schema; what is left. */
const take = async (client, schema) => {
    const config = '{"kind": "fixed window", "rate": 2, "period": 3600000}';
    const { rows } = await client.query(`SELECT remaining FROM ${schema}.rl_limit('k', config => $1)`, [config]);
    return rows[0].remaining;
};
/** Runs the command of the package; its outcome. */
const command = async (args, env = {}) => {
    const run = promisify(execFile)(process.execPath, ['dist/cli.cjs', ...args], { cwd: source, env: { ...process.env, ...env } });
    const { code = 0, stdout, stderr } = await run.catch((error) => error);
    return { code, stdout, stderr };
};
const ENVIRONMENT = { PGUSER: OWNER.user, PGDATABASE: OWNER.database };

test('the text is the file, and for another schema what the build makes of it', async () => {
    const file = await readFile(`${source}/ratelimit.sql`, 'utf8');
    assert.ok(file.length > 50_000);
    assert.ok(installSql() === file && installSql({ schema: 'ratelimit' }) === file);
    assert.ok(installSql({ schema: 'limits' }) === (await readFile('../limits/ratelimit.sql', 'utf8')));
});

test('a name that can be no schema is refused', async () => {
    for (const schema of ['', 'Limits', 'a b', 'a"; DROP SCHEMA public; --', "a'", 'pg_limits', '1st', 'public', 'x'.repeat(64), '$&', null, 7]) {
        assert.throws(() => installSql({ schema }), { name: 'TypeError', message: /^installSql: schema is .*; allowed: lower-case/s });
        await assert.rejects(install({ query: () => assert.fail('it was run') }, { schema }), TypeError);
    }
});

test('a migration installs it, keeps what is there, and takes it back', async (context) => {
    const client = await connect(context);
    await client.query('BEGIN');
    await install(client);
    assert.deepEqual(await schemas(client), ['ratelimit']);
    assert.equal(await take(client, 'ratelimit'), 1);
    await client.query('ROLLBACK');
    assert.deepEqual(await schemas(client), []);

    const pool = new pg.Pool(OWNER);
    context.after(() => pool.end());
    await install(pool);
    assert.equal(await take(client, 'ratelimit'), 1);
    await install(pool, { schema: 'ratelimit' });
    assert.equal(await take(client, 'ratelimit'), 0, 'over itself it keeps its state');

    await install(pool, { schema: 'others' });
    assert.equal(await take(client, 'others'), 1, 'a limit of another schema is another');
    await client.query('DROP SCHEMA ratelimit CASCADE');
    assert.equal(await take(client, 'others'), 0, 'and needs nothing of the first');
    await client.query('DROP SCHEMA others CASCADE');

    await install(pool, { schema: 'order' });
    assert.equal(await take(client, '"order"'), 1, 'a word of SQL is a name, too');
    await client.query('DROP SCHEMA "order" CASCADE');
});

/** What a migration tool has installed works and is the file, whatever the tool makes of a ?, a ; or a $; then it is removed. */
async function installedBy(context, tool) {
    const client = await connect(context);
    const functions = async () => {
        const text = "SELECT proname, md5(prosrc) AS source FROM pg_proc WHERE pronamespace = 'ratelimit'::regnamespace ORDER BY 1, 2";
        return (await client.query(text)).rows;
    };
    await tool.up();
    assert.equal(await take(client, 'ratelimit'), 1);
    const got = await functions();
    await tool.down();
    assert.deepEqual(await schemas(client), []);
    await install(client);
    const expected = await functions();
    await client.query('DROP SCHEMA ratelimit CASCADE');
    assert.ok(expected.length > 50);
    assert.deepEqual(got, expected);
}
const folderOf = async (context, files) => {
    const folder = await mkdtemp(`${tmpdir()}/migrations.`);
    context.after(() => rm(folder, { recursive: true }));
    for (const [name, text] of Object.entries(files)) await writeFile(`${folder}/${name}`, text);
    return folder;
};
const PACKAGE = pathToFileURL(`${source}/dist/index.mjs`);

test('in a migration of Knex', async (context) => {
    const folder = await folderOf(context, {
        '1_limits.mjs': `import { install } from '${PACKAGE}';
            export const up = (knex) => install(knex);
            export const down = (knex) => knex.raw('DROP SCHEMA ratelimit CASCADE');`,
    });
    const connection = { ...OWNER, host: process.env.PGHOST, port: Number(process.env.PGPORT) };
    const database = knex({ client: 'pg', connection, migrations: { directory: folder, loadExtensions: ['.mjs'] } });
    context.after(() => database.destroy());
    await installedBy(context, { up: () => database.migrate.latest(), down: () => database.migrate.rollback() });
    await install(database, { schema: 'others' });
    assert.equal(await take(await connect(context), 'others'), 1);
    await database.raw('DROP SCHEMA others CASCADE');
});

test('in a migration of node-pg-migrate', async (context) => {
    const dir = await folderOf(context, {
        '1_limits.mjs': `import { installSql } from '${PACKAGE}';
            export const up = (pgm) => pgm.sql(installSql());
            export const down = (pgm) => pgm.dropSchema('ratelimit', { cascade: true });`,
    });
    const run = (direction) => runner({ databaseUrl: OWNER, dir, direction, migrationsTable: 'migrations', log() {} });
    await installedBy(context, { up: () => run('up'), down: () => run('down') });
});

const DBMATE = path.resolve('../tools/node_modules/.bin/dbmate');
test('in a migration of dbmate, by what the command prints', { skip: !existsSync(DBMATE) }, async (context) => {
    const { stdout } = await command(['install', '--print']);
    const text = `-- migrate:up\n${stdout}-- migrate:down\nDROP SCHEMA ratelimit CASCADE;\n`;
    const folder = await folderOf(context, { '1_limits.sql': text });
    const url = `postgres://${OWNER.user}@/${OWNER.database}?socket=${process.env.PGHOST}&port=${process.env.PGPORT}`;
    const options = ['--url', url, '--migrations-dir', folder, '--schema-file', `${folder}/schema`];
    const run = (what) => promisify(execFile)(DBMATE, [...options, what]);
    await installedBy(context, { up: () => run('up'), down: () => run('down') });
});

test('the command installs, by variables or URL, and prints', async (context) => {
    const client = await connect(context);
    assert.deepEqual(await command(['install'], ENVIRONMENT), {
        code: 0,
        stdout: `ratelimit is installed in schema "ratelimit" of database "${OWNER.database}"\n`,
        stderr: '',
    });
    assert.equal(await take(client, 'ratelimit'), 1);
    const host = encodeURIComponent(process.env.PGHOST);
    const url = `postgresql://${OWNER.user}@/${OWNER.database}?host=${host}&port=${process.env.PGPORT}`;
    const { code, stderr } = await command(['install', url, '--schema', 'limits'], { PGHOST: '/nowhere' });
    assert.deepEqual([code, stderr], [0, '']);
    assert.deepEqual(await schemas(client), ['limits', 'ratelimit']);
    await client.query('DROP SCHEMA ratelimit CASCADE; DROP SCHEMA limits CASCADE');

    const printed = await command(['install', '--print', '--schema=limits'], { PGHOST: '/nowhere' });
    assert.equal(printed.code, 0);
    assert.ok(printed.stdout === installSql({ schema: 'limits' }), 'what is printed is what would be run');
    assert.deepEqual(await schemas(client), []);
});

test('the command says what is wrong', async (context) => {
    for (const args of [[], ['remove'], ['install', 'a', 'b'], ['install', '--force'], ['install', '--schema']]) {
        const { code, stdout, stderr } = await command(args);
        assert.deepEqual([code, stdout, stderr.slice(0, 6)], [2, '', 'Usage:'], args.join(' '));
    }
    assert.match((await command(['--help'])).stdout, /^Usage: postgres-rate-limit install/);
    assert.deepEqual(await command(['install', '--schema', 'Limits'], ENVIRONMENT), {
        code: 1,
        stdout: '',
        stderr: 'error: installSql: schema is Limits; allowed: lower-case letters, digits and _, but not public\n',
    });
    const nowhere = await command(['install'], { PGHOST: '/nowhere' });
    assert.deepEqual([nowhere.code, nowhere.stdout], [1, '']);
    assert.match(nowhere.stderr, /^error: .*\/nowhere/);

    // Where somebody else has the schema.
    await administer('CREATE ROLE somebody_node');
    context.after(() => administer('DROP ROLE somebody_node'));
    const other = new pg.Client({ ...OWNER, user: 'postgres' });
    await other.connect();
    context.after(() => other.end());
    await other.query('CREATE SCHEMA ratelimit AUTHORIZATION somebody_node');
    const refused = await command(['install'], ENVIRONMENT);
    await other.query('DROP SCHEMA ratelimit');
    assert.deepEqual([refused.code, refused.stdout], [1, '']);
    assert.match(refused.stderr, /^error: .*schema.*another role\nhint: .+\n$/);
});
