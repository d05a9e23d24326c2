export * from './express-rate-limit';
