// PostgreSQL in this page: its limits are defined, taken from and looked at by SQL, which is shown as it is run.
const LOOK = 250; // ms between two looks at what is left
const CALLS = 50; // that are shown

const byId = (id) => document.getElementById(id);
const status = (text, failed = false) => {
    byId('status').textContent = text;
    byId('status').classList.toggle('failed', failed);
};

const literal = (text) => `'${text.replaceAll("'", "''")}'`;
const fields = (id) => Object.fromEntries(new FormData(byId(id)));
const definition = ({ kind, rate, period }) =>
    `SELECT rl_define('api', ${kind}(rate => ${rate || 0}, period => '${period || 0} seconds'));`;
const call = ({ key, count }, columns = '*') =>
    `SELECT ${columns} FROM rl_limit('api', ${literal(key)}, count => ${count || 0});`;

const text = (value) => {
    if (value === null || value === undefined) return '';
    if (value instanceof Date) return value.toISOString().replace('T', ' ').replace('Z', '+00');
    if (typeof value === 'number') return String(Math.round(value * 1000) / 1000);
    return typeof value === 'object' ? JSON.stringify(value) : String(value);
};
const element = (tag, content) => Object.assign(document.createElement(tag), { textContent: content });
function table(columns, rows) {
    const made = element('table', '');
    const line = (tag, values) => {
        const row = element('tr', '');
        row.append(...values.map((value) => element(tag, text(value))));
        return row;
    };
    made.append(line('th', columns), ...rows.map((row) => line('td', columns.map((column) => row[column]))));
    return made;
}
const problem = ({ message, detail, hint }) => {
    const shown = element('div', '');
    shown.className = 'error';
    const line = (label, text) => (text ? [element('p', `${label}: ${text}`)] : []);
    shown.append(...line('ERROR', message), ...line('Detail', detail), ...line('Hint', hint));
    return shown;
};

async function install(db) {
    const file = await fetch('ratelimit.sql');
    if (!file.ok) throw new Error(`ratelimit.sql: ${file.status}`);
    await db.exec(await file.text());
    await db.exec('SET search_path = public, ratelimit');
}

const began = performance.now();
const db = await open();

/** The database; undefined where it can't be had, which the page then says. */
async function open() {
    let PGlite;
    try {
        ({ PGlite } = await import('./pglite/index.js'));
    } catch {
        status('This copy of the page is without PGlite: the book was built where npm is missing.', true);
        return undefined;
    }
    try {
        const db = await PGlite.create();
        status('Installing ratelimit.sql…');
        await install(db);
        return db;
    } catch (error) {
        status(`PostgreSQL did not start: ${error.message}`, true);
        return undefined;
    }
}

/** What is left for the key, now, and the rows. */
async function look() {
    const { key } = fields('take');
    const { rows: [left] } = await db.query("SELECT remaining, capacity FROM rl_check('api', $1)", [key]);
    byId('level').max = left.capacity;
    byId('level').value = Math.max(left.remaining, 0);
    byId('left').textContent = `${text(Math.floor(left.remaining * 10) / 10)} of ${text(left.capacity)} left`;
    const state = await db.query('SELECT name, key, value, ts FROM ratelimit.ratelimits ORDER BY ts DESC LIMIT 100');
    byId('rows').replaceChildren(table(['name', 'key', 'value', 'ts'], state.rows));
}
/** Looks again and again; a limit that is gone, or a transaction that has failed, has nothing to show. */
async function watch() {
    await look().catch(() => { byId('left').textContent = '–'; });
    setTimeout(watch, LOOK);
}

async function define() {
    const sql = definition(fields('define'));
    try {
        await db.exec(sql);
        byId('defined').replaceChildren('defined');
    } catch (error) {
        byId('defined').replaceChildren(problem(error));
    }
}

const calls = [];
async function take() {
    const answer = byId('answer');
    try {
        const [{ rows: [row] }] = await db.exec(call(fields('take')));
        const { ok, remaining, retry_after } = row;
        answer.className = `answer ${ok ? 'allowed' : 'denied'}`;
        const wait = retry_after === null ? '' : `, try again in ${text(retry_after)} s`;
        answer.textContent = ok ? 'allowed' : `denied${wait}`;
        calls.unshift({ time: new Date().toTimeString().slice(0, 8), ok, remaining, retry_after });
        calls.splice(CALLS);
        const shown = table(['time', 'ok', 'remaining', 'retry_after'], calls);
        [...shown.rows].slice(1).forEach((line, n) => { line.className = calls[n].ok ? 'allowed' : 'denied'; });
        byId('calls').replaceChildren(shown);
        await look();
    } catch (error) {
        answer.className = 'answer';
        answer.replaceChildren(problem(error));
    }
}

async function run() {
    try {
        const results = await db.exec(fields('run').sql);
        const shown = results.filter(({ fields }) => fields.length)
            .map(({ fields, rows }) => table(fields.map(({ name }) => name), rows));
        byId('results').replaceChildren(...(shown.length ? shown : [element('p', 'done')]));
    } catch (error) {
        byId('results').replaceChildren(problem(error));
    }
}

function showSql() {
    byId('define-sql').textContent = definition(fields('define'));
    byId('take-sql').textContent = call(fields('take'));
}

showSql();
for (const id of ['define', 'take']) byId(id).addEventListener('input', showSql);
for (const [id, does] of Object.entries({ define, take, run })) {
    byId(id).addEventListener('submit', (event) => {
        event.preventDefault();
        if (db) does();
    });
}
byId('run').addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) byId('run').requestSubmit();
});
if (db) {
    await define();
    document.querySelector('main').inert = false;
    const { rows: [{ version }] } = await db.query("SELECT current_setting('server_version') AS version");
    status(`PostgreSQL ${version} is ready, after ${text(Math.round(performance.now() - began) / 1000)} s.`);
    watch();
}
