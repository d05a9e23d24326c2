// The statements, in the limiter's schema, and their errors, explained for users of the package.
import type { Answer, Request } from './batch';
import { databaseError } from './errors';
import { fateOf } from './failing';
import { rowsOf, type How } from './query';
import { DECIDED, TOKENS } from './results';

const CONFIG = (n: number) => `config => $${n}::text::jsonb`;
const EXPIRES = `date_part('epoch', expires_at) AS expires`;
const TTL = (n: number) => `ttl => coalesce($${n}::text::interval, '10 minutes')`;
const ON_EXPIRY = (n: number) => `on_expiry => coalesce($${n}::text, 'refund')`;
const MANY = 'n, name, key, ok';
const OF_ONE = `($1::text, $2::text, $3::float8, $4::boolean, ${CONFIG(5)})`;
// The rows with their configs, which rl_headers_all needs for limits that aren't defined.
const ROWS = 'SELECT jsonb_agg(to_jsonb(r) || ($1::text::jsonb -> (n - 1)) ORDER BY n) FROM r';

/** The limiter's clock in epoch milliseconds: set by a test (a time, or such milliseconds), or the server's. */
const CLOCK = "current_setting('ratelimit.clock', true)";
const NOW = `CASE WHEN coalesce(${CLOCK}, '') = '' THEN date_part('epoch', clock_timestamp()) * 1000
    WHEN ${CLOCK} ~ '^[-+.0-9eE]+$' THEN ${CLOCK}::float8 ELSE date_part('epoch', ${CLOCK}::timestamptz) * 1000 END`;
/** With the time, since the application's clock may show another one. */
const TIMED = `${DECIDED}, ${NOW} AS now`;

// $ is the place of the schema. A float8, a boolean or a text has its type for each driver; all else is sent as text.
const SQL = {
    limit: `SELECT ok, ${TIMED} FROM $rl_limit${OF_ONE}`,
    check: `SELECT ok, ${DECIDED} FROM $rl_check${OF_ONE}`,
    // The kind of the key, because an override may have another one, at a time after the take.
    take: `SELECT ok, taken, ${DECIDED}, $rl_value($1::text, $2::text, $4::text::jsonb)::text AS value
        FROM $rl_take($1::text, $2::text, at_least => $3::float8, ${CONFIG(4)}, count => $5::float8)`,
    credit: `SELECT ok, ${DECIDED} FROM $rl_credit($1::text, $2::text, $3::float8, $4::text::timestamptz, ${CONFIG(5)})`,
    reset: 'SELECT $rl_reset($1::text, $2::text) AS ok',
    value: 'SELECT $rl_value($1::text, $2::text, $3::text::jsonb)::text AS value',
    each: `SELECT n, ok, ${TIMED}, error::text AS error
        FROM $rl_limit_each($1::text::jsonb, lock_wait => $2::text::interval)`,
    limitAll: `SELECT ${MANY}, ${DECIDED} FROM $rl_limit_all($1::text::jsonb) ORDER BY n`,
    checkAll: `SELECT ${MANY}, ${DECIDED} FROM $rl_check_all($1::text::jsonb) ORDER BY n`,
    acquire: `SELECT ok, lease, ${EXPIRES}, ${DECIDED} FROM $rl_acquire($1::text, $2::text, $3::float8, ${CONFIG(4)})`,
    extend: `SELECT date_part('epoch', $rl_extend($1::text, $2::text::jsonb)) AS expires`,
    release: 'SELECT $rl_release($1::text, $2::text::jsonb) AS ok',
    hold: `SELECT ok, hold, held, ${EXPIRES}, ${DECIDED} FROM $rl_hold($1::text, $2::text, $3::float8, ${TTL(4)}, id => $5::text,
        at_least => $6::float8, ${ON_EXPIRY(7)}, reserve => $8::boolean, ${CONFIG(9)})`,
    settle: `SELECT ok, ${DECIDED} FROM $rl_settle($1::text, $2::float8)`,
    holdAll: `SELECT ${MANY}, hold, held, ${EXPIRES}, ${DECIDED}
        FROM $rl_hold_all($1::text::jsonb, ${TTL(2)}, id => $3::text, ${ON_EXPIRY(4)}) ORDER BY n`,
    settleAll: `SELECT name, key, ${TOKENS} FROM $rl_settle_all($1::text, $2::text::jsonb)`,
    // In one statement: all of them or none.
    define: `WITH made AS MATERIALIZED (
            SELECT each.key AS name, $rl_define(each.key, each.value) AS changed FROM jsonb_each($1::text::jsonb) AS each)
        SELECT name FROM made WHERE changed`,
    // For the stores. `rest`: the milliseconds left of a window, which may have no hits, if all were given back.
    look: `SELECT ok, ${TIMED}, (value #>> '{state,ts}')::float8 + $4::float8 - (value ->> 'now')::float8 AS rest
        FROM $rl_check($1::text, $2::text, ${CONFIG(3)}), $rl_value($1::text, $2::text, $3::text::jsonb) AS value`,
    resetKeys: 'SELECT $rl_reset_keys($1::text)',
    prune: `SELECT $rl_prune($1::int, $2::float8 * interval '1 millisecond')::float8 AS rows`,
    // Milliseconds; 0: without an end.
    block: `SELECT $rl_block($1::text, $2::text, CASE WHEN $3::float8 > 0 THEN $3::float8 * interval '1 millisecond' END,
        CASE WHEN $3::float8 > 0 THEN NULL ELSE timestamptz 'infinity' END)`,
    unblock: 'SELECT $rl_unblock($1::text, $2::text) AS ok',
};
export type Call = keyof typeof SQL;

const ofOne = (call: string) => `SELECT ok, ${DECIDED},
        $rl_headers($1::text, r, key => $2::text, config => $5::text::jsonb, style => $6::text)::text AS headers
    FROM $rl_${call}${OF_ONE} AS r`;
const ofAll = (call: string) => `WITH r AS MATERIALIZED (SELECT * FROM $rl_${call}($1::text::jsonb))
    SELECT ${MANY}, ${DECIDED}, $rl_headers_all((${ROWS}), $2::text)::text AS headers FROM r ORDER BY n`;
const STYLE = `(string_to_array($3::text, ','))[n]`;
/** Statements with HTTP headers. Their style is the last value. */
const WITH_HEADERS: { [C in Call]?: string } = {
    limit: ofOne('limit'),
    check: ofOne('check'),
    limitAll: ofAll('limit_all'),
    checkAll: ofAll('check_all'),
    // A style for each request, or none. In a SELECT of its own the list is parsed once, not for each row.
    each: `SELECT n, ok, ${TIMED}, error::text AS error,
        CASE WHEN error IS NULL AND ${STYLE} <> '' THEN $rl_headers(name, r, key => key, style => ${STYLE},
            config => (SELECT $1::text::jsonb) -> (n - 1) -> 'config')::text END AS headers
        FROM $rl_limit_each($1::text::jsonb, lock_wait => $2::text::interval) AS r`,
};
const STYLES = ['ietf', 'github'] as const;
export type HeaderStyle = (typeof STYLES)[number];

/**
 * The schema of rl_limit: found by the search_path, or else that of the extension, or by default of the SQL file. And
 * how long calls that go together wait for locked rows: 5 ms, and at most a tenth of deadlock_timeout.
 */
const FIND = `SELECT least(5, extract(epoch FROM pg_catalog.current_setting('deadlock_timeout')::interval) * 100)::text || ' ms' AS wait,
    pg_catalog.current_setting('default_transaction_isolation') = 'serializable' AS serializable, (
    SELECT n.nspname::text
    FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    WHERE p.proname = 'rl_limit' AND (pg_catalog.pg_function_is_visible(p.oid) OR n.nspname = 'ratelimit'
        OR n.oid = (SELECT extnamespace FROM pg_catalog.pg_extension WHERE extname = 'ratelimit'))
    ORDER BY pg_catalog.pg_function_is_visible(p.oid) DESC, n.nspname = 'ratelimit' LIMIT 1) AS name`;
const MISSING = `there are no rate limits in this database. As its owner run CREATE EXTENSION ratelimit; or, where a host does not \
offer the extension, npx postgres-rate-limit install. If they are in a schema of their own, pass it: { db, schema: 'limits' }`;

/** A schema in the form in which SQL writes it before a name. */
export const prefix = (schema: string) => `"${schema.replaceAll('"', '""')}".`;

/** What FIND has found; the place is the schema as of prefix. */
type Found = { place: string; wait: string; serializable: boolean };

/** Runs the statements in a given schema, or in one that it finds, again if an error shows that it has moved. */
export class Calls {
    /** The schema as of prefix, if it is given. */
    readonly #given: string | undefined;
    #found: Found | undefined;
    /** Statements with the prefix, by those without. */
    #texts = new Map<string, string>();

    constructor(schema?: string) {
        if (schema !== undefined) this.#given = prefix(schema);
    }

    /** Runs a statement; with headers if the call has them, in this style, or these: "ietf,,github". */
    async rows(db: any, call: Call, values: unknown[], how?: How, headers?: string): Promise<any[]> {
        const place = this.#given ?? this.#found?.place ?? (await this.#find(db, how)).place;
        const told = headers === undefined ? undefined : WITH_HEADERS[call];
        const sql = told ?? SQL[call];
        const text = this.#texts.get(sql) ?? sql.replaceAll('$rl_', () => `${place}rl_`);
        this.#texts.set(sql, text);
        try {
            return await rowsOf(db, text, told ? [...values, headers] : values, how);
        } catch (error) {
            if (this.#given === undefined && databaseError(error, '42883', '3F000')) {
                this.#found = undefined;
                this.#texts.clear();
            }
            throw explained(error, call);
        }
    }

    /** Makes requests, each on its own. */
    async each(db: any, requests: Request[], how: How): Promise<Answer[]> {
        const { wait } = await this.#find(db, how);
        const answers: Answer[] = [];
        const values = [`[${requests.map(({ request }) => request).join()}]`, wait];
        const styles = requests.map(({ headers }) => headers);
        const told = styles.some(Boolean) ? styles.join() : undefined;
        for (const row of await this.rows(db, 'each', values, how, told)) answers[row.n - 1] = answerOf(row);
        return answers;
    }
    fate(error: unknown) {
        return fateOf(error, this.#found?.serializable ?? false);
    }

    async #find(db: any, how?: How): Promise<Found> {
        if (this.#found) return this.#found;
        const [{ name, ...found }] = await rowsOf(db, FIND, [], { timeout: how?.timeout });
        if (this.#given === undefined && name === null) throw new Error(MISSING);
        return (this.#found = { ...found, place: this.#given ?? prefix(name) });
    }
}

function answerOf(row: any): Answer {
    if (row.error === null) return row;
    const { message, ...error } = JSON.parse(row.error);
    return error.code === '55P03' ? 'locked' : explained(Object.assign(new Error(message), error), 'limit');
}

/** A call of rl_limit with these values as a request of rl_limit_each, and what it counts for. */
export function requestOf([name, key, count, reserve, config]: any[], headers?: HeaderStyle): Request | undefined {
    if (headers !== undefined && !STYLES.includes(headers)) return undefined;
    const isPlain = [name, key].every((text) => typeof text === 'string') && Number.isFinite(count);
    if (!isPlain || typeof reserve !== 'boolean' || (config !== null && typeof config !== 'string')) return undefined;
    const id = `"name":${JSON.stringify(name)},"key":${JSON.stringify(key)}`;
    const rest = `${reserve ? ',"reserve":true' : ''}${config === null ? '' : `,"config":${config}`}`;
    const request = `{${id},"count":${count}${rest}}`;
    return NO_TEXT.test(request) ? undefined : { id, config, request, headers };
}
/** What JSON can write, and no text of PostgreSQL can be: a NUL, half a surrogate. */
const NO_TEXT = /\\u(0000|d[89a-f])/;

/** The error, or one that explains how to solve it with this package. */
function explained<E>(error: E, call: Call): E | Error {
    const { code, message = '' } = databaseError(error, '42883', '3F000', '42501') ?? {};
    const name = /permission denied to override rate limit ("(?:[^"]|"")*")/.exec(message)?.[1];
    let text;
    if (code === '3F000') text = MISSING;
    else if (code === '42883') text = `${message}: ${call} needs a later version of ratelimit in the database`;
    else if (name !== undefined)
        text = `rate limit ${name} is defined in the database, and this role may not override it: call it by its name \
alone, with new RateLimiter(…, { db, defined: true }), which sends no configs`;
    return text === undefined ? error : new Error(text, { cause: error });
}
