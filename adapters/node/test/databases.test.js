// The client on what applications have: the take is in their transaction, and a rollback gives the token back.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { after, before, test } from 'node:test';

import { PGlite } from '@electric-sql/pglite';
import { drizzle } from 'drizzle-orm/node-postgres';
import { drizzle as drizzleJs } from 'drizzle-orm/postgres-js';
import { drizzle as drizzlePglite } from 'drizzle-orm/pglite';
import { CamelCasePlugin, Kysely, PostgresDialect } from 'kysely';
import pg from 'pg';
import postgres from 'postgres';

import {
    concurrency,
    HOUR,
    install,
    isRateLimitError,
    RateLimiter,
    RateLimitError,
    SECOND,
    tokenBucket,
} from 'postgres-rate-limit';
import { RateLimitStore } from 'postgres-rate-limit/express-rate-limit';
import { application } from './application.js';
import { onFile } from './edition.js';
import { limits, run } from './limits.js';

const NAME = `databases_node_${process.pid}`;
const settings = () => ({ host: process.env.PGHOST, port: Number(process.env.PGPORT), ...database.app });
// In a package of its own, which adapters/run installs, since it depends on what is large.
const PRISMA = path.resolve('../prisma/package.json');
const LIMITS = { send: tokenBucket({ rate: 2, period: HOUR, keyed: true }) };
const DENIED = `CREATE FUNCTION denied() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM @rl_limit('trigger', NEW.author, throws => true, config => '{"kind": "fixed window", "rate": 1, "period": 3600000, "start": "first request"}');
    RETURN NEW; END $$;
    CREATE TABLE guarded (author text);
    CREATE TRIGGER denied BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION denied()`;

let database, pool;
before(async () => {
    database = await limits(NAME);
    const place = onFile ? 'ratelimit.' : '';
    await run('postgres', NAME, DENIED.replace('@', place), `GRANT ALL ON guarded TO ${database.app.user}`);
    pool = new pg.Pool(settings());
});
after(async () => {
    await pool.end();
    await database.end();
});

const ROLLBACK = new Error('rolled back');
const rolledBack = (promise) =>
    assert.rejects(promise, (error) => error === ROLLBACK || /rolled back|^Rollback$/i.test(error.message));

/**
 * A database, and how it runs a function in a transaction, which rolls back when that throws; and how it inserts into
 * the table whose trigger denies.
 */
async function holds(name, db, transaction, insert) {
    const heard = [];
    const limiter = new RateLimiter(LIMITS, { db, onDecision: (decision) => heard.push(decision) });
    const key = `${name} user`;
    const first = await limiter.limit('send', { key });
    assert.equal(first.ok, true);
    assert.equal(first.capacity, 2);
    assert.ok(first.resetAt instanceof Date && first.remaining >= 1 && first.remaining < 2, name);

    await rolledBack(
        transaction(async (tx) => {
            assert.equal((await limiter.limit('send', { key, db: tx })).ok, true);
            const denied = await limiter.limit('send', { key, db: tx });
            assert.equal(denied.ok, false);
            assert.ok(denied.retryAfter > 0 && denied.retryAfter <= HOUR / 2 && denied.retryAt instanceof Date, name);
            const thrown = await limiter.limit('send', { key, db: tx, throws: true }).catch((error) => error);
            assert.ok(thrown instanceof RateLimitError && isRateLimitError(thrown));
            assert.equal((await limiter.check('send', { key, db: tx })).ok, false, 'a denial aborts no transaction');
            await assert.rejects(
                limiter.limit('send', { key, db: tx, wait: 10 }),
                /wait would keep the transaction open/,
            );
            throw ROLLBACK;
        }),
    );
    assert.equal((await limiter.limit('send', { key })).ok, true, `${name}: the token came back`);
    assert.equal((await limiter.limit('send', { key })).ok, false);
    await transaction((tx) => limiter.reset('send', { key, db: tx }));
    await transaction((tx) => limiter.limit('send', { key, db: tx, count: 2 }));
    assert.equal((await limiter.limit('send', { key })).ok, false, `${name}: what is committed stays taken`);

    const all = await limiter.limitAll([
        { name: 'send', key: `${name} other` },
        { name: 'send', key },
    ]);
    assert.deepEqual(
        all.results.map(({ name, key, ok, limitedBy }) => [name, key, ok, limitedBy]),
        [
            ['send', `${name} other`, false, null],
            ['send', key, false, 'tokens'],
        ],
    );
    const lease = { key, config: concurrency({ slots: 1, ttl: HOUR }) };
    assert.equal(await limiter.withLease('slots', lease, async (held) => (await held.extend()) && held.remaining), 0);
    assert.equal((await limiter.check('slots', lease)).remaining, 1);
    assert.ok(
        (await limiter.credit('send', { key, takenAt: new Date(Date.now() - application.ahead) })).remaining >= 1,
    );
    const undefinedOne = await new RateLimiter(LIMITS, { db, defined: true })
        .limit('send', { key })
        .catch((error) => error);
    assert.match(String(RateLimitError.from(undefinedOne) ?? undefinedOne.cause ?? undefinedOne), /not defined/, name);
    await denies(name, insert, key);
    await stores(name, db);
    assert.ok(!JSON.stringify(heard).includes(key));

    // An error is the driver's own, and onDecision hears no key.
    const bad = await limiter
        .limit('bad', { key, config: { kind: 'token bucket', rate: -1, period: 1 } })
        .catch((error) => error);
    assert.ok(bad instanceof Error && !isRateLimitError(bad));
    const { error, ...told } = heard.at(-1);
    assert.deepEqual([told.name, told.ok, told.retryAfter, error.code], ['bad', false, null, '22023']);
    assert.match(error.message, /"rate" is -1/);
    assert.ok(![error.message, error.stack, error.cause].join().includes(key), name);
}

/** The same windows by a store, which also remembers denials. */
async function stores(name, db) {
    for (const prepare of [false, true]) {
        const store = new RateLimitStore({ db, name: `${name} store ${prepare}`, prepare, rememberDenials: true });
        store.init({ limit: 2, windowMs: HOUR });
        const hits = [];
        for (let n = 0; n < 4; n++) hits.push((await store.increment('k')).totalHits);
        assert.deepEqual(hits, [1, 2, 3, 3], name);
        await store.decrement('k');
        const { totalHits, resetTime } = await store.get('k');
        assert.ok(totalHits === 1 && Math.abs(resetTime - Date.now() - HOUR) < 60 * SECOND, name);
        await store.resetKey('k');
        assert.equal(await store.get('k'), undefined);
        await store.increment('k');
        await store.resetAll();
        assert.equal(await store.get('k'), undefined);
    }
}

async function denies(name, insert, key) {
    await insert(key);
    const wrapped = await insert(key).then(
        () => assert.fail('it passed'),
        (error) => error,
    );
    assert.equal(isRateLimitError(wrapped), true, `${name}: ${wrapped}`);
    const { name: limit, retryAfter, retryAt, cause } = RateLimitError.from(wrapped);
    assert.equal(limit, 'trigger');
    assert.ok(retryAfter > 0 && retryAfter <= HOUR && retryAt instanceof Date);
    assert.equal(cause, wrapped);
}

/** A transaction by BEGIN and COMMIT. */
const withClient = async (run) => {
    const client = await pool.connect();
    try {
        await client.query('BEGIN');
        const value = await run(client);
        await client.query('COMMIT');
        return value;
    } catch (error) {
        await client.query('ROLLBACK');
        throw error;
    } finally {
        client.release();
    }
};
const INSERT = 'INSERT INTO guarded VALUES ($1)';

test('pg: a pool, and its clients', async () => {
    await holds('pg', pool, withClient, (key) => pool.query(INSERT, [key]));
    const client = new pg.Client(settings());
    await client.connect();
    const limiter = new RateLimiter(LIMITS, { db: client });
    assert.equal((await limiter.limit('send', { key: 'client', wait: 1 })).ok, true);
    await client.end();
});

test('an object with a query, which may return the rows alone', async () => {
    const query = async (text, values) => (await pool.query(text, values)).rows;
    await holds(
        'query',
        { query },
        (run) => withClient((client) => run(client)),
        (key) => query(INSERT, [key]),
    );
    const silent = new RateLimiter(LIMITS, { db: { query: async () => undefined } });
    await assert.rejects(silent.limit('send', { key: 'a' }), TypeError);
});

test('postgres.js', async () => {
    const sql = postgres({ ...settings(), onnotice: () => {}, transform: postgres.camel });
    await holds(
        'postgres.js',
        sql,
        (run) => sql.begin(run),
        (key) => sql`INSERT INTO guarded VALUES (${key})`,
    );
    await rolledBack(
        sql.begin(async (tx) => {
            await tx.savepoint(async (inner) =>
                assert.equal(
                    (await new RateLimiter(LIMITS, { db: inner }).limit('send', { key: 'savepoint' })).ok,
                    true,
                ),
            );
            throw ROLLBACK;
        }),
    );
    await sql.end();
});

test('Drizzle, on pg, postgres.js and PGlite', async () => {
    const onPg = drizzle(pool);
    await holds(
        'Drizzle on pg',
        onPg,
        (run) => onPg.transaction(run),
        (key) => onPg.execute(`INSERT INTO guarded VALUES ('${key}')`),
    );
    const sql = postgres({ ...settings(), onnotice: () => {} });
    const onJs = drizzleJs(sql);
    await holds(
        'Drizzle on postgres.js',
        onJs,
        (run) => onJs.transaction(run),
        (key) => onJs.execute(`INSERT INTO guarded VALUES ('${key}')`),
    );
    await sql.end();
});

test('Kysely, also where a plugin renames columns', async () => {
    for (const plugins of [[], [new CamelCasePlugin()]]) {
        const db = new Kysely({ dialect: new PostgresDialect({ pool: new pg.Pool(settings()) }), plugins });
        const insert = (author) => db.insertInto('guarded').values({ author }).execute();
        await holds(`Kysely ${plugins.length}`, db, (run) => db.transaction().execute(run), insert);
        await db.destroy();
    }
});

test('PGlite, and Drizzle on it', { skip: !onFile }, async () => {
    const db = await PGlite.create();
    await install(db);
    await db.exec(DENIED.replace('@', 'ratelimit.'));
    await holds(
        'PGlite',
        db,
        (run) => db.transaction(run),
        (key) => db.query(INSERT, [key]),
    );
    const orm = drizzlePglite(db);
    await holds(
        'Drizzle on PGlite',
        orm,
        (run) => orm.transaction(run),
        (key) => orm.execute(`INSERT INTO guarded VALUES ('${key}')`),
    );
    await db.close();
});

test('Prisma', { skip: !existsSync(PRISMA) }, async () => {
    const require = createRequire(PRISMA);
    const { PrismaClient } = require('@prisma/client');
    const { PrismaPg } = require('@prisma/adapter-pg');
    const prisma = new PrismaClient({ adapter: new PrismaPg(settings()) });
    await holds(
        'Prisma',
        prisma,
        (run) => prisma.$transaction(run),
        (key) => prisma.$executeRaw`INSERT INTO guarded VALUES (${key})`,
    );
    await prisma.$disconnect();
});

test('on each of them a server that does not answer fails open, and a refused login never', async () => {
    const made = {
        pg: (options) => [new pg.Pool(options), (db) => db.end()],
        'postgres.js': (options) => [postgres({ ...options, max: 1, backoff: 0 }), (db) => db.end({ timeout: 0 })],
        'Drizzle on pg': (options) => [drizzle(new pg.Pool(options)), (db) => db.$client.end()],
        'Drizzle on postgres.js': (options) => [
            drizzleJs(postgres({ ...options, max: 1, backoff: 0 })),
            (db) => db.$client.end({ timeout: 0 }),
        ],
        Kysely: (options) => [
            new Kysely({ dialect: new PostgresDialect({ pool: new pg.Pool(options) }) }),
            (db) => db.destroy(),
        ],
    };
    if (existsSync(PRISMA)) {
        const require = createRequire(PRISMA);
        const [{ PrismaClient }, { PrismaPg }] = [require('@prisma/client'), require('@prisma/adapter-pg')];
        made.Prisma = (options) => [new PrismaClient({ adapter: new PrismaPg(options) }), (db) => db.$disconnect()];
    }
    for (const [name, make] of Object.entries(made)) {
        for (const [what, options, isOpen] of [
            ['no port answers', { ...settings(), host: '127.0.0.1', port: 1 }, true],
            ['no such role', { ...settings(), user: 'nobody_such' }, false],
            ['no such database', { ...settings(), database: 'nowhere_such' }, false],
        ]) {
            const [db, end] = make(options);
            const limiter = new RateLimiter(LIMITS, { db, onError: 'open' });
            const passed = limiter.limit('send', { key: 'a' }).then(
                ({ error }) => error !== undefined,
                () => false,
            );
            assert.equal(await passed, isOpen, `${name}: ${what}`);
            await end(db);
        }
        const [db, end] = make(settings());
        const holder = await pool.connect();
        await holder.query('BEGIN');
        await new RateLimiter(LIMITS, { db: holder }).limit('send', { key: `${name} locked` });
        const limiter = new RateLimiter(LIMITS, { db, onError: 'open', timeout: 200 });
        assert.ok((await limiter.limit('send', { key: `${name} locked` })).error, `${name}: the row is locked`);
        await holder.query('COMMIT');
        holder.release();
        await end(db);
    }
});
