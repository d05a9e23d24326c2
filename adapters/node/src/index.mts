// For import; index.cts has it all, so that there is one of each class in a process.
export type * from './index.cjs';
export { install, installSql } from './index.cjs';
