// Starts the playground, which is the program PLAYGROUND, and Chromium, which is CHROMIUM.
import { spawn } from 'node:child_process';
import { once } from 'node:events';

import { chromium } from 'playwright-core';

// Starts the service on a free port, with these variables beside, or instead of, those of the environment. Fails with
// what it says if it ends instead.
export async function start(variables = {}) {
    const env = { ...process.env, PORT: '0', ...variables };
    const service = spawn(process.env.PLAYGROUND, { env, stdio: ['ignore', 'pipe', 'pipe'] });
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
