// Makes what the package holds: dist/ of src/ by the compiler, and ratelimit.sql in a clone of the repository. The files
// that end in .cts are what require and import both load, so that there is one of each class in a process; those that end
// in .mts are for import. What has not changed is not written again.
import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs';

const at = (path) => new URL(path, import.meta.url);
const run = (program, ...args) => {
    const { SCHEMA, ...env } = process.env;
    execFileSync(program, args, { cwd: at('.'), env, stdio: ['ignore', 2, 2] });
};

if (!existsSync(at('node_modules/typescript'))) throw new Error('the compiler is missing: run npm ci');
run(process.execPath, 'node_modules/typescript/bin/tsc');
if (existsSync(at('../../scripts/plain'))) {
    run('../../scripts/plain');
    copyFileSync(at('../../dist/ratelimit.sql'), at('ratelimit.sql'));
} else if (!existsSync(at('ratelimit.sql'))) {
    throw new Error('ratelimit.sql is missing: scripts/plain of the repository makes it');
}
