// The database of a store: the connections, the limit's name and storage, the time-out and what follows it; and the
// statements.
import { Denials, idOf, Question, type RememberDenials } from './denials.cjs';
import { checkedFailing, isNotNow, isPool, pooled, quietly, type OnError } from './failing.cjs';
import { inTransaction } from './query.cjs';

/** The interface of a Pool or a Client of pg. */
export interface Queryable {
    query(config: { text: string; values?: any[]; name?: string }): Promise<{ rows: any[] }>;
}

export interface RateLimitStoreOptions {
    /** The connections to the database that has the extension ratelimit. */
    pool: Queryable;
    /** The limit's name; all processes that use it count together. */
    name: string;
    /** "memory": in the server's shared memory, lost when it restarts. Default: "table". */
    store?: 'table' | 'memory' | undefined;
    /** The milliseconds after which a call ends with an error: to get a connection, and the answer. Default: 5000. */
    timeout?: number | undefined;
    /** Prepares the statements, which is faster; not for PgBouncer with max_prepared_statements = 0. Default: false. */
    prepare?: boolean | undefined;
    /**
     * What to do if a request can't be counted: no server answers, it is full or a standby, or the call timed out.
     * "open": the request passes. Default: "closed", an error. Denials, mistakes and refused logins are errors with
     * both.
     */
    onError?: OnError | undefined;
    /** Called with the error of each request that passed unchecked. Default: a line of console.warn. */
    onUnchecked?: ((error: Error) => void) | undefined;
    /**
     * Answers a denied key without the database: until it can pass, and for at most a second, or `atMost`. Remembers
     * `max` keys. Default: false.
     */
    rememberDenials?: boolean | RememberDenials | undefined;
}

/** The limiter's clock in epoch milliseconds: set by a test (a time, or such milliseconds), or the server's. */
const CLOCK = "current_setting('ratelimit.clock', true)";
const NOW = `
    CASE WHEN coalesce(${CLOCK}, '') = '' THEN date_part('epoch', clock_timestamp()) * 1000
         WHEN ${CLOCK} ~ '^[-+.0-9eE]+$' THEN ${CLOCK}::float8
         ELSE date_part('epoch', ${CLOCK}::timestamptz) * 1000 END`;
/**
 * The row of one rl_limit or rl_check. `wait`: the milliseconds until a denied call succeeds, or until the window ends.
 * A span, because the application's clock may show another time. NULL: a block without an end.
 */
const HITS = `
    ok, capacity - remaining AS hits,
    CASE WHEN ok THEN date_part('epoch', reset_at) * 1000 - ${NOW} ELSE retry_after * 1000 END AS wait`;
/** The statements, by the names under which they are prepared. */
const SQL = {
    take: `SELECT ${HITS} FROM rl_limit($1::text, $2::text, $4::float8, config => $3::jsonb)`,
    // The tokens left of an open window: a key in one may have no hits, if all were given back.
    look: `
        SELECT ${HITS}, (value #>> '{state,ts}')::float8 + ($3::jsonb ->> 'period')::float8
            - (value ->> 'now')::float8 AS open
        FROM rl_check($1::text, $2::text, config => $3::jsonb),
            rl_value($1::text, $2::text, $3::jsonb) AS value`,
    give_back: 'SELECT FROM rl_credit($1::text, $2::text, $4::float8, config => $3::jsonb)',
    reset: 'SELECT rl_reset($1::text, $2::text) AS was',
    reset_keys: 'SELECT rl_reset_keys($1::text)',
    // The third value is in milliseconds; 0: without an end.
    block: `
        SELECT rl_block($1::text, $2::text, CASE WHEN $3::float8 > 0 THEN $3::float8 * interval '1 millisecond' END,
            CASE WHEN $3::float8 > 0 THEN NULL ELSE timestamptz 'infinity' END)`,
    unblock: 'SELECT rl_unblock($1::text, $2::text) AS was',
};

export type Statement = keyof typeof SQL;
const GIVES_BACK: Statement[] = ['reset', 'reset_keys', 'give_back', 'unblock'];

const warn = ({ message }: Error) => console.warn(`postgres-rate-limit: a request passes unchecked: ${message}`);

export class Database {
    readonly kind: string;
    readonly name: string;
    readonly store: 'table' | 'memory';
    #pool: any;
    #timeout: number;
    #prepare: boolean;
    #open: boolean;
    #onUnchecked: (error: Error) => void;
    #denials: Denials | undefined;

    constructor(kind: string, options: RateLimitStoreOptions) {
        const { pool, name, store = 'table', timeout = 5000, prepare = false, onError } = options ?? {};
        const { onUnchecked = warn } = options ?? {};
        if (typeof pool?.query !== 'function') {
            throw new TypeError(`${kind}: pool must be a Pool of pg`);
        }
        if (typeof name !== 'string' || name === '') {
            throw new TypeError(`${kind}: name must be the name of the limit, such as "api"`);
        }
        if (store !== 'table' && store !== 'memory') {
            throw new TypeError(`${kind}: store is ${store}; allowed: "table", "memory"`);
        }
        checkedFailing(`${kind}: `, { onError, timeout });
        if (typeof prepare !== 'boolean') {
            throw new TypeError(`${kind}: prepare is ${prepare}; allowed: true, false`);
        }
        if (typeof onUnchecked !== 'function') {
            throw new TypeError(`${kind}: onUnchecked is ${typeof onUnchecked}; allowed: a function`);
        }
        this.kind = kind;
        this.name = name;
        this.store = store;
        this.#pool = pool;
        this.#timeout = timeout;
        this.#prepare = prepare;
        this.#open = onError === 'open';
        this.#onUnchecked = onUnchecked;
        this.#denials = Denials.of(`${kind}: `, options.rememberDenials, 1);
    }

    /** The row of a statement, within the time-out. A statement that gives tokens back forgets denials. */
    async row(statement: Statement, values: string[]): Promise<any> {
        const run = () => this.#run(statement, values);
        if (!this.#denials || !GIVES_BACK.includes(statement)) return run();
        return this.#denials.forgetting(statement === 'reset_keys' ? undefined : idOf(values[0], values[1]), run);
    }
    async #run(statement: Statement, values: string[]): Promise<any> {
        const name = this.#prepare ? `ratelimit_store_${statement}` : undefined;
        const config = { text: SQL[statement], values, name };
        const result = isPool(this.#pool)
            ? await pooled(this.#pool, config, this.#timeout)
            : await this.#pool.query({ ...config, query_timeout: this.#timeout });
        return result.rows[0];
    }

    /** The same; undefined if it fails open. */
    async rowIfNow(statement: Statement, values: string[]): Promise<any> {
        try {
            return await this.row(statement, values);
        } catch (error: any) {
            if (!this.#open || !isNotNow(error) || inTransaction(this.#pool)) throw error;
            if (statement === 'take') quietly(() => this.#onUnchecked(error));
            return undefined;
        }
    }

    /** The row of a take, possibly a remembered denial; undefined if it fails open. */
    async take(name: string, key: string, config: string, count = 1): Promise<any> {
        const denials = inTransaction(this.#pool) ? undefined : this.#denials;
        const asked = new Question(idOf(name, key), config, count);
        const known = denials?.known(asked);
        if (known) return known[0];
        let row = await this.rowIfNow('take', [name, key, config, String(count)]);
        if (row && !row.ok) {
            const { rate, overage, ...rest } = JSON.parse(config);
            // Tokens that a window took beyond the limit, by a config that counts all, end with the window.
            if (!overage && Number(row.hits) > rate) {
                row = await this.#takeIfLess(rate, count, name, key, JSON.stringify({ rate, overage: true, ...rest }));
            }
        }
        if (row) denials?.learn(asked, [row]);
        return row;
    }
    /** Takes if less than the limit is used; otherwise returns the row of a denial, until the window ends. */
    async #takeIfLess(limit: number, count: number, name: string, key: string, config: string): Promise<any> {
        const seen = await this.rowIfNow('look', [name, key, config]);
        if (!seen?.ok) return seen;
        if (Number(seen.hits) + count > limit) return { ...seen, ok: false };
        const row = await this.rowIfNow('take', [name, key, config, String(count)]);
        return row && { ...row, ok: row.ok && Number(row.hits) <= limit };
    }
}
