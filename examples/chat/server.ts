// A chat with limits: sign-ups of all together; messages of each user; and for each the tokens that a language model
// uses, and the answers at once. A comment "Limit:" precedes each line about them. PGHOST, PGUSER and PGDATABASE name
// the database, which has setup.sql.
import { serve } from '@hono/node-server';
import { serveStatic } from '@hono/node-server/serve-static';
import {
    createUIMessageStream,
    createUIMessageStreamResponse,
    streamText,
    toUIMessageStream,
    wrapLanguageModel,
} from 'ai';
import { type Context, Hono } from 'hono';
import { getCookie, setCookie } from 'hono/cookie';
import { HTTPException } from 'hono/http-exception';
import postgres from 'postgres';
import { concurrency, MINUTE, RateLimiter, RateLimitError, tokenBucket } from 'postgres-rate-limit';
import { budget, opened } from 'postgres-rate-limit/ai';

import { model } from './model';

const sql = postgres();

// Limit: the definitions. Each call sends its own, so the database needs none.
const limiter = new RateLimiter(
    {
        signUp: tokenBucket({ rate: 30, period: MINUTE, capacity: 5 }),
        sendMessage: tokenBucket({ rate: 10, period: MINUTE, capacity: 3, keyed: true }),
        llmTokens: tokenBucket({ rate: 300, period: MINUTE, keyed: true }),
        answers: concurrency({ slots: 2, ttl: 2 * MINUTE, keyed: true }),
    },
    { db: sql },
);

type User = { id: string; name: string };
type Env = { Variables: { user: User } };
type Asked = Context<Env>;
const app = new Hono<Env>();

app.onError((error, c) => {
    // Limit: a denial is status 429, with Retry-After.
    const denial = RateLimitError.from(error);
    if (denial) return c.json({ ...denial.data, error: `Too many calls of ${denial.name}` }, 429, denial.headers);
    if (error instanceof HTTPException) return c.json({ error: error.message }, error.status);
    if (error instanceof postgres.PostgresError && /^2[23]/.test(error.code)) {
        return c.json({ error: 'The name is taken, or the text is empty or too long' }, 400);
    }
    console.error(error);
    return c.json({ error: 'Something went wrong' }, 500); // without an answer of the limiter nothing is admitted
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
    if (!user) throw new HTTPException(401, { message: 'Sign up first' });
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

/** The model, for one question of a user. */
const budgeted = (user: string, question: string) =>
    wrapLanguageModel({
        model,
        middleware: budget(limiter, {
            // Limit: both are held, or none. If this process dies, they are back after two minutes.
            limits: [
                { name: 'answers', key: user },
                { name: 'llmTokens', key: user, count: 'totalTokens' },
            ],
            maxOutputTokens: 60,
            // Limit: the same question is the same hold.
            id: question,
            // Limit: what is stopped costs what has come.
            unreported: ({ streamed }) => streamed,
            // Limit: the answer is stored and its tokens are settled, or neither.
            settle: ({ hold, used, text }) =>
                sql.begin(async (tx) => {
                    await store(tx, question, text);
                    await limiter.settleAll(hold, used, { db: tx });
                }),
        }),
    });

/** Stores an answer. Without a word of it the question counts as not asked. */
async function store(tx: postgres.TransactionSql, question: string, text: string) {
    if (text) await tx`INSERT INTO messages (author, body, question) VALUES ('the model', ${text}, ${question})`;
    else await tx`DELETE FROM questions WHERE id = ${question}`;
}

app.post('/my/questions', async (c) => {
    const { id, question } = await c.req.json();
    const earlier = await turn(c, id, question);
    if (earlier) return earlier;
    try {
        const result = streamText({
            model: budgeted(c.get('user').id, id),
            prompt: question,
            abortSignal: AbortSignal.any([c.req.raw.signal, AbortSignal.timeout(MINUTE)]),
            maxRetries: 0,
            onError: ({ error }) => RateLimitError.from(error) ?? console.error(error),
        });
        // Limit: a denial is thrown here, before the response begins.
        const { stream } = await opened(result);
        return createUIMessageStreamResponse({ stream: toUIMessageStream({ stream }) });
    } catch (error) {
        return unanswered(c, id, error);
    }
});

/** Begins a question, once. Otherwise returns its answer, or 429 with its place in the user's line. */
async function turn(c: Asked, id: string, question: string) {
    if (!/^.{1,100}$/.test(question)) throw new HTTPException(400, { message: 'The question is empty or too long' });
    const user = c.get('user').id;
    const [asked] = await sql`
        INSERT INTO questions (id, asker) VALUES (${id}, ${user})
        ON CONFLICT (id) DO UPDATE SET asked_at = now() WHERE questions.asker = ${user}
        RETURNING number, (SELECT body FROM messages WHERE question = ${id}) AS answer`;
    if (!asked) throw new HTTPException(400, { message: 'The question is somebody else’s' });
    if (asked.answer !== null) return stored(asked.answer);
    // What began two minutes ago was ended, or its process has died.
    const [{ ahead, begins }] = await sql`
        WITH line AS (
            SELECT count(*)::int AS ahead FROM questions
            WHERE asker = ${user} AND number < ${asked.number}
              AND begun_at IS NULL AND asked_at > now() - interval '5 s'),
        begun AS (
            UPDATE questions SET begun_at = now() FROM line
            WHERE id = ${id} AND ahead = 0 AND (begun_at IS NULL OR begun_at < now() - interval '2 min') RETURNING id)
        SELECT ahead, EXISTS (SELECT FROM begun) AS begins FROM line`;
    if (!begins) return inLine(c, ahead && ahead + 1);
}

/** Ends a question without an answer. Limit: while no slot is free, it stays the first in line. */
async function unanswered(c: Asked, id: string, error: unknown) {
    if (RateLimitError.from(error)?.name !== 'answers') {
        await sql`DELETE FROM questions WHERE id = ${id}`;
        throw error;
    }
    await sql`UPDATE questions SET begun_at = NULL WHERE id = ${id}`;
    return inLine(c, 1);
}

/** Has the page send its question again in a second. Place 0: it is being answered. */
const inLine = (c: Asked, place: number) =>
    c.json({ place, error: 'The question waits in line' }, 429, { 'Retry-After': '1' });

/** An answer that was stored, as a stream. */
const stored = (answer: string) =>
    createUIMessageStreamResponse({
        stream: createUIMessageStream({
            execute({ writer }) {
                writer.write({ type: 'text-start', id: '1' });
                writer.write({ type: 'text-delta', id: '1', delta: answer });
                writer.write({ type: 'text-end', id: '1' });
            },
        }),
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
