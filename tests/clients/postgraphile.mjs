// ratelimit behind PostGraphile 5, on what setup.sql prepares: a denial by a trigger and one by a function reach the
// GraphQL client, as HTTP 429.
//
// Connects with libpq's variables, as a role that may write to the schema blog and has EXECUTE on rl_limit.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import pg from 'pg';

// PostGraphile asks for Node 22, which has it; nothing else here needs more than Node 18.
Promise.withResolvers ??= () => {
  const parts = {};
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
};

const { postgraphile } = await import('postgraphile');
const { makePgService } = await import('postgraphile/adaptors/pg');
const { defaultMaskError } = await import('postgraphile/grafserv');
const { grafserv } = await import('postgraphile/grafserv/node');
const { GraphQLError } = await import('postgraphile/graphql');
const { PostGraphileAmberPreset } = await import('postgraphile/presets/amber');

// PostGraphile masks database errors. This shows a denial.
function maskError(error) {
  const { code, message, detail } = error.originalError ?? {};
  if (code !== 'PT429') return defaultMaskError(error);
  const { nodes, source, positions, path } = error;
  const extensions = { code, ...JSON.parse(detail) }; // kind, name, retryAfter
  return new GraphQLError(message, { nodes, source, positions, path, extensions });
}
// Answers 429 if nothing else succeeded, so that the client can send the whole request again.
async function processRequest(next, { requestDigest }) {
  requestDigest.preferJSON = true; // result.json, behind every server
  const result = await next();
  const denied = result?.json?.errors?.find(({ extensions }) => extensions?.code === 'PT429');
  if (denied && !Object.values(result.json.data ?? {}).some((value) => value !== null)) {
    result.statusCode = 429;
    const { retryAfter } = denied.extensions; // null: it can never pass
    if (retryAfter !== null) result.headers['retry-after'] = String(Math.ceil(retryAfter / 1000));
  }
  return result;
}
const RateLimitPreset = {
  grafserv: { maskError },
  plugins: [{ name: 'RateLimitPlugin', version: '1.0.0', grafserv: { middleware: { processRequest } } }],
};

const pool = new pg.Pool({ max: 8 });
const graphql = postgraphile({
  extends: [PostGraphileAmberPreset, RateLimitPreset],
  pgServices: [makePgService({ pool, schemas: ['blog'] })],
  grafserv: { graphiql: false },
});
const server = createServer();
await graphql.createServ(grafserv).addTo(server);
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));

async function send(...mutations) {
  const query = `mutation { ${mutations.map((mutation, n) => `m${n}: ${mutation}`).join(' ')} }`;
  const response = await fetch(`http://127.0.0.1:${server.address().port}/graphql`, {
    method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ query }),
  });
  return { status: response.status, wait: Number(response.headers.get('retry-after')), ...await response.json() };
}
const post = (author, body = '"hello"') =>
  `createPost(input: { post: { author: "${author}", body: ${body} } }) { post { body } }`;
const poke = (person) => `poke(input: { person: "${person}" }) { result }`;

try {
  // 1. A trigger: of 16 at once 3 pass, and every other one is a 429 that says how long to wait.
  const answers = await Promise.all(Array.from({ length: 16 }, () => send(post('linus'))));
  const [passed, denied] = [200, 429].map((status) => answers.filter((answer) => answer.status === status));
  assert.deepEqual([passed.length, denied.length], [3, 13]);
  for (const { data, errors } of passed) assert.deepEqual([data.m0.post.body, errors], ['hello', undefined]);
  for (const { wait, data, errors: [{ message, path, locations, extensions }] } of denied) {
    assert.deepEqual([data.m0, message, path], [null, 'rate limit exceeded', ['m0']]);
    assert.deepEqual(locations, [{ line: 1, column: 12 }]);
    assert.deepEqual([extensions.code, extensions.kind, extensions.name], ['PT429', 'RateLimited', 'sendMessage']);
    assert(80_000_000 < extensions.retryAfter && extensions.retryAfter <= 86_400_000);
    assert.equal(wait, Math.ceil(extensions.retryAfter / 1000));
  }
  const { rows: [{ written }] } = await pool.query('SELECT count(*)::int AS written FROM blog.posts');
  assert.equal(written, 3);

  // 2. A function that calls rl_limit itself.
  assert.deepEqual((await send(poke('bjarne'))).data, { m0: { result: 2 } });
  const refused = await send(poke('linus'));
  assert.deepEqual([refused.status, refused.errors[0].extensions.code], [429, 'PT429']);

  // 3. What another mutation of the request has done stands, so its status is 200.
  const both = await send(poke('bjarne'), poke('linus'));
  assert.deepEqual([both.status, both.data, both.errors.length], [200, { m0: { result: 1 }, m1: null }, 1]);
  const { rows: [{ remaining }] } = await pool.query("SELECT remaining FROM rl_check('sendMessage', 'bjarne')");
  assert.equal(remaining, 1);

  // 4. Other errors of the database stay hidden, here one about a key of 1,200 bytes.
  const hidden = await send(post('long'.repeat(300)));
  assert.equal(hidden.status, 200);
  assert.match(hidden.errors[0].message, /^An error occurred \(logged with hash: /);
  assert.equal(hidden.errors[0].extensions.code, undefined);
} finally {
  await graphql.release();
  server.closeAllConnections();
  server.close();
  await pool.end();
}
