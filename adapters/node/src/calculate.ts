// Computes the limiter's answers from the result of rl_value: the formulas of crates/core/src/kinds, in whole
// microseconds.
import { calendarOf, type Windows } from './calendar';

/** The result of rl_value, and of getValue of the client. */
export interface Value {
    config: Record<string, any>;
    /** null: full. */
    state: { value: number; ts: number; [field: string]: any } | null;
    /** Epoch milliseconds, by the database's clock. */
    now: number;
    blockedUntil: number | null;
}

/** The answer to a call. Times are numbers, epoch milliseconds. */
export interface Status {
    /** Whether the call is admitted. */
    ok: boolean;
    /** The time from which the same call can pass. null: it is admitted, or never can pass. */
    retryAt: number | null;
    /** Tokens left: for calculate after the call, for a watch before it. Negative: a debt. null: the key is exempt. */
    remaining: number | null;
    /** The reason of the denial; null: none. If `ok` is true, only a dry run admits the call. */
    limitedBy: 'block' | 'slots' | 'tokens' | null;
}

/** The time when the call passes, in microseconds, and the tokens left. 0: now; infinite: never. */
type Answer = [passesAt: number, remaining: number];

const HOUR = 3_600_000_000;
const TEN_YEARS = 315_576_000_000_000;
/** The latest time of an answer, in milliseconds: 9999-12-30. */
const LATEST = 253_402_128_000_000;
/** The span in microseconds beyond which nothing is computed: half of the largest. */
const LONGEST = 2 ** 62;

const micros = (milliseconds: number) => Math.trunc(milliseconds) * 1000 + Math.round((milliseconds % 1) * 1000);
const millis = (microseconds: number) => Math.trunc(microseconds / 1000) + (microseconds % 1000) / 1000;
const tolerance = (capacity: number) => 1e-9 * Math.max(capacity, 1);

/** Rounds a number that differs from a whole one only by float error. */
function rounded(tokens: number, capacity: number): number {
    const whole = Math.round(tokens);
    const near = Math.abs(tokens - whole) <= Math.min(tolerance(capacity), 1e-6);
    return near && whole <= capacity ? whole + 0 : tokens;
}

/** A count too small to change the float takes its last bit. */
function subtract(available: number, count: number): number {
    const left = available - count;
    return left === available && count > 0 ? available - Math.abs(available) * 2 ** -53 : left;
}

function windowsOf({ period, timezone, start }: Value['config']): Windows {
    if (timezone) return calendarOf(timezone, period, start);
    const length = micros(period);
    return {
        of: (at, phase) => Math.floor((at - phase) / length),
        begins: (window, phase) => (window * length < LONGEST ? phase + window * length : Infinity),
    };
}

/** A token bucket, or a fixed window: tokens that come back up to a capacity. */
function refill(config: Value['config'], state: Value['state'], now: number, count: number): Answer {
    const { rate, capacity = rate, overage = false } = config;
    const slack = tolerance(capacity);
    const windows = config.kind === 'fixed window' ? windowsOf(config) : undefined;
    const period = micros(config.period);

    /** The number of windows that have begun after ts and by a time, and the start of the last of them. */
    const turned = (ts: number, at: number): [windows: number, begun: number] => {
        const window = windows!.of(at, ts);
        const turns = window - windows!.of(ts, ts);
        return turns > 0 ? [turns, windows!.begins(window, ts)] : [0, ts];
    };
    /** The start of the window that begins this number of windows after ts. */
    const after = (ts: number, turns: number) =>
        turns < 1 ? ts : windows!.begins(windows!.of(ts, ts) + turns, ts);
    /** The time when tokens have come in, counted from ts. */
    const due = (ts: number, tokens: number) => {
        if (windows) return after(ts, Math.ceil((tokens - slack / 2) / rate));
        const span = Math.ceil((Math.max(tokens, 0) * period) / rate);
        return span < LONGEST ? ts + span : Infinity;
    };
    /** A debt is at most the tokens of ten years. */
    const bounded = (value: number, ts: number) => {
        if (value >= 0 || overage) return value;
        let most = (TEN_YEARS * rate) / period;
        if (windows) {
            const [turns] = turned(ts, after(ts, 1) - 1 + TEN_YEARS);
            most = (turns * rate + slack / 2) * (1 - 4 * Number.EPSILON);
        }
        return Math.max(value, -Math.max(most, slack));
    };
    const initial = (ts: number) => {
        if (!windows || config.start === 'first request') return now;
        const phase = config.start === undefined ? ts : micros(config.start);
        return windows.begins(windows.of(now, phase), phase);
    };

    /** The tokens at ts, and those left when its window ends, a different number if the config has changed since. */
    let [value, rest, ts] = [capacity, capacity, initial(now)];
    if (state) {
        const stored = micros(state.ts);
        const more = windows && state.added !== undefined ? Math.min(rate, capacity) - state.added : 0;
        const known = more < -Math.max(state.value, 0) ? Math.min(state.value, 0) : state.value + more;
        const here = bounded(known, stored);
        const rolled = overage ? Math.max(state.value, 0) : bounded(state.value, stored);
        const missing = capacity - Math.min(overage ? Math.max(here, 0) : here, rolled);
        // A state further ahead comes from a wrong clock.
        if (stored <= now + HOUR || stored <= due(now, Math.max(missing, capacity, windows ? rate : 0)))
            [value, rest, ts] = [here, rolled, stored];
        else ts = initial(stored);
    }
    const at = (time: number): [ts: number, tokens: number] => {
        if (!windows) return [Math.max(ts, time), Math.min(value + (Math.max(time - ts, 0) * rate) / period, capacity)];
        const [turns, begun] = turned(ts, time);
        return [begun, Math.min((turns > 0 ? rest : value) + turns * rate, capacity)];
    };
    const passes = (tokens: number) => overage || count - tokens <= slack;

    const [since, tokens] = at(now);
    if (passes(tokens)) return [0, rounded(subtract(tokens, count), capacity)];
    // Until then, a different number of tokens is left.
    const from = since === ts && value !== rest ? Math.max(after(ts, 1), now) : now;
    const [begun, left] = at(from);
    const first = count > capacity + slack ? Infinity : passes(left) ? from : due(begun, count - left);
    return [Math.max(first, from), rounded(tokens, capacity)];
}

/** Two counters, aligned to the epoch; the earlier one fades. */
function slidingWindow(config: Value['config'], state: Value['state'], now: number, count: number): Answer {
    const { rate } = config;
    const period = micros(config.period);
    const most = rate + tolerance(rate);
    const floor = (time: number) => Math.floor(time / period) * period;
    let [value, prior, ts] = state ? [state.value, state.prior, micros(state.ts)] : [0, 0, 0];
    // A state further ahead comes from a wrong clock.
    if (ts > now + Math.max(HOUR, 2 * period)) value = prior = ts = 0;
    ts = floor(ts);
    /** The fading and the constant part, in the window that begins then. */
    const at = (time: number): [fades: number, stays: number, begun: number] => {
        const begun = floor(time);
        if (begun <= ts) return [prior, value, ts];
        return [begun === ts + period ? value : 0, 0, begun];
    };
    const used = (time: number, more = 0) => {
        const [fades, stays, begun] = at(time);
        return fades * Math.max(1 - Math.max(time - begun, 0) / period, 0) + (stays + more);
    };
    const left = (count: number) => rounded(Math.max(rate - used(now, count), 0), rate);
    const passes = (time: number) => used(time) + count <= most;
    if (count === 0 || passes(now)) return [0, left(count)];

    let [fades, stays, begun] = at(now);
    if (stays + count > most || fades <= 0) [fades, stays, begun] = [stays, 0, begun + period];
    const share = Math.min(Math.max(1 - (rate - stays - count) / fades, 0), 1);
    const first = count > most ? Infinity : begun + Math.ceil(share * period);
    return [Math.max(first, now), left(0)];
}

/** Taken tokens or slots, each until a time; sorted. */
function places(most: number, until: number[], now: number, count: number): Answer {
    const taken = until.filter((end) => end > now);
    const left = most - taken.length;
    if (count === 0 || count <= left) return [0, Math.max(left - count, 0)];
    return [count > most ? Infinity : (taken[count - left - 1] ?? Infinity), Math.max(left, 0)];
}

function slidingLog(config: Value['config'], state: Value['state'], now: number, count: number): Answer {
    const period = micros(config.period);
    const until: number[] = (state?.log ?? []).map((taken: number) => micros(taken) + period);
    const newest = (until.at(-1) ?? 0) - period;
    // A state further ahead comes from a wrong clock.
    if (newest > now + Math.max(HOUR, period)) return places(config.rate, [], now, count);
    // A clock behind the newest entry stands still until it has caught up.
    return places(config.rate, until, Math.max(newest, now), count);
}

function concurrency(config: Value['config'], state: Value['state'], now: number, count: number): Answer {
    const leases: [id: number, expires: number][] = state?.leases ?? [];
    const ends = leases.map(([, expires]) => micros(expires)).sort((one, other) => one - other);
    return places(config.slots, ends, now, count);
}

const KINDS: Record<string, typeof refill> = {
    'token bucket': refill,
    'fixed window': refill,
    'sliding window': slidingWindow,
    'sliding log': slidingLog,
    concurrency,
};

/**
 * The answer of rl_check at a time, in epoch milliseconds by the database's clock, including blocks and dry runs. An
 * unknown kind admits: the server decides. Throws a RangeError for an invalid count, and an unknown time zone.
 */
export function calculate(value: Value, at: number = value.now, count = 1): Status {
    if (!(count >= 0)) throw new RangeError(`count is ${count}`);
    const { config, state, blockedUntil } = value;
    if (blockedUntil !== null && blockedUntil > at) {
        const open = { ...value, blockedUntil: null };
        const then = calculate(open, blockedUntil, count);
        const retryAt = blockedUntil < LATEST ? (then.ok ? blockedUntil : then.retryAt) : null;
        return { ...calculate(open, at, 0), ok: false, retryAt, limitedBy: 'block' };
    }
    const kind = KINDS[config.kind];
    if (!kind) return { ok: true, retryAt: null, remaining: null, limitedBy: null };
    const [passesAt, remaining] = kind(config, state, micros(at), count);
    const limitedBy = passesAt === 0 ? null : kind === concurrency ? 'slots' : 'tokens';
    const ok = !limitedBy || config.enforce === false;
    const retryAt = ok || passesAt === Infinity ? null : Math.min(millis(passesAt), LATEST);
    return { ok, retryAt, remaining, limitedBy };
}
