// What the workers of queues.test.js share: the work of a job, and what they report.
import pg from 'pg';

const pool = new pg.Pool({ max: 1 });

/** Notes a job. At its first try one whose body begins with "hang" never ends, and one with "fail" throws. */
export async function run({ tenant, body }) {
    const noted = 'INSERT INTO runs SELECT $1, $2, 1 + count(*) FROM runs WHERE body = $2 RETURNING try';
    const { rows } = await pool.query(noted, [tenant, body]);
    if (rows[0].try === 1 && body.startsWith('hang')) {
        process.send({ hangs: body });
        await new Promise(() => {});
    }
    if (rows[0].try === 1 && body.startsWith('fail')) throw new Error(`${body} the first time`);
}

/** A client that reports how many rows its fetches find. */
export function counted(client, fetches) {
    const query = client.query.bind(client);
    client.query = async (...call) => {
        const result = await query(...call);
        if (fetches.test(call[0]?.text ?? call[0])) process.send({ fetched: result.rowCount });
        return result;
    };
    return client;
}
