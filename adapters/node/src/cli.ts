#!/usr/bin/env node
import { parseArgs } from 'node:util';
import { install, installSql } from './sql';

const USAGE = `Usage: postgres-rate-limit install [URL] [--schema NAME] [--print]

Installs the functions of the extension ratelimit as SQL, for a database that can't have the extension: into the
schema "ratelimit", or NAME. Run it as the role that is to own them; run it again to upgrade.
Connects to URL, such as postgresql://owner@db.example.com/shop, or by PGHOST, PGUSER, PGDATABASE, PGPASSWORD and
pg's other environment variables. With --print it writes the SQL to standard output instead.
`;
const OPTIONS = {
    schema: { type: 'string' },
    print: { type: 'boolean' },
    help: { type: 'boolean', short: 'h' },
} as const;

/** Parses the arguments; undefined: they are invalid. */
function asked() {
    try {
        const { values, positionals: [command, url, ...more] } = parseArgs({ options: OPTIONS, allowPositionals: true });
        return values.help || (command === 'install' && more.length === 0) ? { ...values, url } : undefined;
    } catch {
        return undefined;
    }
}

async function main() {
    const options = asked();
    if (!options || options.help) {
        (options ? process.stdout : process.stderr).write(USAGE);
        process.exitCode = options ? 0 : 2;
        return;
    }
    const { url, schema = 'ratelimit', print } = options;
    if (print) return void process.stdout.write(installSql({ schema }));
    const { default: pg } = await import('pg');
    const client = new pg.Client(url);
    await client.connect();
    try {
        await install(client, { schema });
        const { rows } = await client.query('SELECT current_database() AS name');
        process.stdout.write(`ratelimit is installed in schema "${schema}" of database "${rows[0].name}"\n`);
    } finally {
        await client.end();
    }
}

main().catch((error: any) => {
    process.stderr.write(`error: ${error.message || error.code}\n${error.hint ? `hint: ${error.hint}\n` : ''}`);
    process.exitCode = 1;
});
