// Times after the year 9999 in Node: postgres and pg, in time zones on both sides of UTC.
//
// Reads the statements of far_times.txt. Connects with libpq's variables.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import pg from 'pg';
import postgres from 'postgres';

const LAST = Date.UTC(9999, 11, 30);
const lines = readFileSync(0, 'utf8').split('\n').map((line) => line.trim());
const statements = lines.filter((line) => line !== '' && !line.startsWith('--'));
const failures = [];

// Each gives work a function that runs a statement in a transaction, and returns its rows.
const clients = {
  async postgres(zone, work) {
    const sql = postgres({ max: 1, connection: { TimeZone: zone }, onnotice: () => {} });
    await work((statement) => sql.begin((sql) => sql.unsafe(statement)));
    await sql.end();
  },
  async pg(zone, work) {
    const client = new pg.Client({ options: `-c TimeZone=${zone}` });
    await client.connect();
    await work(async (statement) => {
      await client.query('BEGIN');
      try {
        const { rows } = await client.query(statement);
        await client.query('COMMIT');
        return rows;
      } catch (error) {
        await client.query('ROLLBACK');
        throw error;
      }
    });
    await client.end();
  },
};

for (const zone of ['Pacific/Kiritimati', 'Etc/GMT+12']) { // 14 hours before UTC, and 12 after it
  for (const [name, connect] of Object.entries(clients)) {
    const client = `${name}, ${zone}`;
    await connect(zone, async (run) => {
      for (const statement of statements) {
        try {
          const values = (await run(statement.replaceAll('@', client))).flatMap(Object.values);
          const last = values.every((value) => value instanceof Date && value.getTime() === LAST);
          if (!last || (statement.startsWith('SELECT') && values.length === 0)) {
            failures.push(`${client}: ${statement}: ${values.join(', ') || 'no rows'}`);
          }
        } catch (error) { // it rolls the call back
          failures.push(`${client}: ${statement}: ${error.message}`);
        }
      }
      const [{ ok }] = await run(`SELECT ok FROM rl_check('slow', '${client} blocked')`);
      const [{ ended }] = await run(`SELECT rl_unblock('slow', '${client} blocked') AS ended`);
      if (ok || !ended) failures.push(`${client}: the key is not blocked`);
    });
  }
}
assert(statements.length > 0 && failures.length === 0, failures.join('\n'));
