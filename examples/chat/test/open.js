// Starts the chat on a free port, as the role that it has, and the Chromium that CHROMIUM names.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

import { chromium } from 'playwright-core';
import postgres from 'postgres';

/** A process of the chat: { address, errors, end }: errors returns what it has logged since, end sends a signal. */
export async function serve(env = {}) {
    const cwd = fileURLToPath(new URL('..', import.meta.url));
    const server = spawn(process.execPath, ['dist/server.js'], { cwd, env: { ...process.env, PORT: '0', ...env } });
    let log = '';
    server.stderr.on('data', (data) => (log += data));
    const closed = once(server, 'close');
    const ended = closed.then(() => Promise.reject(new Error(`the chat has ended: ${log}`)));
    ended.catch(() => {});
    const address = String((await Promise.race([once(server.stdout, 'data'), ended]))[0]).trim();
    const end = (signal) => {
        server.kill(signal);
        return closed;
    };
    const errors = () => {
        const [logged] = [log, (log = '')];
        return logged;
    };
    return { address, errors, end };
}

/** { address, visit, sql, errors, close }: visit opens the page as another person, sql asks as the database's owner. */
export async function open() {
    const { address, errors, end } = await serve();
    const browser = await chromium.launch({ executablePath: process.env.CHROMIUM }).catch(async (error) => {
        await end();
        throw error;
    });
    const sql = postgres({ user: 'postgres' });
    const visit = async (options = {}) => {
        const page = await (await browser.newContext(options)).newPage();
        await page.goto(options.baseURL ?? address);
        return page;
    };
    const close = async () => {
        await Promise.all([browser.close(), sql.end()]);
        await end();
    };
    return { address, visit, sql, errors, close };
}
