// From CommonJS, also where require takes no module: as on Node 20.18 and in Jest.
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { test } from 'node:test';
import { promisify } from 'node:util';

test('an application that is CommonJS requires the package', async () => {
    const knows = process.allowedNodeEnvironmentFlags.has('--experimental-require-module');
    for (const flags of knows ? [[], ['--no-experimental-require-module']] : [[]]) {
        await promisify(execFile)(process.execPath, [...flags, fileURLToPath(new URL('common.cjs', import.meta.url))]);
    }
});
