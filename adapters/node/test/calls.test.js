// The client is as adapters/calls.json says, which is also that for Python: the calls, their options and results, as
// the compiler knows them; and what the cases are answered.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import pg from 'pg';
import typescript from 'typescript';

import { RateLimiter, RateLimitError } from 'postgres-rate-limit';
import { limits, run as runs } from './limits.js';

const tables = [3, 4].map((up) => new URL(`${'../'.repeat(up)}adapters/calls.json`, import.meta.url));
const table = JSON.parse(readFileSync(tables.find(existsSync)));
const camel = (name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());
const named = (name) => table.names[name] ?? camel(name);
const sorted = (names) => [...names].sort();

/** What the compiler knows of types, each by a name of its own. */
function known(types) {
    const file = fileURLToPath(new URL('calls.probe.ts', import.meta.url));
    const text = Object.entries(types).map(([name, type]) => `export declare const ${name}: ${type};\n`);
    const options = { strict: true, noEmit: true, skipLibCheck: true, module: typescript.ModuleKind.NodeNext };
    const host = typescript.createCompilerHost({ ...options, target: typescript.ScriptTarget.ES2022 });
    const { getSourceFile, fileExists } = host;
    const source = `import type * as all from 'postgres-rate-limit';\n${text.join('')}`;
    host.fileExists = (path) => path === file || fileExists(path);
    host.getSourceFile = (path, ...others) =>
        path === file
            ? typescript.createSourceFile(path, source, typescript.ScriptTarget.ES2022, true)
            : getSourceFile(path, ...others);
    const program = typescript.createProgram([file], { ...options, target: typescript.ScriptTarget.ES2022 }, host);
    const wrong = typescript.getPreEmitDiagnostics(program, program.getSourceFile(file));
    assert.deepEqual(wrong.map(({ messageText }) => messageText), []);
    const checker = program.getTypeChecker();
    const exported = checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(file)));
    const ofType = (type) => {
        const hidden = typescript.ModifierFlags.Private | typescript.ModifierFlags.Protected;
        const isOpen = ({ declarations = [], name }) =>
            !/^(__|#)/.test(name) && declarations.every((each) => !(typescript.getCombinedModifierFlags(each) & hidden));
        const open = checker.getPropertiesOfType(checker.getNonNullableType(type)).filter(isOpen);
        const isCall = (symbol) => checker.getTypeOfSymbol(symbol).getCallSignatures().length > 0;
        const names = (symbols) => symbols.map(({ name }) => name);
        return { fields: names(open.filter((symbol) => !isCall(symbol))), calls: names(open.filter(isCall)) };
    };
    return Object.fromEntries(exported.map((symbol) => [symbol.name, ofType(checker.getTypeOfSymbol(symbol))]));
}

test('the calls, their options and results are those of the table', () => {
    const limiter = 'all.RateLimiter<{ one: all.TokenBucket; slots: all.Concurrency }>';
    const parameters = (type, call) => `Parameters<${type}['${call}']>`;
    const types = { limiter, limiterOptions: 'all.RateLimiterOptions', rememberOptions: 'all.RememberDenials' };
    for (const [name, { given, gives }] of Object.entries(table.calls)) {
        // The key is one of the options, which are the last.
        const place = given.filter((each) => each !== 'key').length;
        if (name !== 'sql') types[`options_${name}`] = `${parameters(limiter, named(name))}[${place}]`;
        const list = gives === 'SettleResult' ? '[number]' : '';
        if (gives) types[`gives_${name}`] = `Awaited<ReturnType<${limiter}['${named(name)}']>>${list}`;
    }
    for (const name of ['RequestResult', 'HoldRequestResult', 'BorrowResult', 'Decision', 'Unsettled'])
        types[`result_${name}`] = `all.${name}`;
    types.options_borrowed_take = parameters('all.Borrowed', 'take') + '[0]';
    types.options_borrowed_limit = parameters('all.Borrowed', 'limit') + '[0]';
    const found = known(types);

    const { limiter: only } = table.only.node;
    const members = [...Object.keys(table.calls).map(named), ...Object.keys(only)];
    assert.deepEqual(sorted([...found.limiter.calls, ...found.limiter.fields]), sorted(members));
    const all = ({ fields, calls }) => sorted([...fields, ...calls]);
    const limiterOptions = { ...table.options.limiter, ...table.only.node['limiter options'] };
    assert.deepEqual(all(found.limiterOptions), sorted(Object.keys(limiterOptions).map(camel)));
    assert.deepEqual(all(found.rememberOptions), sorted(Object.keys(table.options.remember_denials).map(camel)));
    const fieldsOf = (name, result) => {
        const { fields, calls = {} } = table.results[name];
        assert.deepEqual(sorted(result.fields), sorted(fields.map(named)), name);
        assert.deepEqual(sorted(result.calls), sorted(Object.keys(calls)), name);
    };
    const optionsOf = (names, options, what) => {
        const expected = names.includes('wait') ? [...names, 'signal'] : names;
        assert.deepEqual(all(options), sorted(expected.map(camel)), `the options of ${what}`);
    };
    for (const [name, { given, options, gives }] of Object.entries(table.calls)) {
        const names = [...Object.keys(options), ...given.filter((each) => each === 'key')];
        if (name !== 'sql') optionsOf(names, found[`options_${name}`], name);
        if (gives) fieldsOf(gives, found[`gives_${name}`]);
    }
    for (const name of ['RequestResult', 'HoldRequestResult', 'BorrowResult', 'Decision', 'Unsettled'])
        fieldsOf(name, found[`result_${name}`]);
    for (const name of ['take', 'limit'])
        optionsOf(table.results.Borrowed.calls[name], found[`options_borrowed_${name}`], name);
});

// The cases.

const NAME = `calls_node_${process.pid}`;
let database, pool, nowhere;
before(async () => {
    database = await limits(NAME);
    pool = new pg.Pool(database.app);
    nowhere = new pg.Pool({ host: '/nowhere' });
});
after(async () => {
    await pool.end();
    await database.end();
});

/** The options, or a request, as Node has them. */
const asNode = (options) =>
    Object.fromEntries(
        Object.entries(options).map(([name, value]) => [camel(name), table.spans.includes(name) ? value * 1000 : value]),
    );

/** What is found is what is expected: "some", "any", or the same; of an object what is named, of headers all. */
function compare(found, expected, at) {
    if (expected === 'any') return;
    if (expected === 'some') return assert.ok(found !== null && found !== undefined, `${at} is ${found}`);
    if (Array.isArray(expected)) {
        assert.equal(found.length, expected.length, at);
        return expected.forEach((each, n) => compare(found[n], each, `${at}[${n}]`));
    }
    if (typeof expected !== 'object' || expected === null)
        return assert.equal(typeof found === 'number' ? Math.floor(found) : (found ?? null), expected, at);
    if (at.endsWith('headers')) assert.deepEqual(sorted(Object.keys(found)), sorted(Object.keys(expected)), at);
    for (const [name, each] of Object.entries(expected)) {
        const own = at.endsWith('headers') || at.endsWith('used') ? name : named(name);
        compare(found[own], each, `${at}.${own}`);
    }
}

const BLOCKS = { acquire: 'withLease', hold: 'withHold', hold_all: 'withHoldAll' };
for (const { case: title, nowhere: isNowhere = false, limiter: more = {}, ...rest } of table.cases) {
    const { blocked, steps, heard, unsettled } = rest;
    test(`the case: ${title}`, async () => {
        const block = (client) => client.query("SELECT rl_block($1, $2, '1 hour')", [blocked, title]);
        if (blocked) await runs('postgres', NAME, block);
        const [decisions, unsettledOnes, made] = [[], [], {}];
        const limiter = new RateLimiter(table.limits, {
            db: isNowhere ? nowhere : pool,
            onDecision: ({ name, ok, limitedBy }) => decisions.push([name, ok, limitedBy]),
            onUnsettled: ({ used }) => unsettledOnes.push(used ?? null),
            ...asNode(more),
        });
        const requestsOf = (value) =>
            Array.isArray(value) ? value.map((request) => ({ key: title, ...asNode(request) })) : value;
        for (const [n, step] of steps.entries()) {
            const at = `${n}: ${step.block ?? step.call}`;
            const id = (value) => (typeof value === 'string' && value.startsWith('$') ? made[value.slice(1)].id : value);
            const given = (step.given ?? []).map((value) => requestsOf(id(value)));
            const target = step.of ? made[step.of] : limiter;
            const { given: takes = [] } = step.of ? {} : table.calls[step.block ?? step.call];
            const key = takes.includes('key') || target.take ? { key: title } : {};
            const options = { ...key, ...asNode(step.options ?? {}) };
            const mine = new Error('mine');
            const run = async () => {
                if (step.block) {
                    const since = performance.now();
                    const work = async (held) => {
                        const waits = [held, ...(held.results ?? [])].map(({ retryAfter }) => retryAfter ?? 0);
                        assert.ok(performance.now() - since >= Math.max(...waits) - 1, `${at} began too early`);
                        Object.assign(held, step.sets);
                        if (step.fails) throw mine;
                    };
                    return limiter[BLOCKS[step.block]](...given, options, work);
                }
                if (step.sets) Object.assign(target, step.sets);
                const all = Object.keys(options).length > 0 ? [...given, options] : given;
                return target[named(step.call)](...all);
            };
            if (step.denied || step.refused) {
                const error = await run().then(() => assert.fail(`${at} passed`), (error) => error);
                assert.equal(RateLimitError.from(error)?.name, step.denied, at);
                continue;
            }
            const answer = await run().catch((error) => {
                if (error !== mine) throw error;
            });
            if (step.as) made[step.as] = answer;
            if ('gives' in step) compare(answer, step.gives, at);
            if (step.then) compare(target, step.then, at);
        }
        if (heard) assert.deepEqual(decisions, heard);
        assert.deepEqual(unsettledOnes, unsettled ?? []);
    });
}
