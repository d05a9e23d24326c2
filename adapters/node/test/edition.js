// The server has the extension, or the SQL file, which keeps no limits in memory.
export const onFile = process.env.RATELIMIT_EDITION === 'file';
export const STORES = onFile ? ['table'] : ['table', 'memory'];
