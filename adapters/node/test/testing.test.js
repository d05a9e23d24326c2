// The fixtures for tests of applications, by runs of Vitest: the page's program passes, and broken fixtures fail.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { copyFile, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import pg from 'pg';
import typescript from 'typescript';

import { install } from 'postgres-rate-limit';
import { onFile } from './edition.js';

const source = fileURLToPath(new URL('..', import.meta.url));
const NAME = `testing_node_${process.pid}`;
const OTHER = `other_${NAME}`;
const FIXTURES = 'postgres-rate-limit/testing';
const IN_MEMORY = `rl_token_bucket(rate => 1, period => '1 day', store => 'memory')`;

/** Runs each of these on a connection of its own. */
async function run(user, database, ...commands) {
    const client = new pg.Client({ user, database });
    await client.connect();
    try {
        for (const command of commands) await (typeof command === 'string' ? client.query(command) : command(client));
    } finally {
        await client.end();
    }
}
const administer = (...commands) => run('postgres', 'postgres', ...commands);

/** A copy of the database, which this test drops at its end. */
async function copy(context, suffix) {
    const name = `${NAME}_${suffix}`;
    await administer(`CREATE DATABASE ${name} TEMPLATE ${NAME} OWNER ${NAME}`);
    context.after(() => administer(`DROP DATABASE ${name} WITH (FORCE)`));
    return name;
}

// A database of a role that may set the clock, and a role that may not.
before(async () => {
    for (const role of [NAME, OTHER])
        await administer(`CREATE ROLE ${role} LOGIN`, `ALTER ROLE ${role} SET search_path = public, ratelimit`);
    await administer(`CREATE DATABASE ${NAME} OWNER ${NAME}`);
    if (!onFile) await administer(`GRANT SET ON PARAMETER ratelimit.clock TO ${NAME}`);
    const defined = onFile ? [] : [`SELECT rl_define('inMemory', ${IN_MEMORY})`];
    await run(
        NAME,
        NAME,
        onFile ? install : 'CREATE EXTENSION ratelimit SCHEMA public',
        `SELECT rl_define('sendMessage', rl_token_bucket(rate => 10, period => '1 minute', keyed => true))`,
        ...defined,
        'CREATE TABLE messages (author text, body text)',
        `GRANT USAGE ON SCHEMA ${onFile ? 'ratelimit' : 'public'} TO ${OTHER}`,
        `GRANT EXECUTE ON FUNCTION rl_limit, rl_check, rl_reset_keys TO ${OTHER}`,
        `GRANT SELECT ON rl_config TO ${OTHER}`,
    );
});
after(async () => {
    await run('postgres', NAME, `DROP OWNED BY ${OTHER}`);
    await administer(`DROP DATABASE ${NAME} WITH (FORCE)`);
    for (const role of [NAME, OTHER]) await administer(`DROP OWNED BY ${role}`, `DROP ROLE ${role}`);
});

/** Runs Vitest with two workers on these files; the outcomes of each file's tests, and what Vitest printed. */
async function vitest(context, files) {
    // As an application has the package.
    const installed = `${source}/node_modules/postgres-rate-limit`;
    await mkdir(`${installed}/dist`, { recursive: true });
    for (const file of ['package.json', 'dist/testing.mjs']) await copyFile(`${source}/${file}`, `${installed}/${file}`);
    const folder = await mkdtemp(`${source}/vitest.`);
    context.after(() => rm(folder, { recursive: true }));
    await writeFile(`${folder}/package.json`, '{ "type": "module" }');
    for (const [name, text] of Object.entries(files)) await writeFile(`${folder}/${name}`, text);

    const results = `${folder}/results.json`;
    const options = ['--reporter=json', `--outputFile=${results}`, '--max-workers=2', '--test-timeout=120000'];
    const args = [`${source}/node_modules/vitest/vitest.mjs`, 'run', '--root', folder, ...options];
    const env = { ...process.env, PGUSER: NAME, PGDATABASE: NAME };
    delete env.NODE_TEST_CONTEXT;
    const { stdout, stderr } = await promisify(execFile)(process.execPath, args, { cwd: folder, env, maxBuffer: 1e8 }).catch((error) => error);
    const printed = `${stdout}\n${stderr}`;
    const { testResults } = JSON.parse(await readFile(results, 'utf8').catch(() => assert.fail(printed)));
    const outcomes = testResults.map(({ name, message, assertionResults: tests }) => {
        const failed = tests.filter(({ status }) => status === 'failed').map(({ title }) => title);
        const messages = [message, ...tests.flatMap(({ failureMessages }) => failureMessages)].join('\n');
        return [path.basename(name), { tests: tests.map(({ status }) => status), failed, messages }];
    });
    return { outcomes: Object.fromEntries(outcomes), printed };
}
const left = () =>
    new Promise((resolve, reject) => {
        const rows = async (client) => resolve((await client.query('SELECT name FROM ratelimits UNION ALL SELECT body FROM messages')).rows);
        run(NAME, NAME, rows).catch(reject);
    });
const passed = (count) => Array(count).fill('passed');

// What an application does to its transaction, and limits in memory.
const more = (fixtures, database) => `
import { expect } from 'vitest';
import pg from 'pg';
import typescript from 'typescript';
import { ratelimitTest } from '${fixtures}';
const test = ratelimitTest({ connection: { database: '${database}' }, names: ['undefined'] });
const takes = { defined: "SELECT ok FROM rl_limit('inMemory')", named: \`SELECT ok FROM rl_limit('undefined', config => ${IN_MEMORY})\` };
const rowsOf = async (pool, text, values) => (await pool.query(text, values)).rows;

for (const [which, take] of ${onFile ? '[]' : 'Object.entries(takes)'})
    for (const turn of [1, 2])
        test(\`\${which} memory \${turn}\`, async ({ pool }) => {
            expect([await rowsOf(pool, take), await rowsOf(pool, take)]).toEqual([[{ ok: true }], [{ ok: false }]]);
        });
for (const turn of [1, 2])
    test(\`rows \${turn}\`, async ({ pool }) => {
        await pool.query("INSERT INTO messages VALUES ('ada', 'hello')");
        expect(await rowsOf(pool, 'SELECT count(*)::int FROM messages')).toEqual([{ count: 1 }]);
    });

const left = async (client) => (await rowsOf(client, "SELECT remaining FROM rl_check('sendMessage', 'k')"))[0].remaining;
const take = (client, count, throws = false) => client.query("SELECT rl_limit('sendMessage', 'k', $1, throws => $2)", [count, throws]);

test('transactions', async ({ pool, clock }) => {
    let client = await pool.connect();
    expect(client.getTransactionStatus()).toBe('I');
    await client.query('BEGIN');
    expect(client.getTransactionStatus()).toBe('T');
    await take(client, 4);
    await clock.advance(12_000);
    await client.query({ text: 'rollback;' });
    expect(await left(client)).toBe(10);
    expect(clock.now).toEqual(new Date('2027-01-01T12:00:12Z'));
    await client.query('BEGIN ISOLATION LEVEL READ COMMITTED');
    await take(client, 8);
    await client.query('SAVEPOINT its_own');
    await take(client, 2);
    await clock.advance(6_000);
    await client.query('ROLLBACK TO SAVEPOINT its_own');
    expect(await left(client)).toBe(3);
    await take(client, 3);
    await client.query('COMMIT');
    await client.query('ROLLBACK'); // warns only
    client.release();
    expect(await left(pool)).toBe(0);
    client = await pool.connect();
    await client.query('START TRANSACTION');
    await clock.advance(12_000);
    await expect(take(client, 3, true)).rejects.toMatchObject({ code: 'PT429' });
    await clock.advance(6_000);
    await client.query('COMMIT'); // what has failed is rolled back
    client.release();
    expect(await left(pool)).toBe(3);
    await clock.set('2027-01-01T12:00:18Z');
    expect(await left(pool)).toBe(0);
    await expect(clock.set('noon')).rejects.toThrow(RangeError);
});

test('statements outside of a transaction', async ({ pool, clock }) => {
    await take(pool, 10);
    await expect(take(pool, 1, true)).rejects.toMatchObject({ code: 'PT429' });
    await clock.advance(6_000);
    await new Promise((resolve, reject) => pool.query('SELECT 1/0', (error) => (error ? resolve() : reject(new Error('no error')))));
    expect(await Promise.all([left(pool), left(pool)])).toEqual([1, 1]);
    const client = await pool.connect();
    client.release(new Error('closes it'));
    await pool.end();
    expect(await left(pool)).toBe(1);
    const application = new pg.Pool({ database: 'of another' });
    application.connect = pool.connect.bind(pool);
    expect(await left(application)).toBe(1);
});
`;
const turns = (fixtures, database, worker) => `
import { existsSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { expect } from 'vitest';
import pg from 'pg';
import typescript from 'typescript';
import { ratelimitTest } from '${fixtures}';

const test = ratelimitTest({ connection: { database: '${database}' } });

// Two files have it. The first stays in its test until another waits for the lock, or fails since the other runs, too.
test('turns', async ({ pool }) => {
    writeFileSync('${worker}.running', '');
    const other = new pg.Client({ database: '${database}' });
    await other.connect();
    const waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()";
    while (!existsSync('finished') && (await other.query(waits)).rowCount === 0)
        expect(readdirSync('.').filter((file) => file.endsWith('.running'))).toEqual(['${worker}.running']);
    await other.end();
    writeFileSync('finished', '');
    rmSync('${worker}.running');
});
`;

test('the program of the page passes, as do transactions, memory and workers, and leaves nothing', async (context) => {
    const example = await readFile(`${source}/test/example/messages.test.js`, 'utf8');
    const workers = await readFile(`${source}/test/example/workers.js`, 'utf8');
    for (const worker of [1, 2]) await copy(context, worker);
    const inItsOwn = (test) => `import { expect } from 'vitest';
        import { test } from './workers.js';
        test('${test}', async ({ pool }) => {
            const { rows } = await pool.query('SELECT current_database()');
            expect(rows).toEqual([{ current_database: \`${NAME}_\${process.env.VITEST_POOL_ID}\` }]);
        });`;
    const other = `{ connection: { user: '${OTHER}' } }`;
    const { outcomes, printed } = await vitest(context, {
        'messages.test.js': example,
        'more.test.js': more(FIXTURES, NAME),
        'turns_1.test.js': turns(FIXTURES, NAME, 1),
        'turns_2.test.js': turns(FIXTURES, NAME, 2),
        'workers.js': workers.replaceAll('app_test', NAME),
        'own_1.test.js': inItsOwn('one'),
        'own_2.test.js': inItsOwn('two'),
        'no_right.test.js': example.replace('import { test }', 'import { ratelimitTest }').replace('// What', `const test = ratelimitTest(${other});\n// What`),
        'ended.test.js': `import { test } from '${FIXTURES}'; test('ended', async ({ pool }) => { await pool.query('SELECT 1; COMMIT'); });`,
    });
    const { 'no_right.test.js': noRight, 'ended.test.js': ended, ...others } = outcomes;
    const right = Object.fromEntries(Object.entries(others).map(([file, { tests }]) => [file, tests]));
    const expected = { 'messages.test.js': 3, 'more.test.js': onFile ? 4 : 8, 'turns_1.test.js': 1, 'turns_2.test.js': 1, 'own_1.test.js': 1, 'own_2.test.js': 1 };
    assert.deepEqual(right, Object.fromEntries(Object.entries(expected).map(([file, count]) => [file, passed(count)])), printed);
    assert.deepEqual(noRight?.tests, Array(3).fill('failed'), printed);
    assert.match(noRight.messages, new RegExp(`GRANT SET ON PARAMETER ratelimit.clock TO ${OTHER}`));
    assert.deepEqual(ended?.tests, ['failed'], printed);
    assert.match(ended.messages, /the test's transaction was ended/);
    assert.deepEqual(await left(), []);
});

// What is broken, how, and the test that fails then.
const BROKEN = {
    "the clock isn't set": ["set_config('ratelimit.clock', $1, true)", "set_config('ratelimit.watch', $1, true)", 'rows 1'],
    'the clock stands': ['            now = milliseconds;\n', '', 'transactions'],
    'a rollback moves the clock back': ['        await this.#show();\n        return result;', '        return result;', 'transactions'],
    "a savepoint's rollback moves the clock back": ['await this.#show(); // to a savepoint', '// to a savepoint', 'transactions'],
    'a rollback keeps what was written': ["'ROLLBACK TO SAVEPOINT application'", "'SELECT'", 'transactions'],
    'a failed statement ends the rest': ['            await this.#undo();\n            throw error;', '            throw error;', 'statements outside of a transaction'],
    "memory isn't reset": ['SELECT rl_reset_keys(name) FROM', 'SELECT name FROM', 'defined memory 2'],
    "names aren't reset": ['UNION SELECT unnest($1::text[])', 'WHERE $1::text[] IS NOT NULL', 'named memory 2'],
    'tests are committed': ["await this.#send('ROLLBACK TO SAVEPOINT test')", "await this.#send('COMMIT')", 'rows 2'],
    'tests do not take turns': ["SELECT pg_advisory_xact_lock(hashtext('ratelimit.clock'))", 'SELECT', 'turns'],
};
// Each has a database, since the tests of another would reset its limits in memory between two of its own.
test('broken fixtures are noticed', { skip: onFile }, async (context) => {
    const compilerOptions = { module: typescript.ModuleKind.ESNext, target: typescript.ScriptTarget.ES2022 };
    const written = await readFile(`${source}/src/testing.ts`, 'utf8');
    const text = typescript.transpileModule(written, { compilerOptions }).outputText;
    const files = {};
    for (const [n, [what, [old, by]]] of Object.entries(BROKEN).entries()) {
        assert.equal(text.split(old).length, 2, old);
        files[`broken_${n}.js`] = text.replace(old, () => by);
        const database = await copy(context, `broken_${n}`);
        if (what.includes('turns')) for (const worker of [1, 2]) files[`${n}_${worker}.test.js`] = turns(`./broken_${n}.js`, database, worker);
        else files[`${n}_1.test.js`] = more(`./broken_${n}.js`, database);
    }
    const { outcomes, printed } = await vitest(context, files);
    const missed = Object.entries(BROKEN).filter(([, [, , test]], n) => !outcomes[`${n}_1.test.js`].failed.includes(test));
    assert.deepEqual(missed.map(([what]) => what), [], printed);
});
