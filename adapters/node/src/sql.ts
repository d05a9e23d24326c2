// The SQL file: the functions of the extension, for a database that can't have it.
import { readFileSync } from 'node:fs';
import path from 'node:path';

import { allow } from './errors';

// The forms in which the file writes its schema, as in scripts/plain. Elsewhere the name is the extension or a setting.
const SCHEMA = /ratelimit(?=\.[r_])|"ratelimit"/g;

export interface InstallOptions {
    /** The schema of the functions. Default: "ratelimit". */
    schema?: string | undefined;
}

/** The SQL that installs the functions of the extension, for a database that can't have it: for a migration. */
export function installSql({ schema = 'ratelimit' }: InstallOptions = {}): string {
    const isName = typeof schema === 'string' && /^(?!pg_|public$)[a-z_][a-z0-9_]{0,62}$/.test(schema);
    allow(isName, 'installSql: schema', schema, 'lower-case letters, digits and _, but not public');
    const text = readFileSync(path.join(__dirname, '../ratelimit.sql'), 'utf8');
    // Quoted, because the name may be a word of SQL.
    return schema === 'ratelimit' ? text : text.replaceAll(SCHEMA, `"${schema}"`);
}

type Installable =
    { query(text: string): Promise<any> } | { exec(text: string): Promise<any> } | { raw(text: string): any };

/** Runs installSql on a Pool or a Client of pg, in its transaction if it is in one, on a PGlite or a Knex. */
export async function install(database: Installable, options?: InstallOptions): Promise<void> {
    const text = installSql(options);
    const db: any = database;
    // Knex makes a parameter of each question mark without a backslash.
    if (typeof db.raw === 'function') await db.raw(text.replaceAll('?', '\\?'));
    else await (typeof db.exec === 'function' ? db.exec(text) : db.query(text));
}
