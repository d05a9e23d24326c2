// A process that spends borrowed tokens as fast as it gets them: argv[2] says of which limit, as JSON. Its clock is wrong,
// and steps. It writes a line for each spend: the real time before and after it, and the count.
import { openSync, writeSync } from 'node:fs';
import { setImmediate as others, setTimeout as sleep } from 'node:timers/promises';

import pg from 'pg';

import { RateLimiter } from 'postgres-rate-limit';
import { application } from '../application.js';

const { app, config, key, options, ahead, counts, file } = JSON.parse(process.argv[2]);
const pool = new pg.Pool({ ...app, max: 2 });
const local = new RateLimiter({ limit: config }, { db: pool }).borrow('limit', options);
const log = openSync(file, 'a');
const now = () => Date.now() - application.ahead;
application.ahead = ahead;

/** Spends without a call of the database while it can; with one, if it may ask. */
async function spend(count, asks) {
    const before = now();
    const ok = local.take({ key, count }) || (asks && (await local.limit({ key, count })).ok);
    if (ok) writeSync(log, `${before} ${now()} ${count}\n`);
    return ok;
}

let stopped = false;
const commands = {
    async storm() {
        for (let n = 0; !stopped; n++) {
            const count = 1 + Math.floor(Math.random() * counts);
            if (!(await spend(count, true))) await sleep(1);
            if (n % 20 === 0) await others();
            if (n % 500 === 0) application.ahead = ahead + Math.floor(Math.random() * 2000) - 1000;
        }
        await local.close();
    },
    async stop() {
        stopped = true;
    },
    /** Borrows until some tokens of a batch are left. */
    async borrow() {
        do await spend(1, true);
        while (!((await spend(1, false)) && (await spend(1, false))));
    },
    /** Spends what it has left. */
    async rest() {
        let spent = 0;
        while (await spend(1, false)) spent++;
        return spent;
    },
    async end() {
        await local.close();
    },
};
process.on('message', async (command) => process.send({ command, answer: await commands[command]() }));
process.send({ command: 'begun' });
