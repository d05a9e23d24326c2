// Denials that a process remembers: until one ends, and at most for a set time, calls are answered without the
// database.
import { allow } from './errors';
import { denying } from './results';

/** The number of denials, and the maximum time in milliseconds. Default: 10,000 denials, 1000 ms. */
export interface RememberDenials {
    max?: number | undefined;
    atMost?: number | undefined;
}

/** A call in the form in which it is remembered. */
export interface Question {
    id: string;
    /** The config of the denied calls. Calls with the same count or a larger one are denied. */
    like: string;
    count: number;
    /** The time when it is sent, by the monotonic clock. */
    began: number;
}
interface Denial extends Question {
    /** The milliseconds for which no other answer is possible. */
    lasts: number;
    rows: any[];
}

/** The identity that a call of one limit counts for. For a call of several it is the JSON of their list. */
export const idOf = (name: string, key: string): string => JSON.stringify([name, key]);

export class Denials {
    #max: number;
    #atMost: number;
    #known = new Map<string, Denial>();
    /** By the monotonic clock: when ids were forgotten, the latest at the end; all of the others; any of them. */
    #forgotten = new Map<string, number>();
    #allForgotten = -Infinity;
    #lastForgotten = -Infinity;

    /** Throws a TypeError for an invalid option. */
    constructor(option: true | RememberDenials) {
        const given: RememberDenials = option === true ? {} : Object(option) === option ? option : { max: 0 };
        const { max = 10_000, atMost = 1000 } = given;
        const are = Number.isSafeInteger(max) && max >= 1 && Number.isFinite(atMost) && atMost > 0;
        allow(are, 'rememberDenials', JSON.stringify(option), 'true, false, { max, atMost }, with numbers from 1 on');
        this.#max = max;
        this.#atMost = atMost;
    }

    /** The rows of a denial that applies to this call, with the rest of their waits; undefined: ask the database. */
    known({ id, like, count, began }: Question): any[] | undefined {
        const denial = this.#known.get(id);
        if (!denial || denial.like !== like || !(count >= denial.count)) return undefined;
        this.#known.delete(id);
        const passed = began - denial.began;
        if (passed >= denial.lasts || denial.began <= this.#forgottenAt(id)) return undefined;
        this.#known.set(id, denial); // the last that was used
        return denial.rows.map((row) => this.#left(row, passed));
    }

    #left(row: any, passed: number): any {
        const old = { ...row, passed };
        if (row.limited === null || row.wait === null) return old;
        const wait = row.wait - passed / 1000;
        return wait > 0 ? { ...old, wait } : { ...old, limited: null, wait: null, at: null };
    }

    /** The last time when this id was forgotten. A list may have any key, so it is forgotten with each. */
    #forgottenAt(id: string): number {
        if (id[1] === '{') return this.#lastForgotten;
        return Math.max(this.#allForgotten, this.#forgotten.get(id) ?? -Infinity);
    }

    /** Remembers the rows of a call if they are a denial. A call sent before its id was forgotten is not remembered. */
    learn(question: Question, rows: any[]): void {
        if (rows.length === 0 || rows.every(({ ok }) => ok)) return;
        const waits = denying(rows).map(({ wait }) => wait ?? Infinity);
        const lasts = Math.min(Math.max(...waits) * 1000, this.#atMost);
        this.#known.delete(question.id);
        this.#known.set(question.id, { ...question, lasts, rows });
        if (this.#known.size > this.#max) this.#known.delete(this.#known.keys().next().value!);
    }

    /**
     * Runs a call that gives tokens back to this id, or to all. Forgets before and after: calls meanwhile may be denied
     * by the state before.
     */
    async forgetting<T>(id: string | undefined, run: () => Promise<T>): Promise<T> {
        this.#forget(id);
        try {
            return await run();
        } finally {
            this.#forget(id);
        }
    }

    #forget(id: string | undefined): void {
        this.#lastForgotten = performance.now();
        if (id === undefined) {
            this.#allForgotten = this.#lastForgotten;
            this.#known.clear();
            this.#forgotten.clear();
            return;
        }
        this.#known.delete(id);
        this.#forgotten.delete(id);
        this.#forgotten.set(id, this.#lastForgotten);
        if (this.#forgotten.size <= this.#max) return;
        const [[oldest, at]] = this.#forgotten;
        this.#forgotten.delete(oldest);
        this.#allForgotten = at;
    }
}
