'use strict';
const { readFileSync } = require('node:fs');
const path = require('node:path');

// The schema, wherever the file names it, but not the extension and settings of that name.
const SCHEMA = /(?<!extension )(?<!extname = ')\bratelimit\b(?!\.(clock|error_style)\b)/g;

/** ratelimit.sql, the functions of the extension ratelimit in SQL, for a schema. */
function installSql({ schema = 'ratelimit' } = {}) {
    if (typeof schema !== 'string' || !/^(?!pg_|public$)[a-z_][a-z0-9_]{0,62}$/.test(schema)) {
        const allowed = 'lower-case letters, digits and _, but not public';
        throw new TypeError(`installSql: schema is ${schema}; allowed: ${allowed}`);
    }
    const text = readFileSync(path.join(__dirname, 'ratelimit.sql'), 'utf8');
    const [head] = /^(--.*\n)*/.exec(text);
    return head + text.slice(head.length).replace(SCHEMA, schema);
}

/** Runs installSql on a Pool or a Client of pg, in its transaction if it is in one, on a PGlite or a Knex. */
async function install(database, options) {
    const text = installSql(options);
    // Knex makes a parameter of each question mark that has no backslash.
    if (typeof database.raw === 'function') await database.raw(text.replaceAll('?', '\\?'));
    else await (typeof database.exec === 'function' ? database.exec(text) : database.query(text));
}

module.exports = { installSql, install };
