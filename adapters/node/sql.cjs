'use strict';
const { readFileSync } = require('node:fs');
const path = require('node:path');

// How the file writes its schema, and what follows it, as in scripts/plain. All else that has this name is the extension
// or a setting.
const SCHEMA = [['ratelimit.r', '.r'], ['ratelimit._', '._'], ['"ratelimit"', '']];

/** ratelimit.sql, the functions of the extension ratelimit in SQL, for a schema. */
function installSql({ schema = 'ratelimit' } = {}) {
    if (typeof schema !== 'string' || !/^(?!pg_|public$)[a-z_][a-z0-9_]{0,62}$/.test(schema)) {
        const allowed = 'lower-case letters, digits and _, but not public';
        throw new TypeError(`installSql: schema is ${schema}; allowed: ${allowed}`);
    }
    const text = readFileSync(path.join(__dirname, 'ratelimit.sql'), 'utf8');
    // Quoted, since the name may be a word of SQL.
    if (schema === 'ratelimit') return text;
    return SCHEMA.reduce((file, [written, rest]) => file.replaceAll(written, `"${schema}"${rest}`), text);
}

/** Runs installSql on a Pool or a Client of pg, in its transaction if it is in one, on a PGlite or a Knex. */
async function install(database, options) {
    const text = installSql(options);
    // Knex makes a parameter of each question mark that has no backslash.
    if (typeof database.raw === 'function') await database.raw(text.replaceAll('?', '\\?'));
    else await (typeof database.exec === 'function' ? database.exec(text) : database.query(text));
}

module.exports = { installSql, install };
