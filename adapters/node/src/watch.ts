// A store of a limit's status, for any framework: asks the application for the value, computes the status from it, and
// asks again when a denial ends.
import { calculate, type Status, type Value } from './calculate';

export interface WatchOptions {
    /** The number of tokens for `status`. Default: 1. */
    count?: number | undefined;
    /** `true`: many browsers share the key. Each asks again at a random time, up to a tenth of the wait later. */
    shared?: boolean | undefined;
}

export interface Snapshot {
    /** The limit's status; undefined until the first value has come. */
    status: Status | undefined;
    /** The status at a time, for a count. Default: now, 1. Times are by this browser's clock, as in `status`. */
    check(at?: number, count?: number): Status | undefined;
    /** Milliseconds by which the database's clock is ahead of this browser's. */
    offset: number | undefined;
    /** The error of the latest request for the value. `status` is then from the value before. */
    error: unknown;
}

/** A store in the form that frameworks use. */
export interface RateLimitWatch {
    /** Calls the listener when the snapshot has changed. Returns a function that ends that. */
    subscribe(listener: () => void): () => void;
    /** The same object until something changes. */
    getSnapshot(): Snapshot;
    /** Asks for the value: after a call that took tokens. Does not reject: see `error`. */
    refresh(): Promise<void>;
}

/** The minimum time between two attempts that the watch makes on its own. */
const PAUSE = 1000;
/** The maximum, after several failures. */
const LONGEST_PAUSE = 60_000;
const LONGEST_DELAY = 2 ** 31 - 1;

/**
 * Watches a limit. `getValue` is the application's: a fetch of its own route. While there is a listener, it is called
 * at once, when a denial ends, and when the page is shown again.
 */
export function watchRateLimit(
    getValue: () => Promise<Value>,
    { count = 1, shared = false }: WatchOptions = {},
): RateLimitWatch {
    const page = (globalThis as any).document;
    const listeners = new Set<() => void>();
    let snapshot: Snapshot = { status: undefined, check: () => undefined, offset: undefined, error: undefined };
    let timer: ReturnType<typeof setTimeout> | undefined;
    /** The time when the status changes without an answer, and the time to ask again. */
    let [endsAt, askAt] = [Infinity, Infinity];
    /** The latest attempt, whether it is running, and the number of failures since a value came. */
    let [latest, isAsking, failures] = [0, false, 0];

    function show(changes: Partial<Snapshot>) {
        snapshot = { ...snapshot, ...changes };
        for (const listener of listeners) {
            try {
                listener();
            } catch (error) {
                ((globalThis as any).reportError ?? console.error)(error);
            }
        }
    }

    function schedule() {
        clearTimeout(timer);
        if (listeners.size > 0)
            timer = setTimeout(tick, Math.min(endsAt - Date.now(), askAt - Date.now(), LONGEST_DELAY));
    }
    function tick() {
        const now = Date.now();
        if (now >= endsAt) {
            endsAt = Infinity;
            show({ status: snapshot.check(now) });
        }
        if (now >= askAt) refresh();
        else schedule();
    }

    /** Stores a value that has just come, after an attempt that began then. */
    function accept(value: Value, began: number) {
        const now = Date.now();
        // The database's clock showed value.now a moment ago. So no retryAt is too early.
        const offset = value.now - now;
        const check = (at = Date.now(), asked = count): Status => {
            const status = calculate(value, at + offset, asked);
            const { remaining } = calculate(value, at + offset, 0);
            const retryAt = status.retryAt === null ? null : Math.ceil(status.retryAt - offset);
            return { ...status, retryAt, remaining };
        };
        const status = check(now);
        [failures, askAt, endsAt] = [0, Infinity, Infinity];
        if (status.retryAt !== null) {
            if (shared) status.retryAt += Math.ceil((Math.random() * (status.retryAt - now)) / 10);
            endsAt = status.retryAt;
            askAt = Math.max(endsAt, began + PAUSE);
        }
        show({ status, check, offset, error: undefined });
    }

    async function refresh() {
        const attempt = (latest += 1);
        const began = Date.now();
        [isAsking, askAt] = [true, Infinity];
        // An answer is not used if another attempt has begun since, which has newer data.
        try {
            const value = await getValue();
            if (attempt !== latest) return;
            if (!value?.config?.kind || !value.now) throw new TypeError('this is no value of rl_value');
            isAsking = false; // a listener may ask again
            accept(value, began);
        } catch (error) {
            if (attempt !== latest) return;
            isAsking = false;
            failures += 1;
            askAt = Date.now() + Math.min(PAUSE * 2 ** failures, LONGEST_PAUSE);
            show({ error });
        }
        schedule();
    }

    function shown() {
        if (page.visibilityState === 'visible') refresh();
    }

    return {
        subscribe(listener) {
            const own = () => listener();
            listeners.add(own);
            if (listeners.size === 1) {
                page?.addEventListener('visibilitychange', shown);
                if (!isAsking) refresh();
            }
            return () => {
                listeners.delete(own);
                if (listeners.size > 0) return;
                page?.removeEventListener('visibilitychange', shown);
                clearTimeout(timer);
            };
        },
        getSnapshot: () => snapshot,
        refresh,
    };
}
