// What the server has: the extension, or the file of SQL, which keeps no limits in memory.
export const onFile = process.env.RATELIMIT_EDITION === 'file';
export const STORES = onFile ? ['table'] : ['table', 'memory'];
