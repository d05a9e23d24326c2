// Hooks of React on a limit watched by the browser; and everything of browser.ts.
import { useCallback, useEffect, useMemo, useRef, useSyncExternalStore } from 'react';

import type { Value } from './calculate';
import { watchRateLimit, type RateLimitWatch, type Snapshot, type WatchOptions } from './watch';

export * from './browser';

/**
 * A limit as the browser knows it. Renders again when it changes. `source` is a function that gets the value (the
 * latest one is called), or the result of watchRateLimit, for components that share it; that has its own options.
 */
export function useRateLimit(source: (() => Promise<Value>) | RateLimitWatch, options?: WatchOptions) {
    const { count, shared } = options ?? {};
    const latest = useRef(source);
    useEffect(() => {
        latest.current = source;
    });
    const own = useMemo(
        () => watchRateLimit(() => (latest.current as () => Promise<Value>)(), { count, shared }),
        [count, shared],
    );
    const { subscribe, getSnapshot, refresh } = typeof source === 'function' ? own : source;
    const snapshot: Snapshot = useSyncExternalStore(subscribe, getSnapshot, getSnapshot);
    return { ...snapshot, refresh };
}

/**
 * Whole seconds until a time by this browser's clock; renders again with each. 0: the time has come, or there is none;
 * also on a server, which has another clock, and until the page is hydrated.
 */
export function useCountdown(until: number | null | undefined): number {
    const left = useCallback(() => Math.max((until ?? 0) - Date.now(), 0), [until]);
    const seconds = () => Math.ceil(left() / 1000);
    const subscribe = useCallback(
        (listener: () => void) => {
            let timer: ReturnType<typeof setTimeout> | undefined;
            const next = () => {
                listener();
                if (left() > 0) timer = setTimeout(next, left() % 1000 || 1000);
            };
            next();
            return () => clearTimeout(timer);
        },
        [left],
    );
    return useSyncExternalStore(subscribe, seconds, () => 0);
}
