// Starts the chat on a free port, as the role that it has, and the Chromium that CHROMIUM names.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

import { chromium } from 'playwright-core';
import postgres from 'postgres';

/** { visit, sql, log, close }: visit opens the page as another person, sql asks as the database's owner. */
export async function open() {
    const cwd = fileURLToPath(new URL('..', import.meta.url));
    const server = spawn(process.execPath, ['dist/server.js'], { cwd, env: { ...process.env, PORT: '0' } });
    let log = '';
    server.stderr.on('data', (data) => (log += data));
    const ended = once(server, 'close').then(() => Promise.reject(new Error(`the chat has ended: ${log}`)));
    ended.catch(() => {});
    const address = String((await Promise.race([once(server.stdout, 'data'), ended]))[0]).trim();
    const stop = () => {
        server.kill();
        return once(server, 'close');
    };
    const browser = await chromium.launch({ executablePath: process.env.CHROMIUM }).catch(async (error) => {
        await stop();
        throw error;
    });
    const sql = postgres({ user: 'postgres' });
    const visit = async (options = {}) => {
        const page = await (await browser.newContext(options)).newPage();
        await page.goto(address);
        return page;
    };
    const close = async () => {
        await Promise.all([browser.close(), sql.end()]);
        await stop();
    };
    return { visit, sql, log: () => log, close };
}
