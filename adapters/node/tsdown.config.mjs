// Makes dist/ of src/. Each class exists once in a process that both requires and imports the package: modules for
// require have the code, and those for import name what is in them. Modules of ESM packages are for import only. Files
// for browsers are made twice, and have no class. And in a clone of the repository ratelimit.sql.
import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync } from 'node:fs';

import { defineConfig } from 'tsdown';

const SQL = '../../scripts/plain';
if (existsSync(SQL)) {
    const { SCHEMA, ...env } = process.env;
    execFileSync(SQL, { env, stdio: ['ignore', 2, 2] });
    copyFileSync('../../dist/ratelimit.sql', 'ratelimit.sql');
} else if (!existsSync('ratelimit.sql')) throw new Error(`ratelimit.sql is missing: ${SQL} of the repository makes it`);

/** Adds a module for import, with its types, next to each module for require. */
const imports = {
    name: 'imports',
    generateBundle(_, bundle) {
        const add = (fileName, source) => this.emitFile({ type: 'asset', fileName, source });
        for (const { isEntry, name, fileName, exports } of Object.values(bundle)) {
            if (!isEntry || !fileName.endsWith('.cjs') || exports.length === 0) continue;
            add(`${name}.mjs`, `export { ${exports.sort().join(', ')} } from './${fileName}';\n`);
            add(`${name}.d.mts`, `export * from './${fileName}';\n`);
        }
    },
};
const entries = (...names) => Object.fromEntries(names.map((name) => [name, `src/${name}.ts`]));
// Types use Symbol.asyncDispose, which an application's lib may not have.
const banner = { dts: '/// <reference lib="esnext.disposable" />' };
const checks = { pluginTimings: false };
const all = { fixedExtension: true, target: 'es2022', clean: true, report: false, dts: true, banner, checks };

export default defineConfig([
    {
        ...all,
        entry: entries('index', 'better-auth', 'express-rate-limit', 'fastify', 'hono', 'nest', 'rate-limiter-flexible'),
        format: 'cjs',
        plugins: [imports],
    },
    { ...all, entry: entries('cli'), format: 'cjs', dts: false },
    { ...all, entry: entries('ai', 'testing'), format: 'esm', deps: { neverBundle: ['postgres-rate-limit'] } },
    { ...all, entry: entries('browser', 'react'), format: ['esm', 'cjs'], platform: 'browser' },
]);
