// Starts the playground, and the Chromium that CHROMIUM names.
import { spawn } from 'node:child_process';
import { once } from 'node:events';

import { chromium } from 'playwright-core';

const PROGRAM = new URL('../debug/ratelimit-playground', import.meta.url).pathname;

// Starts the service on a free port, with these environment variables added. Fails with its output if it ends.
export async function start(variables = {}) {
    const env = { ...process.env, PORT: '0', ...variables };
    const service = spawn(PROGRAM, { env, stdio: ['ignore', 'pipe', 'pipe'] });
    let log = '';
    service.stderr.on('data', (data) => { log += data; });
    const ended = once(service, 'close').then(([code]) => code);
    const address = await Promise.race([once(service.stdout, 'data').then(([data]) => String(data).trim()), ended]);
    if (typeof address !== 'string') throw new Error(log);
    const stop = () => {
        service.kill('SIGTERM');
        return ended;
    };
    return { address, stop, log: () => log };
}

// Starts both: { address, browser, close }.
export async function open() {
    const { address, stop } = await start();
    const browser = await chromium.launch({ executablePath: process.env.CHROMIUM }).catch(async (error) => {
        await stop();
        throw error;
    });
    const close = async () => {
        await browser.close();
        await stop();
    };
    return { address, browser, close };
}
