// A chat with limits: sign-ups of all together, messages of each user, and tokens that a language model uses for each.
// A comment "Limit:" precedes each line about them. PGHOST, PGUSER and PGDATABASE name the database, which has
// setup.sql.
import { serve } from '@hono/node-server';
import { serveStatic } from '@hono/node-server/serve-static';
import { Hono } from 'hono';
import { getCookie, setCookie } from 'hono/cookie';
import { streamText } from 'hono/streaming';
import postgres from 'postgres';
import { MINUTE, RateLimiter, RateLimitError, tokenBucket } from 'postgres-rate-limit';

import { model } from './model';

const sql = postgres();

// Limit: the definitions. Each call sends its own, so the database needs none.
const limiter = new RateLimiter(
    {
        signUp: tokenBucket({ rate: 30, period: MINUTE, capacity: 5 }),
        sendMessage: tokenBucket({ rate: 10, period: MINUTE, capacity: 3, keyed: true }),
        llmTokens: tokenBucket({ rate: 300, period: MINUTE, capacity: 120, keyed: true }),
    },
    { db: sql },
);

type User = { id: string; name: string };
const app = new Hono<{ Variables: { user: User } }>();

app.onError((error, c) => {
    // Limit: a denial is status 429.
    const denial = RateLimitError.from(error);
    if (denial) {
        if (denial.retryAfter !== null) c.header('Retry-After', String(Math.ceil(denial.retryAfter / 1000)));
        return c.text(`Too many calls of ${denial.name}`, 429);
    }
    if (error instanceof postgres.PostgresError && error.code.startsWith('23')) {
        return c.text('The name is taken, or the text is empty or too long', 400);
    }
    console.error(error);
    return c.text('Something went wrong', 500); // without an answer of the limiter nothing is admitted
});

app.post('/users', async (c) => {
    const { name } = await c.req.json();
    const user = await sql.begin(async (tx) => {
        const [user] = await tx<User[]>`INSERT INTO users (name) VALUES (${name}) RETURNING id, name`;
        // Limit: all users share this one, so it is taken last. A denial undoes the INSERT.
        await limiter.limit('signUp', { db: tx, throws: true });
        return user;
    });
    setCookie(c, 'user', user.id, { httpOnly: true, sameSite: 'Strict' }); // in place of a login
    return c.json({ name: user.name });
});

// What follows is for users.
app.use('/my/*', async (c, next) => {
    const [user] = await sql<User[]>`SELECT id, name FROM users WHERE id = ${getCookie(c, 'user') ?? ''}`;
    if (!user) return c.text('Sign up first', 401);
    c.set('user', user);
    await next();
});
app.get('/my/name', (c) => c.json(c.get('user').name));
app.get('/my/messages', async (c) => {
    return c.json(await sql`SELECT id, author, body FROM messages ORDER BY id DESC LIMIT 50`);
});

app.post('/my/messages', async (c) => {
    const user = c.get('user');
    const { body } = await c.req.json();
    await sql.begin(async (tx) => {
        // Limit: in the transaction of the INSERT. If that fails, the token is back.
        await limiter.limit('sendMessage', { key: user.id, db: tx, throws: true });
        await tx`INSERT INTO messages (author, body) VALUES (${user.name}, ${body})`;
    });
    return c.body(null, 204);
});

/** The tokens that are held for a question of up to 100 characters, and again whenever its answer has used them. */
const STEP = 40;

app.post('/my/questions', async (c) => {
    const { question } = await c.req.json();
    if (question.length > 100) return c.text('The question is too long', 400);
    // Limit: an estimate is held before the model is called. If this process dies, it is back after two minutes.
    const options = { key: c.get('user').id, count: STEP, ttl: 2 * MINUTE };
    const hold = await limiter.hold('llmTokens', { ...options, throws: true });
    return streamText(c, async (stream) => {
        // Limit: whatever happens here, what was used is settled at the end, once.
        await using _ = hold;
        let answer = '';
        let held = STEP;
        for await (const { text, usage } of model(question)) {
            hold.used = usage;
            answer += text;
            await stream.write(text);
            if (stream.aborted) break;
            if (usage < held) continue;
            // Limit: the hold gets more tokens. If that is denied, the answer ends here.
            held += STEP;
            if (!(await hold.extend(held))) break;
        }
        await sql.begin(async (tx) => {
            await tx`INSERT INTO messages (author, body) VALUES ('the model', ${answer})`;
            // Limit: the answer is stored and its tokens are settled, or neither.
            await limiter.settle(hold.id, hold.used, { db: tx });
        });
    });
});

// Limit: what the page's buttons are computed from. The key is the session's, never the request's.
const NOW = { 'Cache-Control': 'no-store' };
app.get('/limits/signUp', async (c) => c.json(await limiter.getValue('signUp'), 200, NOW));
for (const name of ['sendMessage', 'llmTokens'] as const) {
    app.get(`/my/limits/${name}`, async (c) => {
        return c.json(await limiter.getValue(name, { key: c.get('user').id }), 200, NOW);
    });
}

app.get('*', serveStatic({ root: 'public' }));
serve({ fetch: app.fetch, hostname: '127.0.0.1', port: Number(process.env.PORT ?? 8080) }, ({ port }) =>
    console.log(`http://127.0.0.1:${port}`),
);
