// Leaves a picture of the page, after a stream of 20 seconds, in FILE: node screenshot.js FILE
import { open } from './open.js';

const { address, browser, close } = await open();
const choices = { 'a-kind': 'token bucket', 'b-kind': 'fixed window', 'per-second': 1.5, arrivals: 'random' };
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
await page.goto(`${address}/?${new URLSearchParams(choices)}`);
await page.getByRole('button', { name: 'Stream' }).click();
await page.waitForTimeout(19_000);
// Ends with a denial, which has the most to show.
await page.waitForFunction(() => document.querySelector('#a .answer').textContent.includes('429'));
await page.getByRole('button', { name: 'Pause' }).click();
await page.screenshot({ path: process.argv[2], fullPage: true });
await close();
