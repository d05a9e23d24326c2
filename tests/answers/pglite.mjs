// Serves the SQL file in PGlite on a unix socket, until its input ends: node pglite.mjs FILE FOLDER
import { readFile } from 'node:fs/promises';

import { PGlite } from '@electric-sql/pglite';
import { PGLiteSocketServer } from '@electric-sql/pglite-socket';

const [file, folder] = process.argv.slice(2);
const db = await PGlite.create();
await db.exec(await readFile(file, 'utf8'));
const server = new PGLiteSocketServer({ db, path: `${folder}/.s.PGSQL.5432` });
await server.start();
console.log('ready');
process.stdin.resume().on('end', async () => {
    await server.stop();
    await db.close();
    process.exit();
});
