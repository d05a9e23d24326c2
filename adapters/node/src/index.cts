export { install, installSql, type InstallOptions } from './sql.cjs';
