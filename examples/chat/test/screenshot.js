// Leaves a picture of the page in FILE: node screenshot.js FILE
import { open } from './open.js';

const { visit, sql, close } = await open();
const page = await visit({ viewport: { width: 660, height: 340 }, deviceScaleFactor: 1.5 });
await page.getByLabel('Your name').fill('Ada');
await page.getByRole('button').click();
const text = page.getByLabel('Text');
const press = async (name, line) => {
    await text.fill(line);
    await page.getByRole('button', { name }).click();
    await page.getByRole('listitem').filter({ hasText: line }).first().waitFor();
};
await sql`INSERT INTO messages (author, body) VALUES ('Bob', 'Is anybody here?')`;
await press('Send', 'Yes, and a model, though it only pretends.');
const answer = page.waitForResponse('**/questions');
await press('Ask', 'What does an answer cost?');
await (await answer).finished();
await sql`INSERT INTO messages (author, body) VALUES ('Bob', 'Ask once more!')`;
await press('Send', 'I may,');
await press('Send', 'but have to wait until I can write to you.');
await page.getByRole('button', { name: 'Send in' }).waitFor();
await text.fill('In a moment:');
await page.screenshot({ path: process.argv[2], fullPage: true });
await close();
