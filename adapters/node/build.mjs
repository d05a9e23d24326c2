// Makes what the package holds: dist/ of src/ by the compiler, and ratelimit.sql in a clone of the repository. The files
// that end in .cts are loaded by both require and import, so that each class exists once in a process; files that end in
// .mts are for import. Files for browsers are modules, without comments, and are made once more for require. Unchanged
// files are not written again.
import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

const at = (path) => new URL(path, import.meta.url);
const run = (program, ...args) => {
    const { SCHEMA, ...env } = process.env;
    execFileSync(program, args, { cwd: at('.'), env, stdio: ['ignore', 2, 2] });
};

if (!existsSync(at('node_modules/typescript'))) throw new Error('the compiler is missing: run npm ci');
run(process.execPath, 'node_modules/typescript/bin/tsc');

const { default: typescript } = await import('typescript');
const { rolldown } = await import('rolldown');
const FOR_BROWSERS = ['browser', 'calculate', 'calendar', 'react', 'watch'];
/** The maximum size of all of them, gzipped, in bytes. */
const MOST = 3000;
const write = (file, text) => {
    if (!existsSync(at(file)) || readFileSync(at(file), 'utf8') !== text) writeFileSync(at(file), text);
};
const compiled = (name, module) =>
    typescript.transpileModule(readFileSync(at(`src/${name}.mts`), 'utf8'), {
        fileName: `${name}.${module === 'commonjs' ? 'cts' : 'mts'}`,
        compilerOptions: { module: 'nodenext', target: 'es2022', removeComments: true },
    }).outputText;
for (const name of FOR_BROWSERS) {
    const required = (text) => text.replace(/(['"])(\.\/[a-z]+)\.mjs\1/g, '$1$2.cjs$1');
    write(`dist/${name}.mjs`, compiled(name, 'nodenext'));
    write(`dist/${name}.cjs`, required(compiled(name, 'commonjs')));
    write(`dist/${name}.d.cts`, required(readFileSync(at(`dist/${name}.d.mts`), 'utf8')));
}
// The hooks' module has all.
const bundle = await rolldown({ cwd: fileURLToPath(at('.')), input: 'dist/react.mjs', external: ['react'] });
const [{ code }] = (await bundle.generate({ format: 'esm', minify: true })).output;
const size = gzipSync(code).length;
console.error(`for browsers: ${size} bytes, minified and gzipped`);
if (size > MOST) throw new Error(`more than ${MOST} bytes for browsers`);

if (existsSync(at('../../scripts/plain'))) {
    run('../../scripts/plain');
    copyFileSync(at('../../dist/ratelimit.sql'), at('ratelimit.sql'));
} else if (!existsSync(at('ratelimit.sql'))) {
    throw new Error('ratelimit.sql is missing: scripts/plain of the repository makes it');
}
