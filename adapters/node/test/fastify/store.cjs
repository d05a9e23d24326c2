// Required before the plugin's own tests: it counts in our store where they give none, by a clock that follows theirs.
const Module = require('node:module');
const pg = require('pg');
const { rateLimitStore } = require('postgres-rate-limit/fastify');

const pool = new pg.Pool({ user: 'postgres', max: 1, allowExitOnIdle: true });
const NOON = Date.UTC(2027, 0, 1, 12);
const query = async (...statement) => {
    const clock = String(NOON + (Date.now() % 86_400_000));
    await pool.query("SELECT set_config('ratelimit.clock', $1, false)", [clock]);
    return pool.query(...statement);
};
let names = 0;
const load = Module._load;
Module._load = function (request, ...rest) {
    const plugin = load.call(this, request, ...rest);
    if (!/^(\.\.\/)+index$/.test(request) || typeof plugin !== 'function') return plugin;
    const ours = (fastify, { ...settings }) => {
        if (!settings.redis) settings.store ??= rateLimitStore({ db: { query }, name: `${process.pid} ${names++}` });
        return plugin(fastify, settings);
    };
    return Object.assign(ours, plugin);
};
