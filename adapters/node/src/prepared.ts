// Prepared statements: their names, and the pools that go without, since what is between them and the server, or a
// change of what it has, refuses them.
import { createHash } from 'node:crypto';

const NAMES = new Map<string, string>();

/** The name of a statement, of its text, which has its types: behind a pooler no program runs another's. */
function nameOf(text: string): string {
    let name = NAMES.get(text);
    if (name === undefined)
        NAMES.set(text, (name = `rl_${createHash('sha256').update(text).digest('hex').slice(0, 16)}`));
    return name;
}

/**
 * Whether a statement was refused before it ran: its name is unknown (26000), taken (42P05), or has other columns now.
 * An 0A000 of the limiter itself has the name of another routine; that of a pooler has none.
 */
const isRefusal = ({ code, routine }: any): boolean =>
    code === '26000' || code === '42P05' || (code === '0A000' && (routine ?? REVALIDATES) === REVALIDATES);
const REVALIDATES = 'RevalidateCachedQuery';

/** By the monotonic clock, in milliseconds: the last refusals, and the time from which on statements are prepared. */
interface Refusals {
    last: number[];
    until: number;
    warned: boolean;
}
const POOLS = new WeakMap<object, Refusals>();
const [MOST, WITHIN, PAUSE] = [3, 60_000, 600_000];

/**
 * Runs a statement by its name; if it is refused, again without, which takes another connection. RUN gets the name, and
 * the milliseconds that are left of a time-out.
 */
export async function prepared<T>(
    pool: object,
    text: string,
    timeout: number | undefined,
    run: (name: string | undefined, timeout: number | undefined) => Promise<T>,
): Promise<T> {
    const began = performance.now();
    const refusals = POOLS.get(pool);
    if (refusals && began < refusals.until) return run(undefined, timeout);
    try {
        return await run(nameOf(text), timeout);
    } catch (error) {
        if (!isRefusal(error)) throw error;
        const now = performance.now();
        refused(pool, now, error);
        return run(undefined, timeout && Math.max(timeout - (now - began), 1));
    }
}

function refused(pool: object, now: number, error: any): void {
    const refusals = POOLS.get(pool) ?? { last: [], until: -Infinity, warned: false };
    POOLS.set(pool, refusals);
    refusals.last = [...refusals.last.slice(1 - MOST), now];
    if (refusals.last.length < MOST || now - refusals.last[0] > WITHIN) return;
    refusals.until = now + PAUSE;
    if (refusals.warned) return;
    refusals.warned = true;
    console.warn(
        `postgres-rate-limit: statements go unprepared for ten minutes, since they were refused (${error.message}). \
Behind PgBouncer set max_prepared_statements, or pass prepare: false`,
    );
}
