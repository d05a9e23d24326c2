// As in an application that is CommonJS. common.test.js runs it.
const assert = require('node:assert/strict');
const pg = require('pg');
const { RateLimitThrottlerStorage } = require('postgres-rate-limit/nest');

const pool = new pg.Pool();
const storage = new RateLimitThrottlerStorage({ db: pool, name: 'common' });
// Nest 12 itself is of modules.
if (process.features.require_module) {
    const { ThrottlerModule } = require('@nestjs/throttler');
    ThrottlerModule.forRoot({ throttlers: [{ ttl: 60_000, limit: 2 }], storage });
}
const run = async () => {
    const hits = [];
    for (let n = 0; n < 3; n++) hits.push((await storage.increment(`${process.pid}`, 60_000, 2, 60_000, 'default')).totalHits);
    assert.deepEqual(hits, [1, 2, 3]);
    for (const part of ['', '/express-rate-limit', '/hono', '/nest', '/better-auth', '/fastify', '/rate-limiter-flexible']) {
        const [imported, required] = [await import(`postgres-rate-limit${part}`), require(`postgres-rate-limit${part}`)];
        assert.deepEqual(Object.keys(imported), Object.keys(required).sort(), part);
        for (const name in required) assert.equal(imported[name], required[name], 'one class in a process, however it is loaded');
    }
    await pool.end();
};
run();
