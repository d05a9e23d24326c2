// The key of a client's address, the same as that of rl_address_key in SQL.
import { isIP } from 'node:net';

import { allow } from './errors';

/** The eight groups of an IPv6 address. */
function groupsOf(address: string): number[] {
    // A URL has the short form, in hexadecimal.
    const short = new URL(`http://[${address}]`).hostname.slice(1, -1);
    const groups = (text: string) => text.split(':').filter(Boolean).map((group) => parseInt(group, 16));
    const [first = [], last = []] = short.split('::').map(groups);
    return [...first, ...Array(8 - first.length - last.length).fill(0), ...last];
}

/**
 * Makes a key of a client's address: an IPv4 address, also one mapped into IPv6, is its own; of IPv6 it is the network,
 * the first `masklen` bits, 0 to 128, because a customer usually has a /64. Throws a TypeError if it is no address.
 */
export function addressKey(address: string, masklen = 64): string {
    const isLength = Number.isInteger(masklen) && masklen >= 0 && masklen <= 128;
    allow(isLength, 'addressKey: masklen', masklen, '0 to 128');
    const plain = String(address).split('%')[0]!; // without the interface
    const version = isIP(plain);
    if (version === 0) throw new TypeError(`addressKey: address is ${typeof address}, and no IP address`);
    if (version === 4) return plain;
    const groups = groupsOf(plain);
    if (groups.slice(0, 5).every((group) => group === 0) && groups[5] === 0xffff) {
        return groups.slice(6).flatMap((group) => [group >> 8, group & 255]).join('.');
    }
    const cut = (n: number) => Math.min(Math.max(16 * (n + 1) - masklen, 0), 16);
    const kept = groups.map((group, n) => group & (0xffff << cut(n)) & 0xffff);
    const network = new URL(`http://[${kept.map((group) => group.toString(16)).join(':')}]`).hostname.slice(1, -1);
    return masklen === 128 ? network : `${network}/${masklen}`;
}
