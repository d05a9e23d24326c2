// docs/queues.md shows parts of this: a worker of graphile-worker, which queues.test.js starts.
import { EventEmitter } from 'node:events';

import { run as work } from 'graphile-worker';

import { run } from './job.js';

// A task that runs when its tenant has a token.
const limited = (task) => async (payload, helpers) => {
    const { id, key } = helpers.job;
    const { rows } = await helpers.query('SELECT start_job($1, $2, $3) AS started', [id, key, JSON.stringify(payload)]);
    if (!rows[0].started) return; // it is queued again
    await task(payload, helpers);
    await helpers.query('SELECT rl_settle($1)', [key]);
};

const events = new EventEmitter();
events.on('worker:getJob:empty', () => process.send({ fetched: 0 }));
events.on('job:start', ({ worker, job }) => process.send({ fetched: 1, lockedBy: job.locked_by }));
await work({
    connectionString: process.env.DATABASE_URL,
    events,
    noHandleSignals: true,
    pollInterval: 500,
    taskList: { report: limited(run) },
});
