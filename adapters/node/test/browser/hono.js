// docs/browser.md shows the route.
import { Hono } from 'hono';

import { limiter, sessionOf } from './application.js';

export const app = new Hono();
app.use(async (c, next) => {
    const session = sessionOf(c.req.header('Cookie'));
    if (!session) return c.body(null, 401);
    c.set('session', session);
    return next();
});

app.get('/limits/sendMessage', async (c) => {
    const value = await limiter.getValue('sendMessage', { key: c.get('session').user });
    return c.json(value, 200, { 'Cache-Control': 'no-store' });
});
