// The times when windows begin, as in crates/core/src/kinds/fixed_window.rs and calendar.rs, in microseconds. Windows
// of local dates use the time zones of the browser.

/** Numbered windows. One of those with a fixed length begins at a phase. */
export interface Windows {
    /** The window that contains a time. */
    of(at: number, phase: number): number;
    /** The time when a window begins; infinite: it never does. */
    begins(window: number, phase: number): number;
}

const DAY = 86_400_000;
/** After it no window begins. */
const END = Date.UTC(10_000, 0, 1);
const UNITS = ['year', 'month', 'day', 'hour', 'minute', 'second'] as const;

/** Throws a RangeError for a zone that the browser does not know. */
export function calendarOf(timeZone: string, period: string, start?: string): Windows {
    const numeric = Object.fromEntries(UNITS.map((unit) => [unit, 'numeric']));
    const format = new Intl.DateTimeFormat('en', { ...numeric, timeZone, hourCycle: 'h23' });
    const [count, unit] = period.split(' ');
    const every = Number(count);
    const inMonths = unit.startsWith('month');
    const [year, month, day] = (start ?? (inMonths ? '1970-01-01' : '1970-01-05')).split('-').map(Number);

    /** The local time at an instant, as if it were UTC. */
    const shown = (at: number) => {
        const parts = format.formatToParts(at);
        const [year, month, ...rest] = UNITS.map((unit) => Number(parts.find(({ type }) => type === unit)!.value));
        return Date.UTC(year, month - 1, ...rest);
    };
    /** Midnight of the date on which a window begins: of a month's last day if the month does not have the day. */
    const midnight = (window: number) => {
        if (!inMonths) return Date.UTC(year, month - 1, day + window * every);
        const last = new Date(Date.UTC(year, month + window * every, 0));
        return last.setUTCDate(Math.min(day, last.getUTCDate()));
    };
    /** The first instant at which the clocks show that time, or a later one if they skip it. */
    const begins = (window: number) => {
        const local = midnight(window);
        if (!(local < END)) return Infinity;
        const times = [local - DAY, local + DAY].map((at) => local - shown(at) + at);
        let early = Math.min(...times);
        let late = Math.max(...times);
        if (shown(early) === local) return early * 1000;
        while (late - early > 1) {
            const middle = Math.floor((early + late) / 2);
            if (shown(middle) < local) early = middle;
            else late = middle;
        }
        return late * 1000;
    };
    /** The last window that begins at or before a time: an estimate, corrected. */
    const of = (at: number) => {
        let window = Math.floor((at / 1000 - midnight(0)) / DAY / (inMonths ? 30.4 : 1) / every);
        while (begins(window) > at) window -= 1;
        while (begins(window + 1) <= at) window += 1;
        return window;
    };

    return { of, begins };
}
