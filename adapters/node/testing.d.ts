import type { Pool, PoolConfig } from 'pg';
import type { TestAPI } from 'vitest';

/** The limiter's clock: 2027-01-01 12:00:00 UTC when a test begins. */
export interface Clock {
    readonly now: Date;
    /** Sets it: a Date, milliseconds since 1970, or text of a Date. Throws a RangeError where that is no time. */
    set(time: Date | number | string): Promise<void>;
    advance(milliseconds: number): Promise<void>;
}

export interface Fixtures {
    /** The test's connection, for the application to use: a Pool of pg with one client. */
    pool: Pool;
    /** The clock of the test's limits. */
    clock: Clock;
}

export interface TestOptions {
    /** The database, for pg. Default: that of PGHOST, PGUSER, PGDATABASE and the others. */
    connection?: PoolConfig;
    /** Names of limits in memory that aren't defined, since calls bring their config: they are reset, too. */
    names?: string[];
}

/** Vitest's test with the fixtures pool and clock. */
export declare function ratelimitTest(options?: TestOptions): TestAPI<Fixtures>;
export declare const test: TestAPI<Fixtures>;
