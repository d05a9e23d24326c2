/** What a Pool or a Client of pg offers. */
export interface Queryable {
    query(config: { text: string; values?: any[]; name?: string }): Promise<{ rows: any[] }>;
}

export interface RateLimitStoreOptions {
    /** The connections to the database that has the extension ratelimit. */
    pool: Queryable;
    /** The limit's name; all processes that use it count together. */
    name: string;
    /** "memory": in the server's shared memory, lost when it restarts. Default: "table". */
    store?: 'table' | 'memory';
    /** The milliseconds after which a call ends with an error: to get a connection, and the answer. Default: 5000. */
    timeout?: number;
    /** Prepares the statements, which is faster; not for PgBouncer with max_prepared_statements = 0. Default: false. */
    prepare?: boolean;
}

export interface Hits {
    /** Requests in this window. Beyond the limit: all of them, or the limit and one, if only allowed ones are counted. */
    totalHits: number;
    /** When the window ends, or a key that is blocked may call again, by the clock of this process. */
    resetTime: Date;
}

/** A store for express-rate-limit and hono-rate-limiter. */
export declare class RateLimitStore {
    constructor(options: RateLimitStoreOptions);
    readonly localKeys: false;
    readonly prefix: string;
    /** Called by the middleware, with its options. */
    init(options: any): void;
    get(key: string): Promise<Hits | undefined>;
    increment(key: string): Promise<Hits>;
    decrement(key: string): Promise<void>;
    resetKey(key: string): Promise<void>;
    resetAll(): Promise<void>;
}

/** A storage for @nestjs/throttler. */
export declare class RateLimitThrottlerStorage {
    constructor(options: RateLimitStoreOptions);
    /** Throws a TypeError where blockDuration is not ttl. */
    increment(
        key: string,
        ttl: number,
        limit: number,
        blockDuration: number,
        throttler: string,
    ): Promise<{ totalHits: number; timeToExpire: number; isBlocked: boolean; timeToBlockExpire: number }>;
}

export interface InstallOptions {
    /** The schema that is to hold the functions. Default: "ratelimit". */
    schema?: string;
}

/** The SQL that installs the functions of the extension, for a database that can't have it: for a migration. */
export declare function installSql(options?: InstallOptions): string;

/** Runs it: on a Pool or a Client of pg, in its transaction if it is in one, on a PGlite or a Knex. */
export declare function install(
    database: { query(text: string): Promise<any> } | { exec(text: string): Promise<any> } | { raw(text: string): any },
    options?: InstallOptions,
): Promise<void>;
