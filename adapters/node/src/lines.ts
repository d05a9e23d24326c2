// Lines of a process's calls that wait for the same slots: the first of each asks for all.
import { setTimeout as sleep } from 'node:timers/promises';

export class Lines {
    #lines = new WeakMap<object, Map<string, AbortController[]>>();

    /** Runs this when those before it in the line have left, or after this number of milliseconds. */
    async join<T>(
        db: object,
        id: string,
        milliseconds: number,
        signal: AbortSignal | undefined,
        run: () => Promise<T>,
    ): Promise<T> {
        const lines = this.#lines.get(db) ?? new Map<string, AbortController[]>();
        this.#lines.set(db, lines);
        const line = lines.get(id) ?? [];
        lines.set(id, line);
        const own = new AbortController(); // aborted when it is the first
        line.push(own);
        try {
            const either = signal ? AbortSignal.any([own.signal, signal]) : own.signal;
            const waits = line[0] === own ? undefined : pause(milliseconds, either);
            await waits?.catch((error) => {
                if (!own.signal.aborted || signal?.aborted) throw error;
            });
            return await run();
        } finally {
            line.splice(line.indexOf(own), 1);
            line[0]?.abort();
            if (line.length === 0) lines.delete(id);
        }
    }
}

/** Waits, at most as long as a timer can; SIGNAL ends it by an error. */
export const pause = (milliseconds: number, signal: AbortSignal | undefined): Promise<void> =>
    sleep(Math.min(milliseconds, 2 ** 31 - 1), undefined, { signal });
