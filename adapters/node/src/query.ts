// Connections that run SQL, recognized by their shape: pg, postgres.js, Drizzle, Kysely, Prisma, PGlite, and any object
// with a query of this form.
import { allow } from './errors';
import { isPool, pooled, within } from './failing';
import { prepared } from './prepared';

/** A pool, a client or a transaction. */
export type Database =
    | Queryable
    | { unsafe(text: string, values?: any[]): any }
    | { $queryRawUnsafe(text: string, ...values: any[]): any }
    | { executeQuery(query: any): any; selectFrom: any }
    | { execute(query: any): any; select: any };

/** A Pool, a Client or a PoolClient of pg, a PGlite or a transaction of it, or an object of one's own. */
export interface Queryable {
    query(text: string, values?: any[]): Promise<{ rows: any[] } | any[]>;
}

/** How a statement is sent: with a time-out in milliseconds; prepared, if this is a pool. */
export interface How {
    timeout?: number | undefined;
    prepare?: boolean | undefined;
}

export async function rowsOf(db: any, text: string, values: unknown[], { timeout, prepare }: How = {}): Promise<any[]> {
    const send = (name?: string, timeout?: number) => {
        if (timeout !== undefined && isPool(db)) return pooled(db, { text, values, name }, timeout);
        const running = runOf(db)!(db, text, values, name);
        return timeout === undefined ? running : within(Promise.resolve(running), timeout);
    };
    const result = await (prepare && isLender(db) ? prepared(db, text, timeout, send) : send(undefined, timeout));
    const rows = Array.isArray(result) ? result : result?.rows;
    if (!Array.isArray(rows)) throw new TypeError('the query of db returned no rows');
    return rows;
}

const is = (db: any, ...methods: string[]) => methods.every((name) => typeof db[name] === 'function');

/** What runs SQL, by its methods. */
const DRIVERS: [methods: string[], run: (db: any, text: string, values: unknown[], name?: string) => any][] = [
    [['$queryRawUnsafe'], (db, text, values) => db.$queryRawUnsafe(text, ...values)], // Prisma
    [['unsafe'], (db, text, values, name) => db.unsafe(text, values, { prepare: name !== undefined })], // postgres.js
    [['executeQuery', 'selectFrom'], (db, text, values) => db.executeQuery(compiled(text, values))], // Kysely
    // Drizzle
    [['execute', 'select'], (db, sql, params) => db.execute({ getSQL: () => ({ toQuery: () => ({ sql, params }) }) })],
    // All others; only a pool of pg gets a name.
    [['query'], (db, text, values, name) => (name ? db.query({ text, values, name }) : db.query(text, values))],
];
const runOf = (db: any) => DRIVERS.find(([methods]) => is(db, ...methods))?.[1];

/** Whether this is certainly what lends connections: a Pool of pg, or postgres.js. */
export const isLender = (db: any): boolean => isPool(db) || (is(db, 'unsafe', 'begin') && !is(db, 'savepoint'));

/** The result of Kysely's CompiledQuery.raw. */
const compiled = (sql: string, parameters: unknown[]) => ({
    sql,
    parameters,
    query: { kind: 'RawNode', sqlFragments: [sql], parameters: [] },
    queryId: { queryId: 'postgres-rate-limit' },
});

/** Throws a TypeError if this can't run SQL. */
export function checked(db: unknown): any {
    const runs = Object(db) === db && runOf(db) !== undefined;
    const known = 'a pool, client or transaction of pg, postgres.js, Drizzle, Kysely, Prisma or PGlite';
    allow(runs, 'db', db === null ? 'null' : typeof db, `${known}, or { query(text, values) }`);
    return db;
}

/**
 * Whether this is a transaction, as far as its shape shows; for a client of pg, and for a runner of TypeORM, whether it
 * is in one. A client that can't report it counts as in one, such as that of pg before 8.21.
 */
export function inTransaction(db: any): boolean {
    if (is(db, '$queryRawUnsafe')) return !is(db, '$connect');
    if (is(db, 'unsafe')) return is(db, 'savepoint');
    if (is(db, 'executeQuery', 'selectFrom')) return db.isTransaction === true;
    if (is(db, 'rollback')) return true; // of Drizzle and PGlite
    if (is(db, 'getTransactionStatus')) return ['T', 'E'].includes(db.getTransactionStatus());
    const runner = db.queryRunner ?? db; // of TypeORM's manager
    if (typeof runner.isTransactionActive === 'boolean') return runner.isTransactionActive;
    return is(db, 'connect') && !isPool(db) && !is(db, 'transaction'); // a pool of another begins its own
}
