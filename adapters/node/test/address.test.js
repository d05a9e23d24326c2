// addressKey, compared with rl_address_key of SQL.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import pg from 'pg';

import { addressKey } from 'postgres-rate-limit';

test('an address has the key that SQL makes', async () => {
    const pool = new pg.Pool({ max: 1 });
    const random = (n) => Math.floor(Math.random() * n);
    const group = () => [0, 0, 1, 0xffff, random(0x10000)][random(5)].toString(16);
    const addresses = ['192.0.2.1', '::ffff:192.0.2.1', '::FFFF:C000:0207', '2001:db8::1', '2001:DB8:0:0:1::', '::', '::1'];
    for (let n = 0; n < 500; n++) addresses.push(Array.from({ length: 8 }, group).join(':'));
    const sql = 'SELECT n, masklen, rl_address_key(a::inet, masklen) AS key FROM unnest($1::text[]) WITH ORDINALITY AS u (a, n), unnest($2::int[]) AS masklen';
    const { rows } = await pool.query(sql, [addresses, [0, 32, 48, 56, 64, 65, 79]]);
    for (const { n, masklen, key } of rows) assert.equal(addressKey(addresses[n - 1], masklen), key, addresses[n - 1]);
    assert.equal(rows.length, 7 * addresses.length);
    await pool.end();
    assert.equal(addressKey('2001:db8:1:2:3::4'), '2001:db8:1:2::/64');
    assert.equal(addressKey('fe80::1:2:3:4%eth0', 128), 'fe80::1:2:3:4');
    for (const [given, masklen] of [[undefined], [''], ['1.2.3'], ['::1', 129], ['::1', 0.5], ['::1]/x']])
        assert.throws(() => addressKey(given, masklen), /^TypeError: addressKey: (address|masklen) is /);
});
