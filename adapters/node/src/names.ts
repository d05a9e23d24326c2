// Types by which the compiler knows the limits of a client: their kinds, their names, and whether they are keyed.
import type { RateLimitConfig } from './config';
import type { Key } from './limiter';

export type Kind = RateLimitConfig['kind'];
export type TokenKind = Exclude<Kind, 'concurrency'>;
export type LeaseKind = 'concurrency' | 'unlimited';
export type HoldKind = 'token bucket' | 'fixed window' | 'unlimited';
export type ConfigOf<K extends Kind> = Extract<RateLimitConfig, { kind: K }>;

/** The definitions; a field that a kind does not have is of the type never. */
export type Checked<D> = { [N in keyof D]: D[N] & Known<D[N]> };
type Known<C> = C extends { kind: infer K extends Kind }
    ? { [F in Exclude<keyof C, keyof ConfigOf<K>>]?: never }
    : unknown;
/** The names of limits of these kinds. */
export type NameOf<D, K extends Kind> = {
    [N in keyof D]: Extract<D[N], { kind: K }> extends never ? never : N;
}[keyof D] &
    string;

export type Keyed<C> = C extends { keyed: true } ? { key: Key } : { key?: Key };
export type Rest<C, O> = C extends { keyed: true } ? [options: O & Keyed<C>] : [options?: O & Keyed<C>];
/** For another limit: its config. */
export type Inline<K extends Kind> = { key?: Key; config: ConfigOf<K> };
