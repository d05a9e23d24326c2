// What `npm pack` makes, installed into an empty folder by the README's line; and the README's example, word by word.
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { fileURLToPath } from 'node:url';
import { test } from 'node:test';
import { promisify } from 'node:util';

import { onFile } from './edition.js';

const source = fileURLToPath(new URL('..', import.meta.url));
const run = async (program, args, options) => (await promisify(execFile)(program, args, options)).stdout;
/** Runs SQL as the database's owner. */
const sql = (database, ...commands) =>
    run('psql', ['-XAtq', '-U', 'postgres', '-d', database, '-v', 'ON_ERROR_STOP=1', ...commands.flatMap((sql) => ['-c', sql])]);

async function freePort() {
    const server = net.createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address();
    server.close();
    return port;
}

test('the package of npm pack is installed, and the README is right', async (context) => {
    const folder = await mkdtemp(`${tmpdir()}/readme.`);
    context.after(() => rm(folder, { recursive: true }));
    const [packed] = JSON.parse(await run('npm', ['pack', '--ignore-scripts', '--json', '--pack-destination', folder], { cwd: source }));
    const files = packed.files.map(({ path }) => path).sort();
    const built = (await readdir(`${source}/dist`)).map((name) => `dist/${name}`);
    assert.deepEqual(files, ['LICENSE', 'README.md', 'package.json', 'ratelimit.sql', ...built].sort());
    for (const name of built) assert.match(name, /^dist\/[\w-]+\.(d\.[cm]ts|[cm]js)$/);

    const readme = await readFile(`${source}/README.md`, 'utf8');
    assert.doesNotMatch(readme, /\]\((?!https:\/\/|#)/, 'a link that is dead outside of the repository');
    const blocks = (language) => [...readme.matchAll(new RegExp(`\`\`\`${language}\n(.*?)\n\`\`\``, 'gs'))].map(([, text]) => text);
    await sql('postgres', 'CREATE DATABASE readme');
    context.after(() => sql('postgres', 'DROP DATABASE readme WITH (FORCE)', 'DROP ROLE app'));

    // Of others the versions that all is tested with.
    const { devDependencies: versions } = JSON.parse(await readFile(`${source}/package.json`, 'utf8'));
    const [[npm, install, ...wanted], [npx, ...command]] = blocks('sh').map((line) => line.split(' '));
    assert.deepEqual([npm, install, wanted[0]], ['npm', 'install', packed.name]);
    const exact = wanted.map((name) => (name === packed.name ? `${folder}/${packed.filename}` : `${name}@${versions[name]}`));
    const cwd = `${folder}/app`;
    await mkdir(cwd);
    await run(npm, [install, '--no-audit', '--no-fund', '--prefer-offline', ...exact], { cwd });
    await run(process.execPath, ['-e', `require('${packed.name}/express-rate-limit').RateLimitStore.name`], { cwd });

    const [extension, file] = blocks('sql');
    if (onFile) await run(npx, ['--no', ...command], { cwd, env: { ...process.env, PGUSER: 'postgres', PGDATABASE: 'readme' } });
    await sql('readme', onFile ? file : extension);

    await writeFile(`${cwd}/app.mjs`, blocks('js')[0]);
    const port = await freePort();
    const app = spawn(process.execPath, ['app.mjs'], {
        cwd,
        env: { ...process.env, PGUSER: 'app', PGDATABASE: 'readme', PORT: String(port) },
        stdio: ['ignore', 'ignore', 'pipe'],
    });
    let log = '';
    app.stderr.on('data', (data) => (log += data));
    context.after(() => app.kill());
    const get = async () => {
        for (;;) {
            assert.equal(app.exitCode, null, log);
            try {
                return await fetch(`http://127.0.0.1:${port}/`);
            } catch {
                await new Promise((resolve) => setTimeout(resolve, 50)); // it does not listen yet
            }
        }
    };
    const answer = await get();
    assert.deepEqual([answer.status, await answer.text()], [200, 'hello'], log);
    assert.equal(answer.headers.get('x-ratelimit-remaining'), '99');

    // As by a restart of the server.
    const ended = await sql('readme', "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE usename = 'app'");
    assert.equal(ended.trim(), '1');
    while (!log) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.match(log, /^terminating connection/);
    assert.equal((await get()).headers.get('x-ratelimit-remaining'), '98');
});
