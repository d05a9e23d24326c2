// The types for browsers: what must compile, and after @ts-expect-error what must not.
import { RateLimiter, type LimitedBy, type Value as OfServer } from 'postgres-rate-limit';
import {
    calculate,
    watchRateLimit,
    type RateLimitWatch,
    type Snapshot,
    type Status,
    type Value,
    type WatchOptions,
} from 'postgres-rate-limit/browser';
import { useCountdown, useRateLimit, watchRateLimit as again } from 'postgres-rate-limit/react';

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const is = <A, B>(_: Equal<A, B>) => {};

declare const value: Value;
is<Value, OfServer>(true);
is<typeof watchRateLimit, typeof again>(true);

export function calculated() {
    const { ok, retryAt, remaining, limitedBy } = calculate(value, Date.now(), 2);
    is<typeof ok, boolean>(true);
    is<typeof retryAt, number | null>(true);
    is<typeof remaining, number | null>(true);
    is<typeof limitedBy, LimitedBy | null>(true);
    is<ReturnType<typeof calculate>, Status>(true);
    calculate(value);
    // @ts-expect-error: a number
    calculate(value, new Date());
    // @ts-expect-error
    calculate(value, 0, '1');
    // @ts-expect-error: a config alone is no value
    calculate(value.config);
    // @ts-expect-error
    calculate({ config: {}, state: null, now: 0 });
}

export function watched() {
    const watch: RateLimitWatch = watchRateLimit(async () => value, { count: 2, shared: true });
    // What a limiter returns, as a test of an application passes it.
    watchRateLimit(() => new RateLimiter({}).getValue('a', { config: { kind: 'unlimited' } }));
    const end: () => void = watch.subscribe(() => {});
    end();
    const { status, check, offset, error }: Snapshot = watch.getSnapshot();
    is<typeof status, Status | undefined>(true);
    is<ReturnType<typeof check>, Status | undefined>(true);
    is<typeof offset, number | undefined>(true);
    is<typeof error, unknown>(true);
    check(Date.now(), 3);
    is<ReturnType<typeof watch.refresh>, Promise<void>>(true);
    // @ts-expect-error: before the first value there is none
    status.ok;
    // @ts-expect-error: the value, not its text
    watchRateLimit(async () => '{}');
    // @ts-expect-error: a route is fetched by the application
    watchRateLimit('/limits/sendMessage');
    // @ts-expect-error
    watchRateLimit(async () => value, { counts: 2 });
}

export function Rendered(options: WatchOptions) {
    const { status, check, refresh } = useRateLimit(async () => value, options);
    is<ReturnType<typeof check>, Status | undefined>(true);
    is<ReturnType<typeof refresh>, Promise<void>>(true);
    const seconds = useCountdown(status?.retryAt);
    is<typeof seconds, number>(true);
    useRateLimit(watchRateLimit(async () => value));
    useCountdown(null);
    // @ts-expect-error
    useRateLimit(value);
    // @ts-expect-error
    useRateLimit();
    // @ts-expect-error
    useCountdown(new Date());
}
