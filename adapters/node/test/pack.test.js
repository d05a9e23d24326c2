// What `npm pack` makes, alone in an empty folder: it needs no other package, from import and require, and its types are
// found however TypeScript resolves packages.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { gzipSync } from 'node:zlib';

import { rolldown } from 'rolldown';

const source = fileURLToPath(new URL('..', import.meta.url));
const run = (program, args, cwd) =>
    promisify(execFile)(program, args, { cwd }).catch((error) => assert.fail(`${error.stdout}${error.stderr}`));
const PACKAGE = 'postgres-rate-limit';
const PARTS = ['express-rate-limit', 'hono', 'nest', 'browser', 'better-auth', 'fastify'].map((part) => `${PACKAGE}/${part}`);

// Its classes extend those of the library, which is installed for it.
const EXTENDS = `${PACKAGE}/rate-limiter-flexible`;

const PROGRAM = `
const row = { name: 'public', ok: true, wait: null, at: null, remaining: '1', capacity: 2, reset: 1.5 };
const limiter = new RateLimiter({ a: tokenBucket({ rate: 1, period: MINUTE }) }, { db: { query: async () => [row] } });
limiter.limit('a', { key: 7 }).then((result) => {
    const tokens = { retryAfter: null, retryAt: null, remaining: 1, capacity: 2, resetAt: new Date(1500) };
    const expected = { ok: true, ...tokens, limitedBy: null, headers: {} };
    assert.deepEqual(result, expected);
    assert.ok(installSql().includes('rl_limit'));
});`;
const PROGRAMS = {
    'imports.mjs': `import assert from 'node:assert/strict'; import { installSql, MINUTE, RateLimiter, tokenBucket } from '${PACKAGE}';
        ${PARTS.map((part) => `await import('${part}');`).join(' ')} ${PROGRAM}`,
    'requires.cjs': `const assert = require('node:assert/strict'); const { installSql, MINUTE, RateLimiter, tokenBucket } = require('${PACKAGE}');
        ${PARTS.map((part) => `require('${part}');`).join(' ')} ${PROGRAM}`,
};
const MAKE = "new RateLimiterStore({ db: { query() {} }, name: 'a', points: 1, duration: 1 });";
const EXTENDERS = {
    'extends.mjs': `import { RateLimiterStore } from '${EXTENDS}'; ${MAKE}`,
    'extends.cjs': `const { RateLimiterStore } = require('${EXTENDS}'); ${MAKE}`,
};
const TYPES = `
import { RateLimiter, tokenBucket, type Result } from '${PACKAGE}';
import { RateLimitStore } from '${PARTS[0]}';
import { RateLimitStore as OfHono } from '${PARTS[1]}';
import { RateLimitThrottlerStorage } from '${PARTS[2]}';
import { calculate, watchRateLimit, type Snapshot } from '${PARTS[3]}';
import { RateLimitStorage } from '${PARTS[4]}';
import { rateLimitStore } from '${PARTS[5]}';
import { RateLimiterStore } from '${EXTENDS}';
import { useCountdown, useRateLimit } from '${PACKAGE}/react';
const limiter = new RateLimiter({ a: tokenBucket({ rate: 1, period: 1, keyed: true }) });
export const result: Promise<Result> = limiter.limit('a', { key: 'b' });
// @ts-expect-error
limiter.limit('b');
// @ts-expect-error
limiter.limit('a');
const watch = watchRateLimit(() => limiter.getValue('a', { key: 'b' }));
export const snapshot: Snapshot = watch.getSnapshot();
export const seconds = () => useCountdown(useRateLimit(watch).status?.retryAt);
// @ts-expect-error
calculate({});
export const stores = [RateLimitStore, OfHono, RateLimitThrottlerStorage, RateLimitStorage, rateLimitStore];
export const extended = RateLimiterStore;`;
const RESOLUTIONS = { nodenext: 'nodenext', bundler: 'esnext', node10: 'commonjs' };

test('the package needs no other, and its types are found', async (context) => {
    const folder = await mkdtemp(`${tmpdir()}/pack.`);
    context.after(() => rm(folder, { recursive: true }));
    const { stdout } = await run('npm', ['pack', '--ignore-scripts', '--json', '--pack-destination', folder], source);
    const [{ filename }] = JSON.parse(stdout);
    await writeFile(`${folder}/package.json`, '{ "private": true }');
    await run('npm', ['install', '--offline', '--no-audit', '--no-fund', `./${filename}`], folder);
    await run('npm', ['ls', '--all'], folder);
    for (const [name, text] of Object.entries(PROGRAMS)) {
        await writeFile(`${folder}/${name}`, text);
        await run(process.execPath, [name], folder);
    }
    const usage = await run('npx', ['--no', '--', PACKAGE, '--help'], folder);
    assert.match(usage.stdout, /^Usage: postgres-rate-limit install/);
    await symlink(`${source}/node_modules/rate-limiter-flexible`, `${folder}/node_modules/rate-limiter-flexible`);
    for (const [name, text] of Object.entries(EXTENDERS)) {
        await writeFile(`${folder}/${name}`, text);
        await run(process.execPath, [name], folder);
    }

    for (const name of ['types.ts', 'types.mts', 'types.cts']) await writeFile(`${folder}/${name}`, TYPES);
    for (const [moduleResolution, module] of Object.entries(RESOLUTIONS)) {
        const files = moduleResolution === 'node10' ? ['types.ts'] : ['types.ts', 'types.mts', 'types.cts'];
        // All of the package's own types are checked, too.
        const checks = { strict: true, noEmit: true, skipLibCheck: false, skipDefaultLibCheck: true };
        const compilerOptions = {
            ...checks,
            module,
            moduleResolution,
            target: 'es2022',
            lib: ['es2022', 'dom'],
            types: [],
        };
        await writeFile(`${folder}/tsconfig.json`, JSON.stringify({ compilerOptions, files }));
        await run(process.execPath, [`${source}/node_modules/typescript/bin/tsc`, '-p', folder], folder);
    }
});

test('what a browser gets, minified and gzipped, is at most 3,000 bytes', async () => {
    // The hooks' module has all.
    const bundle = await rolldown({ cwd: source, input: 'dist/react.mjs', external: ['react'] });
    const [{ code }] = (await bundle.generate({ format: 'esm', minify: true })).output;
    const size = gzipSync(code).length;
    assert.ok(size > 2000 && size <= 3000, `${size} bytes`);
});

test('each class is in one file, so that it exists once in a process that requires and imports', async () => {
    const classes = async (folder, expression) => {
        const files = (await readdir(`${source}/${folder}`)).filter((name) => /(?<!\.d)\.([cm]js|ts)$/.test(name));
        const texts = await Promise.all(files.map((name) => readFile(`${source}/${folder}/${name}`, 'utf8')));
        return texts.flatMap((text) => [...text.matchAll(expression)].map(([, name]) => name)).sort();
    };
    const written = await classes('src', /^(?:export )?(?:abstract )?class (\w+)/gm);
    assert.ok(written.includes('RateLimitError') && written.includes('RateLimiter'));
    assert.deepEqual(await classes('dist', /^(?:var|class) (\w+?)(?:\$\d+)?(?: = class\b| extends| \{)/gm), written);
});
