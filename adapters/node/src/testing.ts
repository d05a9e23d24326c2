// Fixtures of Vitest for tests of an application that has its limits in PostgreSQL, in the extension or the SQL file.
//
//     import { test } from 'postgres-rate-limit/testing';
//
// A test gets a pool of one connection. Everything that the application does on it is rolled back after the test,
// including its commits. Its limits see a clock that stands still until the test moves it, and all defined limits are
// full when the test begins, including those in memory. Tests on one database take turns, in whichever worker they run.
//
// The role needs the functions that the application calls, rl_check, rl_reset_keys, SELECT on rl_config, and the right
// to set the clock.
import pg, { type Pool, type PoolConfig } from 'pg';
import { test as base, type TestAPI } from 'vitest';

const START = Date.UTC(2027, 0, 1, 12);
const noRight = (user: unknown) => `the role ${user} may not set the limiter's clock, so no test can run.
With the extension, as a superuser: GRANT SET ON PARAMETER ratelimit.clock TO ${user}
With the SQL file, connect as the owner of its functions, or a member of it.`;
// A command alone, which the application means for its own transaction.
const COMMAND = /^\s*(begin|start\s+transaction|commit|end|rollback|abort)\b(?!.*\b(to|prepared)\b)[^;]*;?\s*$/i;

/** The limiter's clock: 2027-01-01 12:00:00 UTC when a test begins. */
export interface Clock {
    readonly now: Date;
    /** Sets it: a Date, milliseconds since 1970, or text of a Date. Throws a RangeError if it is not a time. */
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
    /** The database, for pg. Default: by PGHOST, PGUSER, PGDATABASE and the others. */
    connection?: PoolConfig | undefined;
    /** Names of limits in memory that aren't defined, because calls pass their config: they are reset, too. */
    names?: string[] | undefined;
}

function clockOf(show: () => Promise<void>): Clock {
    let now = START;
    return {
        get now() {
            return new Date(now);
        },
        async set(time) {
            const milliseconds = new Date(time).getTime();
            if (Number.isNaN(milliseconds)) throw new RangeError(`${time} is no time`);
            now = milliseconds;
            await show();
        },
        async advance(milliseconds) {
            await this.set(now + milliseconds);
        },
    };
}

/** The test's connection: the application's transactions, and its statements outside of one, are savepoints. */
// The types of the base have overloads for each form of call.
class Client extends (pg.Client as any) {
    clock = clockOf(() => this.#next(() => this.#show()));
    #last: Promise<unknown> = Promise.resolve();
    #release: any;
    #begun = false;
    #inTransaction = false; // the application has begun one

    // With an error the pool would close the connection, and so end the test's transaction.
    get release(): any {
        return () => this.#release();
    }
    set release(release: any) {
        this.#release = release;
    }

    query(query: any, values?: any, callback?: any): any {
        // Cursors and streams answer more than once.
        if (typeof query?.submit === 'function') return super.query(query, values, callback);
        if (typeof values === 'function') return this.query(query, undefined, values);
        const answer = this.#next(() => this.#run(query, values));
        if (!callback) return answer;
        answer.then((result: any) => callback(null, result), callback);
    }

    /** The status of the application's transaction: idle without one, inside that of the test. */
    getTransactionStatus(): string {
        return this.#inTransaction ? (super.getTransactionStatus?.() ?? 'T') : 'I'; // pg before 8.21 has none
    }

    /** Runs one at a time, each with its savepoint. */
    #next<T>(run: () => Promise<T>): Promise<T> {
        const done = this.#last.then(run);
        this.#last = done.catch(() => {});
        return done;
    }

    #send(query: any, values?: any): Promise<any> {
        return super.query(query, values);
    }

    async #run(query: any, values: any) {
        if (!this.#begun) throw new Error("the test's connection was closed, which ended its transaction");
        const text = typeof query === 'string' ? query : query.text;
        const command = COMMAND.exec(text)?.[1].toLowerCase();
        if (!command) {
            const result = await (this.#inTransaction ? this.#send(query, values) : this.#alone(query, values));
            if (/^\s*rollback\b/i.test(text)) await this.#show(); // to a savepoint of the application's
            return result;
        }
        const begins = /^[bs]/.test(command);
        if (begins === this.#inTransaction) return this.#send(''); // PostgreSQL only warns
        this.#inTransaction = begins;
        if (begins) return this.#send('SAVEPOINT application');
        if (/^[ra]/.test(command)) return this.#undo();
        try {
            return await this.#send('RELEASE SAVEPOINT application');
        } catch (error: any) {
            if (error.code !== '25P02') throw error;
            return this.#undo(); // COMMIT of what has failed
        }
    }

    async #alone(query: any, values: any) {
        await this.#send('SAVEPOINT application');
        try {
            const result = await this.#send(query, values);
            await this.#send('RELEASE SAVEPOINT application');
            return result;
        } catch (error: any) {
            await this.#undo();
            throw error;
        }
    }

    async #undo() {
        const result = await this.#send('ROLLBACK TO SAVEPOINT application');
        await this.#send('RELEASE SAVEPOINT application');
        await this.#show();
        return result;
    }

    async #show() {
        try {
            await this.#send("SELECT set_config('ratelimit.clock', $1, true)", [String(this.clock.now.getTime())]);
        } catch (error: any) {
            if (error.code !== '25P02') throw error; // after an error the rollback shows it
        }
    }

    /** Begins the test, alone on the database: sets the clock, fills the limits. Throws if the clock can't be set. */
    async begin(names: string[]) {
        await this.#send('BEGIN');
        await this.#send("SELECT pg_advisory_xact_lock(hashtext('ratelimit.clock'))");
        // The time of the call, by a full bucket. Before its first call a session lets any role set anything.
        const full =
            "SELECT reset_at FROM rl_check('ratelimit.clock', config => rl_token_bucket(rate => 1, period => '1 second'))";
        const shown = async () => {
            await this.#show();
            return (await this.#send(`SELECT extract(epoch FROM reset_at) * 1000 AS time FROM (${full}) AS call`)).rows;
        };
        const [{ time }] = await shown().catch((error: any) => {
            const isRefused = error.code === '42501' && error.message.includes('ratelimit.clock');
            throw isRefused ? new Error(noRight(this.user)) : error;
        });
        const [is, was] = [Number(time), START].map((at) => new Date(at).toISOString());
        if (is !== was) throw new Error(`the limiter's clock shows ${is} after it was set to ${was}`);
        const reset =
            'SELECT rl_reset_keys(name) FROM (SELECT name FROM rl_config UNION SELECT unnest($1::text[])) AS names';
        await this.#send(reset, [names]);
        await this.#send('SAVEPOINT test');
        this.#begun = true;
    }

    /** Rolls back the test. Throws if the application has ended the test's transaction. */
    finish() {
        return this.#next(async () => {
            this.#begun = false;
            try {
                await this.#send('ROLLBACK TO SAVEPOINT test');
            } catch (error: any) {
                throw new Error(
                    `the test's transaction was ended, by several statements in one or by the server: its writes may remain (${error.message})`,
                );
            }
        });
    }
}

/** Vitest's test with the fixtures pool and clock. */
export const ratelimitTest = ({ connection = {}, names = [] }: TestOptions = {}): TestAPI<Fixtures> =>
    base.extend<Fixtures>({
        pool: async ({}, use) => {
            const pool: any = new pg.Pool({ ...connection, Client: Client as any, max: 1, idleTimeoutMillis: 0 });
            pool.end = async () => {}; // the application's end isn't the test's
            const client = await pool.connect();
            client.on('error', () => {});
            try {
                await client.begin(names);
                client.release();
                pool.clock = client.clock;
                await use(pool);
                await client.finish();
            } finally {
                await client.end(); // which rolls back
            }
        },
        clock: ({ pool }, use) => use((pool as any).clock),
    });

export const test: TestAPI<Fixtures> = ratelimitTest();
